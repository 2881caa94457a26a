"""jaxswap: fit a JAX training step on its GPU, as fast as its budget allows."""

from jaxswap._errors import BudgetInfeasibleError, JaxswapError
from jaxswap.model.device import Device
from jaxswap.model.presets import devices
from jaxswap.verify.verify import Verified, verify

__version__ = "0.1.0.dev0"
__all__ = [
    "BudgetInfeasibleError",
    "Device",
    "JaxswapError",
    "Verified",
    "devices",
    "verify",
]
