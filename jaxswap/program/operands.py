"""Operands: in what form does a matrix product read its operands?

Input: a walk (`walk.py`), a dot and an operand. Output: the array that the dot really reads, and
the bytes that are moved to make it.

XLA:GPU transposes an operand whose dimensions are not in an order for the library, which is a
node of its own. On GPUs for which it writes no dots itself, it pads one in 16 bits whose sizes are
not multiples of eight, since tensor cores want them so: what is padded is read and written once
more, which is added to the dot.
"""

import itertools
import math
from typing import TYPE_CHECKING

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn
from jaxswap.model.device import Device
from jaxswap.model.kernel import KernelCost
from jaxswap.program.ir import Phase

if TYPE_CHECKING:
    from jaxswap.program.walk import Walk

# `CublasPaddingRequirements` in openxla/xla, xla/service/gpu/cublas_padding_requirements.h. From
# 8.0 on, dots are XLA's own (Triton), which need no padding; before, those in bf16 are none of
# the tensor cores'.
_PADDED = "float16"
_FROM, _BELOW = (7, 0), (8, 0)
_MULTIPLE = 8


def padded_dtypes(device: Device | None) -> frozenset[str]:
    """The dtypes whose dots are padded on a device; on a recent one, by default, none."""
    capability = (device and device.compute_capability) or (0, 0)
    return frozenset([_PADDED]) if _FROM <= capability < _BELOW else frozenset()


def lay_out(walk: "Walk", eqn: Eqn, position: int, array: int, phase: Phase) -> int:
    """The operand of a dot, transposed if its dimensions are not in an order for it.

    Batch dimensions lead, and of the rest those that are contracted are together.
    """
    contracting, batch = (dims[position] for dims in eqn.params["dimension_numbers"])
    aval = eqn.invars[position].aval
    wide = [d for d in range(len(aval.shape)) if aval.shape[d] != 1]
    lead = [d for d in batch if d in wide]
    rest = [d for d in wide if d not in batch]
    is_in = [d in contracting for d in rest]
    if sum(a != b for a, b in itertools.pairwise(is_in)) > 1:
        rest.sort(key=lambda d: d in contracting)
    if wide == lead + rest:
        return array
    key = ("layout", array, tuple(lead + rest), walk.loop, walk.guard)
    if key not in walk.merged:
        walk.merged[key] = walk.add_node(
            "transpose", "map", phase, [(array, 1.0)], [aval], KernelCost(), origin=eqn.source_info
        )
        walk.graph.arrays[walk.merged[key][0]].stands_for = array
    return walk.merged[key][0]


def pad_bytes(walk: "Walk", eqn: Eqn, arrays: list[int]) -> float:
    """Bytes that are read and written to pad the operands of a dot, each array once."""
    dtypes = {str(v.aval.dtype) for v in eqn.invars}
    as_matrices = [_sizes(eqn, position) for position in range(len(arrays))]
    if not dtypes <= walk.padded or any(1 in sizes for sizes in as_matrices):
        return 0.0
    total = 0.0
    for array, v, sizes in zip(arrays, eqn.invars, as_matrices, strict=True):
        wanted = [-(-n // _MULTIPLE) * _MULTIPLE for n in sizes]
        key = ("pad", array, *sizes, walk.loop, walk.guard)
        if wanted == sizes or key in walk.merged:
            continue
        walk.merged[key] = [array]
        total += jaxprs.size_bytes(v.aval) * (1.0 + math.prod(wanted) / max(math.prod(sizes), 1))
    return total


def _sizes(eqn: Eqn, position: int) -> list[int]:
    """Of an operand as a matrix, without batch dimensions: what stays, and what is contracted."""
    contracting, batch = (dims[position] for dims in eqn.params["dimension_numbers"])
    shape = eqn.invars[position].aval.shape
    stays = [n for d, n in enumerate(shape) if d not in contracting and d not in batch]
    return [math.prod(stays), math.prod(shape[d] for d in contracting)]
