"""Stock DeepSpeed, recorded once: what training does in another timing is what a replay says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_deepspeed_races import HPZ, without_the_fix
from zero_cases import FEW, MANY, Case, simulate

from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer

sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded import replayed, replayed_times, seen, times

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")
SLOW = "t1,x60:stream:0"
JITTER = "t1,jitter:80:5"
FP32 = replace(HPZ, more={"steps": 2})
OTHERS = "t1,x9:kernel:nccl::%2A,x3:rank:1"


def recorded(folder: Path, timing: str = "t1", *, case: Case = HPZ) -> Recording:
    return Recording.load(simulate(replace(case, ranks=2), folder, "--record", "--timing", timing))


def test_with_its_synchronisation_hpz_is_the_same_in_every_timing(tmp_path: Path) -> None:
    """DeepSpeed asks events whether they have passed: in a timing that answers as the recorded one, times agree too."""
    replayer = Replayer(recorded(tmp_path / "recorded"))
    replayer.verify()
    for number, timing in enumerate((JITTER, SLOW, OTHERS)):
        there = recorded(tmp_path / f"{number}", timing)
        told, outcome = replayed(replayer, timing)
        assert told == seen(there) == seen(replayer.recording) and outcome.departure is None
        assert timing != JITTER or replayed_times(replayer, timing) == times(there)


def test_without_it_a_replay_diverges_exactly_as_the_live_run_does(tmp_path: Path) -> None:
    with without_the_fix():
        replayer = Replayer(recorded(tmp_path / "recorded", case=FP32))
        there = recorded(tmp_path / "there", SLOW, case=FP32)
    replayer.verify()
    told, outcome = replayed(replayer, SLOW)
    assert told == seen(there) != seen(replayer.recording)
    assert outcome.departure is not None  # the script reads its losses in the end


def test_where_training_goes_another_way_the_replay_says_from_where_on(tmp_path: Path) -> None:
    """In bf16 the host looks whether gradients overflow, and then skips the update: no recording knows what follows."""
    with without_the_fix():
        replayer = Replayer(recorded(tmp_path / "recorded"))
        there = seen(recorded(tmp_path / "there", SLOW))
    then = seen(replayer.recording)
    told, outcome = replayed(replayer, SLOW)
    assert outcome.departure is not None
    name = outcome.departure.operation
    op = replayer.recording.names.number(name)
    first = min(number for rank, kind, number in then if rank == name.rank and kind == "read"
                and there.get((rank, kind, number)) != then[rank, kind, number])  # fmt: skip
    assert first == op and told[name.rank, "read", op] == there[name.rank, "read", op] == outcome.departure.value


_CASES = {**FEW, **MANY}
_SHOWN = ("zero-3 with both offloaded, and DeepSpeed's own Adam", "zero-0 with FusedAdam", "zero-2 offloaded, pinned")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _SHOWN else pytest.mark.wide) for name in _CASES]
)
def test_every_way_to_train_is_replayed_to_the_bit(name: str, tmp_path: Path) -> None:
    case = replace(_CASES[name], more={**_CASES[name].more, "steps": 2})
    replayer = Replayer(Recording.load(simulate(case, tmp_path, "--record")))
    assert replayer.verify().departure is None
