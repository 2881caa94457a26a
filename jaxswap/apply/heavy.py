"""Heavy ops: which equations is a step scheduled around?

Input: an equation. Output: whether it is a matrix product, a convolution, a kernel, or a loop
of these, and large enough to matter. What such ops read and write is in memory, while what is
between them fuses: they are the clock that windows and reload distances count in.
"""

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, jx

_HEAVY = (jx.dot_p, jx.conv_p, jx.ragged_dot_p)
_HEAVY_NAMES = frozenset(
    {
        "pallas_call", "ffi_call", "custom_call", "triton_kernel_call", "fft", "sort",
        "select_and_scatter_add", "select_and_gather_add",
        "reduce_window", "reduce_window_max", "reduce_window_sum",
    }
)  # fmt: skip
# Heavy, and yet XLA computes what they read while they read it.
_FUSING = frozenset(
    {"select_and_scatter_add", "select_and_gather_add", "reduce_window", "reduce_window_max",
     "reduce_window_sum"}
)  # fmt: skip
_LOOPS = (jx.scan_p, jx.while_p, jx.cond_p)


def is_heavy(eqn: Eqn, min_bytes: int) -> bool:
    """Whether an equation is an op to schedule around, not one that fuses with others."""
    name = eqn.primitive.name
    if eqn.primitive in _HEAVY or name in _HEAVY_NAMES or name.startswith("dot_product_att"):
        atoms = (*jaxprs.variables(eqn.invars), *eqn.outvars)
        return sum(jaxprs.size_bytes(v.aval) for v in atoms) >= min_bytes
    if eqn.primitive in _LOOPS:
        is_any = lambda e: e.primitive in _HEAVY or e.primitive.name in _HEAVY_NAMES
        return any(jaxprs.any_equation(body, is_any) for body in jaxprs.bodies(eqn))
    return any(is_heavy(e, min_bytes) for body in jaxprs.bodies(eqn) for e in body.eqns)


def reads_memory(eqn: Eqn) -> bool:
    """Whether a heavy op wants what it reads in memory."""
    return eqn.primitive.name not in _FUSING
