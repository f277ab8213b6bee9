"""torch's profiler on the device: its CUDA times are the virtual ones, and a profile changes nothing that is judged."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from judged import story
from torch.profiler import ProfilerActivity, profile, record_function


def profiled(**how: Any) -> Any:
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **how)


def work(side: torch.cuda.Stream, *, waits: bool) -> torch.Tensor:
    made = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    with torch.cuda.stream(side), record_function("aside"):
        if waits:
            side.wait_stream(torch.cuda.default_stream())
        torch.cuda._sleep(1_410_000)
        out = made * 2
    torch.cuda.current_stream().wait_stream(side)
    return out


def test_a_profile_has_the_devices_virtual_times_and_is_written_as_torch_writes_it(tmp_path: Path) -> None:
    with story(), profiled(with_stack=True, record_shapes=True) as told:
        work(torch.cuda.Stream(), waits=True)
    averages = told.key_averages()
    assert "Self CUDA" in averages.table(sort_by="cuda_time_total")
    aside = next(one for one in averages if one.key == "aside")
    assert aside.device_time_total == pytest.approx(1000, rel=0.1)  # the sleep of a millisecond, and what it waited for
    assert next(one for one in averages if one.key == "aten::mm").self_device_time_total > 0
    told.export_chrome_trace(str(tmp_path / "trace.json"))
    assert any(one["name"] == "aten::mm" for one in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


def test_a_profile_orders_nothing() -> None:
    side = torch.cuda.Stream()
    for waits, races in ((True, []), (False, [("aten::mm", "aten::mul")])):
        with story() as told, profiled(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work(side, waits=waits)
        assert told.pairs == races
