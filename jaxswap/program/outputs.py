"""Outputs: which kernels are run as one with several results, and when do they run?

Input: `Groups`. Output: the same groups, merged in place.
A dot takes in what scales its own result. Kernels that go over the same elements and read the
same array whole are joined where the earlier one stands, if the later one's inputs are there by
then. Kernels that hold nothing up wait until they are needed.
"""

from jaxswap.program.groups import MAX_INPUTS, Groups, Kernel


def fuse_epilogues(groups: Groups) -> None:
    """A dot scales, converts or negates its own result."""
    for index, kernel in enumerate(groups.kernels):
        if not kernel.is_alive or groups.graph.nodes[index].cost.kind != "dot":
            continue
        while len(kernel.outs) == 1 and kernel.outs[0] not in groups.kept:
            (result,) = kernel.outs
            readers = groups.readers.get(result, set())
            if len(readers) != 1:
                break
            (other,) = readers
            if not _is_scaling(groups, groups.kernels[other], result):
                break
            _absorb(groups, kernel, index, other)


def _is_scaling(groups: Groups, kernel: Kernel, source: int) -> bool:
    if kernel.is_opaque or kernel.reduces or len(kernel.nodes) > 1 or len(kernel.outs) != 1:
        return False
    (node,) = (groups.graph.nodes[n] for n in kernel.nodes)
    others = [a for a in kernel.ins if a != source]
    target, made = groups.arrays[kernel.outs[0]], groups.arrays[source]
    return (
        node.kind == "map"
        and node.name != "transpose"
        and not node.cost.transcendentals
        and all(groups.arrays[a].elements == 1 for a in others)
        and target.elements == made.elements
        and target.size_bytes <= made.size_bytes
    )


def _absorb(groups: Groups, kernel: Kernel, index: int, other: int) -> None:
    """Gives an opaque kernel the one reader of its result."""
    reader = groups.kernels[other]
    (result,) = kernel.outs
    kernel.nodes |= reader.nodes
    kernel.ins |= {a: s for a, s in reader.ins.items() if a != result}
    for a in reader.ins:
        groups.readers[a].discard(other)
        if a != result:
            groups.readers[a].add(index)
    kernel.outs = reader.outs
    kernel.position = max(kernel.position, reader.position)
    kernel.write_bytes = reader.write_bytes
    groups.maker[kernel.outs[0]] = index
    reader.is_alive = False


def fuse_outputs(groups: Groups) -> None:
    """Runs kernels over the same elements as one, where they read the same arrays."""
    order = sorted(
        (i for i, k in enumerate(groups.kernels) if k.is_alive and not k.is_opaque),
        key=lambda i: groups.kernels[i].position,
    )
    for index in order:
        kernel = groups.kernels[index]
        if not kernel.is_alive or kernel.is_opaque:
            continue
        near = [*kernel.outs, *(a for a in kernel.ins if _is_whole(groups, a, kernel))]
        seen: set[int] = set()
        for array in near:
            for other in sorted(
                groups.readers.get(array, ()), key=lambda i: groups.kernels[i].position
            ):
                is_whole = _is_whole(groups, array, groups.kernels[other])
                if other not in seen and other != index and is_whole:
                    seen.add(other)
                    _try_join(groups, index, other)


def put_off(groups: Groups) -> None:
    """Runs kernels that hold nothing up, such as a loop's slices, right before their use."""
    for index, kernel in enumerate(groups.kernels):
        if not kernel.is_alive or kernel.is_opaque:
            continue
        readers = [groups.kernels[r] for a in kernel.outs for r in groups.readers.get(a, ())]
        if not readers or any(r.loop != kernel.loop for r in readers):
            continue
        is_there = (groups.arrays[a].is_argument or groups.arrays[a].is_stacked for a in kernel.ins)
        if all(is_there) and not any(a in groups.kept for a in kernel.outs):
            kernel.position = min(r.position for r in readers) - 1 / (index + 2)


def _is_whole(groups: Groups, array: int, kernel: Kernel) -> bool:
    """Whether a kernel reads all of a large array: of two slices, each is its own."""
    return kernel.ins.get(array, 0.0) >= 1.0 and groups.arrays[array].elements >= kernel.span


def _try_join(groups: Groups, index: int, other: int) -> None:
    """Joins a later kernel to an earlier one if it can run at that place."""
    first, second = groups.kernels[index], groups.kernels[other]
    if not second.is_alive or second.is_opaque or second.position <= first.position:
        return
    if first.span != second.span or first.loop != second.loop:
        return
    if first.position < second.not_before:
        return
    if first.is_stack or second.is_stack:
        return  # a slice of a stack is written in place, by a kernel of its own
    if first.fixed or second.fixed or len(first.ins) + len(second.ins) > MAX_INPUTS:
        return
    if first.reduces and any(a in second.ins for a in first.outs if _is_small(groups, a, first)):
        return
    if any(a in second.ins and groups.grows_too_large(second, first, a) for a in first.outs):
        return
    for array in second.ins:
        maker = groups.maker.get(array)
        if maker is None or maker == index:
            continue
        if groups.kernels[maker].position > first.position:
            return
    for array, share in second.ins.items():
        groups.readers[array].discard(other)
        if array not in first.outs:
            first.ins[array] = max(first.ins.get(array, 0.0), share)
            groups.readers[array].add(index)
    first.nodes.update((n, max(t, first.nodes.get(n, 0.0))) for n, t in second.nodes.items())
    for array in second.outs:
        groups.maker[array] = index
    first.outs += second.outs
    first.reduces |= second.reduces
    first.code += second.code
    first.branches += second.branches
    second.is_alive = False


def _is_small(groups: Groups, array: int, kernel: Kernel) -> bool:
    return groups.arrays[array].elements < kernel.span
