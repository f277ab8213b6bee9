"""A rule takes out the one synchronisation that stands at its place, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from repro.accelerator.device import Rule, Stream
from tests.accelerator.world import Told

SLOW = {"stream:compute": 1000.0}


def nothing(stream: Stream) -> None:
    pass


def order(device: Told, side: Stream, operation: str) -> None:
    compute = device.current_stream()
    if operation == "stream.synchronize":
        compute.synchronize()
    elif operation == "event.synchronize":
        compute.record_event().synchronize()
    elif operation == "stream.wait_stream":
        side.wait_stream(compute)
    elif operation == "stream.wait_event":
        side.wait_event(compute.record_event())
    else:
        device.synchronize()


OPERATIONS = [
    "stream.synchronize",
    "event.synchronize",
    "stream.wait_stream",
    "stream.wait_event",
    "device.synchronize",
]


def races(rules: list[Rule], program: Callable[[Told, Stream], None]) -> list[str]:
    with Told(slow=SLOW) as device:
        device.rules.extend(rules)
        side = device.side()
        a = torch.ones(4)
        program(device, side)
        with device.stream(side):
            a + 1
        return device.races()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_operation_at_the_place_is_taken_out(operation: str) -> None:
    rule = Rule(operation, "order", "test_rules.py", nothing)
    assert races([], lambda device, side: order(device, side, operation)) == []
    assert races([rule], lambda device, side: order(device, side, operation)) == ["write-read compute side"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "elsewhere", [("order", "other.py"), ("another", "test_rules.py"), ("orde", "test_rules.py")], ids=str
)
def test_a_rule_for_another_place_takes_out_nothing(operation: str, elsewhere: tuple[str, str]) -> None:
    rule = Rule(operation, *elsewhere, nothing)
    assert races([rule], lambda device, side: order(device, side, operation)) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rule_for_another_operation_takes_out_nothing(operation: str) -> None:
    rules = [
        Rule(other, "order", "test_rules.py", nothing) for other in [*OPERATIONS, "work.wait"] if other != operation
    ]
    assert races(rules, lambda device, side: order(device, side, operation)) == []


def test_what_stands_there_instead_is_done() -> None:
    waiting: list[Stream] = []

    def instead(stream: Stream) -> None:
        waiting[0].wait_stream(stream)

    def program(device: Told, side: Stream) -> None:
        waiting.append(side)
        order(device, side, "stream.synchronize")

    assert races([Rule("stream.synchronize", "order", "test_rules.py", instead)], program) == []


def test_a_read_is_no_synchronisation_that_can_be_taken_out() -> None:
    with Told(slow=SLOW) as device:
        device.rules.extend(Rule(operation, "", "", nothing) for operation in [*OPERATIONS, "work.wait"])
        assert torch.ones(1).item() == 1
