"""Fusion: which equations become one kernel, and what is then in memory between kernels?

Input: a `Graph`, and the `Yardstick` of a device. Output: the graph's `Kernel`s, in order.

XLA:GPU's way, in outline. Priority fusion: a kernel is taken into *all* the kernels that read
it, and then never exists in memory, if that is faster than writing and reading it; the pair
that gains most goes first. A kernel that some reader cannot take in stays. Reductions take in
what they reduce, and are taken in themselves where they are one step of a row-wise kernel
(softmax), on devices that have those. Then kernels over the same elements that read the same
arrays are run as one ("multi-output", `outputs.py`).
"""

import heapq

from jaxswap.program import outputs
from jaxswap.program.effort import DEFAULT, Yardstick
from jaxswap.program.graph import Graph
from jaxswap.program.groups import MAX_INPUTS, MAX_NODES, Groups, Kernel

# What more kernels than this read, such as a mask or a learning rate, is made once.
_MAX_READERS = 24
# What is this near, XLA computes again: it asks before the readers are as large as they get.
# Seen with `tanh` in f32 on an H100.
_TIE = 0.03


def fuse(graph: Graph, yardstick: Yardstick = DEFAULT) -> list[Kernel]:
    """Groups a graph's nodes into kernels, in the order they run.

    Example:
        >>> fuse(Graph())
        []
    """
    groups = Groups(graph, yardstick)
    groups.remove_dead()
    outputs.fuse_epilogues(groups)
    fuser = _Fuser(groups)
    fuser.fuse_row_steps()
    fuser.fuse_by_priority()
    outputs.fuse_outputs(groups)
    outputs.put_off(groups)
    alive = [k for k in groups.kernels if k.is_alive]
    return sorted(alive, key=lambda k: k.position)


