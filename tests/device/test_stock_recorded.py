"""Stock DDP and FSDP, recorded once: in another timing a replay has the live run's times and values."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import live, same
from stock import DDP, FSDP1, FSDP2, HYBRID1, HYBRID2, warm
from test_recording_ranks import on_the_device

from streamrace.replay.replayer import Replayer

TIMING = "t1,jitter:90:4"
WAYS = {**DDP, **FSDP1, **FSDP2}
SHOWN = ("ddp", "ddp, fp16 with an overflow", "fsdp1, offloaded", "fsdp2, bf16")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHOWN else pytest.mark.wide) for name in WAYS])
def test_a_replay_of_two_ranks_is_the_live_run(name: str, tmp_path: Path) -> None:
    _compare(name, 2, tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("name", {**HYBRID1, **HYBRID2})
def test_a_replay_of_four_ranks_is_the_live_run(name: str, tmp_path: Path) -> None:
    _compare(name, 4, tmp_path)


def _compare(name: str, world: int, folder: Path) -> None:
    warm()
    program = on_the_device({**WAYS, **HYBRID1, **HYBRID2}[name])
    replayer = Replayer(live(program, folder / "recorded", world=world))
    replayer.verify()
    assert same(replayer, live(program, folder / "there", TIMING, world=world), TIMING).departure is None
