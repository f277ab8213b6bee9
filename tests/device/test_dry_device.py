"""The device of a rank on a dry run, as who runs a scenario sees it: what it counts, and what it tells who asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.trace.files import TraceReader
from streamrace.trace.records import HostStep, HostWait


def begin(folder: Path, *, answers: bool = True) -> Any:
    from streamrace.device import dry
    from streamrace.device.device import Device
    from streamrace.device.hardware import HardwareTiming, load_profile

    timing = HardwareTiming(load_profile("a100-100gbps"), (0,))
    dry.install(dry.World(), profile=timing.profile, answers=answers)
    device = Device(timing)
    device.begin(folder / "rank0.trace", {})
    return device


def test_floating_point_operations_are_counted_for_each_launch(tmp_path: Path) -> None:
    """Twice the numbers that a product multiplies; its backward pass has two products. Sums count nothing."""
    device = begin(tmp_path)
    left, right = torch.empty(64, 4096, device="cuda"), torch.empty(4096, 8192, device="cuda", requires_grad=True)
    assert device.flops == 0
    one = 2 * 64 * 4096 * 8192
    for number in (1, 2, 3):
        product = left @ right
        assert device.flops == number * one
    product.sum().backward()
    assert device.flops == 4 * one, "left needs no gradient"


@pytest.mark.parametrize("answers", [True, False])
def test_who_asks_may_be_told_that_no_work_is_done_yet(answers: bool, tmp_path: Path) -> None:
    """Then what a program does does not depend on the timing. Waiting helps as ever."""
    device = begin(tmp_path, answers=answers)
    event = torch.cuda.Event()
    torch.empty(1 << 20, device="cuda").zero_()
    event.record()
    torch.cuda.synchronize()
    assert event.query() is answers and torch.cuda.current_stream().query() is answers
    event.synchronize()
    device.finish()
    records = list(TraceReader(tmp_path / "rank0.trace").read())
    asked = [one for one in records if isinstance(one, HostStep) and one.how == "asked"]
    queries = [one for one in records if isinstance(one, HostWait) and one.how == "query"]
    assert (len(asked), len(queries)) == ((0, 2) if answers else (2, 0))