class _Fuser:
    """Takes kernels into their readers."""

    def __init__(self, groups: Groups):
        self.groups = groups

    def fuse_row_steps(self) -> None:
        """Makes one row-wise kernel of a reduction and the only kernel that reads it.

        XLA looks for these before anything else: a row is reduced, the result goes back to
        every element of the row.
        """
        kernels = self.groups.kernels
        for index in range(len(kernels)):
            if self._is_spread(index):
                self._take_in(index)
        for start in range(len(kernels)):
            index, kernel = start, kernels[start]
            while kernel.is_alive and kernel.reduces and len(kernel.outs) == 1:
                (result,) = kernel.outs
                readers = self.groups.readers.get(result, set())
                if len(readers) != 1 or result in self.groups.kept:
                    break
                (other,) = readers
                reader = kernels[other]
                is_whole = self.groups.arrays[result].elements == kernel.span
                if is_whole or not self._can_take(reader, kernel, result, 1):
                    break
                reader.is_row_wise |= self._is_row_step(reader, kernel)
                self._take_in(index)
                index, kernel = other, reader

    def _is_spread(self, index: int) -> bool:
        """Whether a kernel only repeats a smaller array, for one reader."""
        kernel = self.groups.kernels[index]
        if not kernel.is_alive or kernel.is_opaque or kernel.effort or len(kernel.ins) != 1:
            return False
        (result,), (share,) = kernel.outs, kernel.ins.values()
        readers = self.groups.readers.get(result, set())
        if share <= 1.0 or len(readers) != 1 or result in self.groups.kept:
            return False
        return all(self._can_take(self.groups.kernels[r], kernel, result, 1) for r in readers)

    def fuse_by_priority(self) -> None:
        """Takes kernels into their readers, the pair that gains most first."""
        heap: list[tuple[float, int, int]] = []

        def push(index: int) -> None:
            gain = self._gain(index)
            if gain is not None and gain > 0:
                heapq.heappush(heap, (-gain, index, self.groups.kernels[index].version))

        for index, kernel in enumerate(self.groups.kernels):
            if kernel.is_alive:
                push(index)
        while heap:
            _, index, version = heapq.heappop(heap)
            kernel = self.groups.kernels[index]
            if not kernel.is_alive or version != kernel.version:
                continue
            changed = self._take_in(index)
            stale = set(changed)
            for other in changed:
                stale.update(
                    self.groups.maker[a]
                    for a in self.groups.kernels[other].ins
                    if a in self.groups.maker
                )
            for other in stale:
                self.groups.kernels[other].version += 1
                if self.groups.kernels[other].is_alive:
                    push(other)

    def _gain(self, index: int) -> float | None:
        """Seconds that taking a kernel into all its readers saves; None if it cannot be."""
        kernel = self.groups.kernels[index]
        if kernel.is_opaque or len(kernel.outs) != 1 or kernel.outs[0] in self.groups.kept:
            return None
        if self.groups.graph.nodes[next(iter(kernel.nodes))].kind == "update":
            return None
        (result,) = kernel.outs
        readers = self.groups.readers.get(result)
        if not readers:
            return None
        if not kernel.ins and not kernel.effort:
            # A constant costs nothing anywhere.
            can_all = all(
                self._can_take(self.groups.kernels[r], kernel, result, 1) for r in readers
            )
            return self.groups.seconds(kernel) if can_all else None
        if len(readers) > _MAX_READERS:
            return None
        gain = unfused_s = self.groups.seconds(kernel)
        for other in readers:
            reader = self.groups.kernels[other]
            if not self._can_take(reader, kernel, result, len(readers)):
                return None
            gain -= self._merged_seconds(reader, kernel, result) - self.groups.seconds(reader)
            unfused_s += self.groups.seconds(reader)
        return gain + _TIE * unfused_s if self.groups.is_computing(kernel) else gain

    def _can_take(self, reader: Kernel, kernel: Kernel, result: int, count: int) -> bool:
        if reader.is_opaque or reader.loop != kernel.loop or result in reader.fixed:
            return False
        if len(reader.ins) + len(kernel.ins) > MAX_INPUTS:
            return False
        if len(reader.nodes) + len(kernel.nodes) > MAX_NODES:
            return False
        if self.groups.grows_too_large(reader, kernel, result):
            return False
        if not kernel.reduces:
            return True
        elements = self.groups.arrays[result].elements
        if elements == kernel.span:  # a row-wise kernel that gives whole rows
            return reader.span == kernel.span and not reader.is_stack
        if count > 1 and not kernel.is_row_wise:
            return False
        if not reader.reduces and reader.span == elements:
            return count == 1  # what is done with the sums before they are written
        return self._is_row_step(reader, kernel)

    def _is_row_step(self, reader: Kernel, kernel: Kernel) -> bool:
        """Whether a reduction is one step of a kernel that has the whole row at hand."""
        nodes = self.groups.graph.nodes
        if not self.groups.yardstick.has_row_kernels:
            return False
        if reader.span != kernel.span or len(kernel.outs) != 1:
            return False
        if not all(nodes[n].is_row_reduction for n in kernel.nodes if nodes[n].kind == "reduce"):
            return False
        wide = {
            a for a in kernel.ins if self.groups.arrays[a].elements * kernel.ins[a] >= kernel.span
        }
        # XLA looks for one array that is both reduced and read on; what was found so can grow.
        if len(wide) > 1 and not kernel.is_row_wise:
            return False
        return bool(wide & reader.ins.keys())

    def _merged_seconds(self, reader: Kernel, kernel: Kernel, result: int) -> float:
        share = reader.ins[result]
        read = reader.read_bytes - self.groups.read_bytes(result, share)
        if kernel.reduces:
            share = min(share, 1.0)  # done once per row, not once per element
        for array, own in kernel.ins.items():
            before = reader.ins.get(array)
            now = self.groups.read_bytes(array, own * share)
            if before is None:
                read += now
            else:
                read += max(0.0, now - self.groups.read_bytes(array, before))
        effort = reader.effort
        for node, times in kernel.nodes.items():
            if node not in reader.nodes:
                effort += self.groups.effort[node] * times * share
        return self.groups.yardstick.seconds(read + reader.write_bytes, effort)

    def _take_in(self, index: int) -> set[int]:
        """Takes a kernel into all its readers; returns them."""
        kernel = self.groups.kernels[index]
        (result,) = kernel.outs
        readers = set(self.groups.readers[result])
        for other in readers:
            reader = self.groups.kernels[other]
            self.groups.write_out(reader, kernel, result)
            share = reader.ins.pop(result)
            reader.read_bytes -= self.groups.read_bytes(result, share)
            if kernel.reduces:
                share = min(share, 1.0)
            for array, own in kernel.ins.items():
                before = reader.ins.get(array)
                now = own * share if before is None else max(before, own * share)
                reader.read_bytes += self.groups.read_bytes(array, now)
                if before is not None:
                    reader.read_bytes -= self.groups.read_bytes(array, before)
                reader.ins[array] = now
                self.groups.readers[array].add(other)
            for node, times in kernel.nodes.items():
                before_times = reader.nodes.get(node, 0.0)
                now_times = max(before_times, times * share)
                reader.effort += self.groups.effort[node] * (now_times - before_times)
                reader.nodes[node] = now_times
            if kernel.reduces:
                reader.reduces = True
                reader.span = max(reader.span, kernel.span)
            reader.is_row_wise |= kernel.is_row_wise
            reader.not_before = max(reader.not_before, kernel.not_before)
        self.groups.drop(index)
        self.groups.readers[result] = set()
        return readers
