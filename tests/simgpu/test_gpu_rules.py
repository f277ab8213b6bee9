"""A rule takes out the one synchronisation that stands at its place."""

from __future__ import annotations

import pytest
import torch
from judged import story

from simgpu.rules import Rule, put


def order(side: torch.cuda.Stream, operation: str) -> None:
    compute = torch.cuda.current_stream()
    if operation == "stream.synchronize":
        compute.synchronize()
    elif operation == "stream.wait_stream":
        side.wait_stream(compute)
    elif operation == "stream.wait_event":
        side.wait_event(compute.record_event())
    else:
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    "operation", ["stream.synchronize", "stream.wait_stream", "stream.wait_event", "device.synchronize"]
)
@pytest.mark.parametrize(("function", "races"), [("order", 1), ("another", 0)])
def test_the_operation_at_the_place_is_taken_out_and_no_other(operation: str, function: str, races: int) -> None:
    put([Rule(operation, function, "test_gpu_rules.py", lambda stream: None)])
    side = torch.cuda.Stream()
    with story() as told:
        a = torch.ones(4, device="cuda")
        order(side, operation)
        with torch.cuda.stream(side):
            b = a + 1
        torch.cuda.synchronize(b.device) if operation != "device.synchronize" else side.synchronize()
    assert len(told.races) == races


@pytest.mark.host
def test_a_rule_that_could_never_stand_anywhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no rule can take out 'event.synchronize' here"):
        put([Rule("event.synchronize", "order", "train.py", lambda stream: None)])
