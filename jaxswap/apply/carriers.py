"""Carriers: which array can carry a tie to an op without a kernel of its own?

Input: a variable that an op reads, and the equations that made it. Output: where to tie it.
A barrier keeps what it ties in memory, in one layout, and apart from what is on its other
side. XLA reads views (a transpose, a slice, a change of dtype) as part of the op behind
them: the tie goes in front of the views, and the views are made again behind it. Elementwise
ops fuse into what reads them as well, if nothing wants their result in memory.
"""

from collections.abc import Callable, Container, Mapping

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, Var

_LAYOUTS = frozenset(
    ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "copy_p")
)
_CONVERSIONS = frozenset(("convert_element_type",))
_FUSED = _CONVERSIONS | frozenset(("name", "max", "min", "mul", "add", "sub", "neg", "clamp"))


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


def find_fused_source(
    var: Var, makers: Mapping[Var, Eqn], in_memory: Container[Var]
) -> tuple[Var, list[Eqn]]:
    """The array from which an op computes `var` as it reads it, and the equations, in order.

    `var` itself, where there is none in memory, or none that is as small.

    Args:
        var: what an op reads that XLA fuses with its input's makers.
        makers: the equation that made each variable.
        in_memory: arrays that are there whoever reads them.
    """
    chain: list[Eqn] = []
    source = var
    while source not in in_memory:
        eqn = makers.get(source)
        if eqn is None or eqn.primitive.name not in _FUSED:
            return var, []
        inputs = [v for v in jaxprs.variables(eqn.invars) if v.aval.shape]
        if len(inputs) != 1:
            return var, []
        chain.append(eqn)
        (source,) = inputs
    is_wider = jaxprs.size_bytes(source.aval) > jaxprs.size_bytes(var.aval)
    return (var, []) if is_wider else (source, chain[::-1])
