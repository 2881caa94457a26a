"""jaxswap: fit a JAX training step on its GPU, as fast as its budget allows."""

# The packages `plan`, `apply` and `verify` are imported before their functions of the same
# name are bound: `jaxswap.plan` is the function.
from jaxswap._api import apply, plan
from jaxswap._batch import choose_batch_size
from jaxswap._batch_choice import BatchChoice
from jaxswap._decorator import swap_offload
from jaxswap._errors import BudgetInfeasibleError, JaxswapError, OutOfMemoryError
from jaxswap._explicit import checkpoint, value_and_grad
from jaxswap._self_check import self_check
from jaxswap.apply.decision import Decision
from jaxswap.model.device import Device
from jaxswap.model.presets import devices
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan
from jaxswap.report import Report
from jaxswap.verify.verify import Verified, verify

__version__ = "0.1.0.dev0"
__all__ = [
    "BatchChoice",
    "BudgetInfeasibleError",
    "Decision",
    "Device",
    "Forecast",
    "JaxswapError",
    "OutOfMemoryError",
    "Plan",
    "Report",
    "Verified",
    "apply",
    "checkpoint",
    "choose_batch_size",
    "devices",
    "plan",
    "self_check",
    "swap_offload",
    "value_and_grad",
    "verify",
]
