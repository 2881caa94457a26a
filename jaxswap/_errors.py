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
    """No plan fits the budget. The message names the floor and the op that sets it."""


class TargetError(JaxswapError):
    """The command line's MODULE:FUNCTION does not give a step."""
