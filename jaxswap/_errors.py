"""Errors: every one below `JaxswapError`, so that one `except` catches them all.

A message says what was asked, the fact that forbids it, and what would work, with numbers.
"""


class JaxswapError(Exception):
    """The base of every error that jaxswap raises on purpose."""


class BadArgumentError(JaxswapError, ValueError):
    """An argument is not of the form that its function takes."""


class UnknownDeviceError(JaxswapError, LookupError):
    """No device of that name is known."""


class MissingCompilerError(JaxswapError, RuntimeError):
    """The XLA:GPU compiler is not installed, or cannot start on this machine."""


class CompileError(JaxswapError, RuntimeError):
    """The XLA:GPU compiler refused the program."""


class BudgetInfeasibleError(JaxswapError):
    """No plan fits the budget. The message names the floor and the op that sets it.

    Attributes:
        floor_bytes: the lowest peak that was found, or None if it is not known.
    """

    def __init__(self, message: str, *, floor_bytes: int | None = None):
        super().__init__(message)
        self.floor_bytes = floor_bytes


class OutOfMemoryError(JaxswapError, MemoryError):
    """A planned step ran out of device memory all the same.

    Attributes:
        plan: the plan that was followed last.
        report: the report of that plan, or None where there is none.
    """

    def __init__(self, message: str, *, plan: object = None, report: object = None):
        super().__init__(message)
        self.plan, self.report = plan, report


class TargetError(JaxswapError):
    """The command line's MODULE:FUNCTION does not give a step."""
