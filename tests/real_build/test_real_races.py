"""The recorder of a GPU, on torch's real CUDA build, finds the races that the simulated device gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.scenarios.catalogue.entry import Entry, entries
from tests.real_build.building import RealBuild
from tests.real_build.recorded import Recorded, pairs
from tests.real_build.running import PROGRAMS, hpz

pytestmark = [pytest.mark.real_build, pytest.mark.timeout(900)]


def test_hpz_on_four_ranks_has_no_race(real: RealBuild, tmp_path: Path) -> None:
    of = Recorded(real, tmp_path, hpz(tmp_path), ranks=4)
    assert pairs(of.theirs) == pairs(of.own) == set()


def test_hpz_without_its_synchronisation_races_at_the_lines_of_deepspeed(real: RealBuild, tmp_path: Path) -> None:
    wait = ("synchronize", "_partition_param_sec", "current_stream().synchronize()")
    of = Recorded(real, tmp_path, PROGRAMS / "without.py", *wait, hpz(tmp_path), ranks=4)
    ((kind, (first, _), (second, _)),) = pairs(of.own)
    assert (kind, first, second) == ("overlap", "partition_parameters.py", "partition_parameters.py")
    assert pairs(of.theirs) == pairs(of.own)


def _needs_only_torch(one: Entry) -> bool:
    return one.races and one.gpus == 1 and one.compile == "eager" and not (one.affected.packages or one.fixed.packages)


# FSDP2 with each of its waits taken away is among them. The fake libraries capture no graph.
ENTRIES = [one for one in entries() if _needs_only_torch(one) and "torch.cuda.graph(" not in one.path.read_text()]
# The host waits in DDP for the events with which it measures its first steps: this hides one of two races.
_MEASURED = "pt-ddp-mixed-precision"


@pytest.mark.parametrize("one", ENTRIES, ids=lambda one: one.id)
def test_a_bug_of_the_catalogue_has_the_same_races(real: RealBuild, tmp_path: Path, one: Entry) -> None:
    of = Recorded(real, tmp_path, one.path, *one.affected.arguments, ranks=one.ranks if one.ranks > 1 else 0)
    found = pairs(of.own)
    if one.id == _MEASURED:
        (hidden,) = (race for race in found if race[0] == "reused")
        found.remove(hidden)
    assert found
    assert pairs(of.theirs) == found
