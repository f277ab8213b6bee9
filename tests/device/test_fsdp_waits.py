"""Each wait of stock FSDP2 taken away alone is reported."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sharding import fsdp, half
from world import races, together


@contextmanager
def without(lines: list[tuple[str, str]]) -> Iterator[list[str]]:
    """Take waits away: those in these functions of FSDP2 whose line has this text. Gives what was skipped."""
    kind: Any = torch.cuda.Stream
    skipped: list[str] = []

    def leaving_out(method: Any) -> Any:
        def call(self: Any, other: Any) -> None:
            frame = sys._getframe(1)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if "_fully_shard" in frame.f_code.co_filename:
                for function, text in lines:
                    if frame.f_code.co_name == function and text in line:
                        skipped.append(line.strip())
                        return
            method(self, other)

        return call

    before = kind.wait_event, kind.wait_stream
    kind.wait_event, kind.wait_stream = map(leaving_out, before)
    try:
        yield skipped
    finally:
        kind.wait_event, kind.wait_stream = before


# The functions of FSDP2, what their lines say, and a kernel that must be among the races.
WAITS = {
    "copy-in to all-gather": [("foreach_all_gather", "wait_stream(all_gather_copy_in_stream)")],
    "all-gather to copy-out": [("foreach_all_gather_copy_out", "wait_event(all_gather_event)")],
    "compute to reduce-scatter": [("foreach_reduce", "wait_stream(current_stream)")],
    "optimizer to all-gather": [("_root_pre_forward", "wait_stream(current_stream)")],
    "reuse of the all-gather's output": [("_wait_all_gather_streams_on_event", "wait_event(event)")],
    "reuse of the reduce-scatter's input": [
        ("post_backward", "wait_event(oldest.event)"),
        ("_root_post_backward_final_callback", "wait_event(rs_state.event)"),
    ],
    "finalize_backward": [("finalize_backward", "wait_event(event)")],
}


# All of them in bf16; in single precision one stands for the rest, which are wide.
FEW = ("compute to reduce-scatter",)
ALL = [
    *(("half", wait) for wait in WAITS),
    *(pytest.param("single", wait, marks=() if wait in FEW else pytest.mark.wide) for wait in WAITS),
]


@pytest.mark.parametrize(("precision", "wait"), ALL)
def test_each_wait_of_fsdp2_taken_away_alone_is_reported(wait: str, precision: str, tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        with without(WAITS[wait]) as skipped:
            (half if precision == "half" else fsdp)(rank, world, device)
        return len(skipped)

    assert all(together(2, program, tmp_path))
    found = races(tmp_path)
    for race in found[:6]:
        print(race.kind, race.first.kernel, race.second.kernel, race.first.stack[:2], race.second.stack[:2])
    assert found
