"""Carriers: which array can carry a tie to an op without a kernel of its own?

Input: a variable that an op reads, and the equations that made it. Output: where to tie it.
A barrier keeps what it ties in memory, in one layout, and apart from what is on its other
side. XLA reads views (a transpose, a slice, a change of dtype) as part of the op behind
them: the tie goes in front of the views, and the views are made again behind it. Some results
XLA computes larger than they are, and cuts them to size as they are read: no tie there either.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from jaxswap.apply import jaxprs
from jaxswap.apply.heavy import reads_memory
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx

_LAYOUTS = frozenset(
    ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p")
)
_CONVERSIONS = frozenset(("convert_element_type",))


def is_cut_to_size(eqn: Eqn) -> bool:
    """Whether XLA computes an op's result larger than it is, and cuts it as it is read.

    That is the gradient of a strided convolution that was padded unevenly: cuDNN pads both sides
    alike, so XLA's `ConvPaddingLegalization` enlarges it by what one side lacks. Sizes below are
    of the convolution that it is the gradient of.
    """
    if eqn.primitive is not jx.conv_p:
        return False
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    if set(params["lhs_dilation"]) == {1}:
        return False
    sizes = [
        [v.aval.shape[d] for d in spec[2:]]
        for v, spec in zip(
            (*eqn.invars, *eqn.outvars),
            (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec),
            strict=True,
        )
    ]
    for num_windows, taps, size, stride, dilation, (pad, _) in zip(
        *sizes, params["lhs_dilation"], params["rhs_dilation"], params["padding"], strict=True
    ):
        window = (taps - 1) * dilation + 1
        low = window - 1 - pad
        least_high = (num_windows - 1) * stride + window - size - low
        if not least_high <= low < least_high + stride:
            return True
    return False


def find_source(
    var: Var, makers: Mapping[Var, Eqn], is_stored: Callable[[Eqn], bool]
) -> tuple[Var, list[Eqn]]:
    """The array that `var` is a view of, and the equations that make the view, in order.

    Args:
        var: what an op reads.
        makers: the equation that made each variable.
        is_stored: whether an equation writes its results to memory by itself. Others fuse,
            and a change of dtype fuses with them: it then belongs to the array.
    """
    chain: list[Eqn] = []
    while (eqn := makers.get(var)) is not None:
        inputs = jaxprs.variables(eqn.invars)
        if eqn.primitive.name not in _LAYOUTS | _CONVERSIONS or len(inputs) != 1:
            break
        chain.append(eqn)
        (var,) = inputs
    chain.reverse()
    if eqn is None or is_stored(eqn):
        return var, chain
    converts = [i for i, e in enumerate(chain) if e.primitive.name in _CONVERSIONS]
    if converts:
        var, chain = chain[converts[-1]].outvars[0], chain[converts[-1] + 1 :]
    return var, chain


def find_in_memory(
    eqns: Sequence[Eqn],
    heavy: Sequence[bool],
    outvars: Sequence[Atom],
    is_stored: Callable[[Eqn], bool],
) -> set[Var]:
    """What is in memory whatever fuses, of a program whose heavy ops are known.

    What heavy ops write, a bias included, and read; what is copied, gated or returned.
    """
    makers = {v: e for e in eqns for v in e.outvars}
    uses = Counter(v for e in eqns for v in jaxprs.variables(e.invars))
    found = set(jaxprs.variables(outvars))
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        inputs = jaxprs.variables(eqn.invars)
        if is_heavy_op and reads_memory(eqn):
            found.update(find_source(v, makers, is_stored)[0] for v in inputs)
        elif not is_heavy_op and is_stored(eqn):
            found.update(inputs)
        if is_heavy_op or is_stored(eqn) or _is_bias(eqn, found, uses):
            found.update(eqn.outvars)
    return found


def _is_bias(eqn: Eqn, in_memory: Container[Var], uses: Mapping[Var, int]) -> bool:
    """Whether something smaller is added to a result that nothing else reads."""
    inputs = sorted(jaxprs.variables(eqn.invars), key=lambda v: jaxprs.size_bytes(v.aval))
    if eqn.primitive.name != "add" or len(inputs) != 2:
        return False
    small, result = inputs
    is_small = jaxprs.size_bytes(small.aval) < jaxprs.size_bytes(result.aval)
    return is_small and result in in_memory and uses[result] == 1
