"""Budgets: every form that is taken, and a message for every form that is not."""

import pytest

from jaxswap._errors import BadArgumentError
from jaxswap.model.device import Device
from jaxswap.plan.budget import parse_budget

DEVICE = Device.named("rtx4090")


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("10GiB", 10 * 2**30),
        ("10 GB", 10 * 10**9),
        (123, 123),
        (1e9, 10**9),
        (0.5, DEVICE.memory_bytes // 2),
        (1.0, DEVICE.memory_bytes),
        (1, 1),
    ],
)
def test_forms(budget, expected):
    assert parse_budget(budget, DEVICE) == expected


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("ten", "is not a size: write a number and a unit"),
        ("-3GiB", "is not a size: write a number and a unit"),
        (0, "leaves no memory at all"),
        (-5, "leaves no memory at all"),
        (-0.5, "is neither bytes nor a share"),
        (1.5, "shares go from 0 to 1, of the 23.64 GiB"),
        (None, "is not a size: write bytes"),
        (True, "is not a size: write bytes"),
        ([1], "is not a size: write bytes"),
    ],
)
def test_messages(budget, message):
    with pytest.raises(BadArgumentError, match=message):
        parse_budget(budget, DEVICE)


def test_the_argument_is_called_by_its_name():
    with pytest.raises(BadArgumentError, match="`host_budget=0`"):
        parse_budget(0, DEVICE, name="host_budget")
