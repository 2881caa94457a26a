"""Step: what is known of a step that is to be planned, looked at once for all plans?

Input: a step, a way to make its arguments, and a device. Output: a `Step`, which traces when it is
asked to, and only the first time.
Arguments may be arrays, and large: they are made when they are needed, and not held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from jaxswap.apply.place import TracedStep, trace_step
from jaxswap.model.device import Device
from jaxswap.program.ir import Program
from jaxswap.program.trace import fingerprint_step, make_program


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A step that is to be planned.

    Attributes:
        fn: the step.
        make_args: makes its arguments, arrays or `jax.ShapeDtypeStruct`s of the same shapes
            each time.
        donated: positions of the arguments that it replaces.
        device: what it will run on.
    """

    fn: Callable
    make_args: Callable[[], tuple[Any, ...]]
    donated: tuple[int, ...]
    device: Device

    @property
    def traced(self) -> TracedStep:
        """The step with its values named."""
        return self._looked_at[0]

    @property
    def program(self) -> Program:
        """The step as a program for its device."""
        return self._looked_at[1]

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same step on the same shapes."""
        return fingerprint_step(self.fn, *self.make_args())

    @cached_property
    def _looked_at(self) -> tuple[TracedStep, Program]:
        args = self.make_args()
        traced = trace_step(self.fn, args, {})
        given = jax.tree.leaves([args[number] for number in self.donated])
        return traced, make_program(traced, given, self.device)
