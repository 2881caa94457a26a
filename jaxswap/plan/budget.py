"""Budget: how many device bytes may the step take?

Input: what the user wrote and a `Device`. Output: bytes.
A whole number is bytes, text is a size, a number up to one is a share of the device.
"""

from jaxswap._errors import BadArgumentError
from jaxswap._units import format_bytes, parse_bytes
from jaxswap.model.device import Device

Budget = str | int | float

# Of the device, where no budget is given: the rest is for fragmentation and library workspaces.
DEFAULT_SHARE = 0.95


def parse_budget(budget: Budget, device: Device, *, name: str = "budget") -> int:
    """Turns `"10GiB"`, `10 * 2**30` or `0.8` into a number of bytes.

    Example:
        >>> parse_budget(0.5, Device.named("h100-sxm")) * 2 <= Device.named("h100-sxm").memory_bytes
        True
    """
    if isinstance(budget, bool) or not isinstance(budget, str | int | float):
        raise BadArgumentError(
            f"`{name}={budget!r}` is not a size: write bytes (10737418240), text "
            '("10GiB"), or a share of the device (0.8).'
        )
    if isinstance(budget, str):
        size_bytes = parse_bytes(budget, name=name)
    elif isinstance(budget, float) and 0 < budget <= 1:
        size_bytes = int(budget * device.memory_bytes)
    elif isinstance(budget, float) and not budget.is_integer():
        raise BadArgumentError(
            f"`{name}={budget!r}` is neither bytes nor a share of the device: shares go from 0 to "
            f"1, of the {format_bytes(device.memory_bytes)} that `{device.name}` has."
        )
    else:
        size_bytes = int(budget)
    if size_bytes <= 0:
        raise BadArgumentError(
            f"`{name}={budget!r}` leaves no memory at all: write a size above zero, such as "
            f'"{format_bytes(device.memory_bytes // 2)}".'
        )
    return size_bytes
