"""A race of a user's own program gets a witness: the program runs again with the two accesses in the opposite order."""

from __future__ import annotations

import resource
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamrace.detectors import find_races
from streamrace.detectors.order.races import Race
from streamrace.device.timing import Delay, Timing
from streamrace.fuzz.live.harm import LiveWitness, examine
from streamrace.fuzz.live.runs import Runner, UnwrittenTrace
from streamrace.trace.files import file_of
from tests.warm import ROOT, with_simulated_gpu

pytestmark = pytest.mark.host

FOUR_RACES = """
import torch
side = torch.cuda.Stream()
a = torch.ones(4, 4, device="cuda")

def changes_what_is_printed():
    b = a @ a
    with torch.cuda.stream(side):
        c = b.sum()
    torch.cuda.synchronize()
    print(c.item())

def nobody_uses_what_it_reads():
    a.mul_(2)
    with torch.cuda.stream(side):
        a.sum()
    torch.cuda.synchronize()
    print(a.sum().item())

def the_host_looks_before_the_copy_has_ended():
    there = torch.zeros(4).pin_memory()
    there.copy_(a[0], non_blocking=True)
    print(there.sum().item())
    torch.cuda.synchronize()

def is_one_too_many():
    a.add_(1)
    with torch.cuda.stream(side):
        a.prod()

changes_what_is_printed()
nobody_uses_what_it_reads()
the_host_looks_before_the_copy_has_ended()
is_one_too_many()
"""

# What is written differs from what lay there in the occurrence {changes} of 24 alone.
OFTEN = """
import torch
side = torch.cuda.Stream()
a = torch.zeros(4, device="cuda")
for step in range(24):
    a.fill_(float(step >= {changes}))
    with torch.cuda.stream(side):
        b = a.sum()
    torch.cuda.synchronize()
    print(b.item())
"""

# Each product ends long after it was read: where one of the two is put right, the other still spoils the sum.
SHOWN_TWICE = """
import torch
side = torch.cuda.Stream()
a = torch.ones(4, 4, device="cuda")
total = torch.zeros((), device="cuda")
torch.cuda.synchronize()
for _ in range(2):
    b = a @ a
    with torch.cuda.stream(side):
        total.add_(b[0, 0])
torch.cuda.synchronize()
print(total.item())
"""

UNREPEATABLE = """
import os
import torch
side = torch.cuda.Stream()
a = torch.full((4,), float(os.getpid()), device="cuda")
with torch.cuda.stream(side):
    b = a + 1
torch.cuda.synchronize()
print(b.sum().item())
"""

# The second collective neither waits for the first, nor can it come before: they are of one communicator.
RANKS = """
import os
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
a = torch.ones(4, device="cuda")
torch.cuda.synchronize()
work = dist.all_reduce(a, async_op=True)
if dist.get_rank() == 1:
    b = a + 1
    print(b.sum().item())
torch.cuda.synchronize()
work = dist.all_reduce(a, async_op=True)
dist.all_reduce(a)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """One process from which all programs here are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        with Runner() as one:
            yield one


def judged(
    runner: Runner, folder: Path, script: str, *options: str, timing: str = "t1"
) -> tuple[list[Race], list[str]]:
    """The races of a first run, and what ran."""
    (folder / "train.py").write_text(script)
    command = [*options, str(folder / "train.py")]
    trace = str(folder) if options else str(file_of(folder, 0))
    assert runner.run(["--trace", trace, "--timing", timing, *command]) == 0
    return find_races(folder), command


def test_a_race_is_harmful_where_the_program_sees_another_value_and_else_benign(tmp_path: Path, runner: Runner) -> None:
    races, command = judged(runner, tmp_path, FOUR_RACES)
    assert [race.manifested for race in races] == [0, 0, 2, 0]
    witnesses = examine(tmp_path, races, command, limit=3, runner=runner)
    assert [witness.race for witness in witnesses] == races
    assert [(witness.verdict, witness.says) for witness in witnesses] == [
        (
            "harmful",
            "in the opposite order, what the host reads by "
            "_local_scalar_dense (train.py:11 changes_what_is_printed) differs (64 becomes nan)",
        ),
        ("benign", "in the opposite order, the program sees the same"),
        (
            "harmful",
            "in the opposite order, what the host reads by "
            "sum (train.py:23 the_host_looks_before_the_copy_has_ended) differs",
        ),
        ("not confirmed", "not examined, as only 3 races are"),
    ]
    # A token delays the access that came first; where the run itself shows the race, its own timing is the witness.
    delays = [[one.place.kernel for one in deviations(witness)] for witness in witnesses[:3]]
    assert delays == [["aten::mm"], ["aten::mul"], []]
    assert [bool(witness.token) for witness in witnesses] == [True, True, True, False]

    # The command shows it again to anybody: the sum of what lay there before the product, and a race that was shown.
    harmful = witnesses[0]
    assert harmful.command == f"streamrace device --timing {harmful.token} {command[0]}"
    (tmp_path / "again").mkdir()
    trace = file_of(tmp_path / "again", 0)
    done = with_simulated_gpu().run("-m", "streamrace.device", "--trace", str(trace), *shlex.split(harmful.command)[2:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["nan", "32.0"]
    assert find_races(tmp_path / "again")[0].manifested == 1


def deviations(witness: LiveWitness) -> list[Delay]:
    return [one for one in Timing.parse(witness.token).deviations if isinstance(one, Delay)]


def test_benign_is_said_of_occurrences_from_the_whole_run_and_how_many_they_were(
    tmp_path: Path, runner: Runner
) -> None:
    told = []
    for changes in (0, 12, 23, 24):
        (tmp_path / str(changes)).mkdir()
        races, command = judged(runner, tmp_path / str(changes), OFTEN.format(changes=changes))
        (witness,) = examine(tmp_path / str(changes), races, command, runner=runner)
        assert witness.race.occurrences == 24 > len(witness.race.examples)
        told.append((witness.verdict, [one.place.occurrence for one in deviations(witness)]))
    assert told == [("harmful", [1]), ("harmful", [13]), ("harmful", [24]), ("benign", [1])]
    assert witness.says == (
        "in the opposite order in 4 of its 24 occurrences, one at a time, the program sees the same"
    )


def test_a_race_that_shows_more_than_once_is_judged_in_a_timing_where_it_does_not(
    tmp_path: Path, runner: Runner
) -> None:
    slow = "t1,x20:kernel:aten::mm"
    races, command = judged(runner, tmp_path, SHOWN_TWICE, timing=slow)
    (race,) = [race for race in races if race.first.kernel == "aten::mm"]
    assert race.manifested == 2
    (witness,) = examine(tmp_path, [race], command, timing=Timing.parse(slow), runner=runner)
    assert (witness.verdict, witness.says) == (
        "harmful",
        "in the opposite order, what the host reads by _local_scalar_dense (train.py:12 <module>) differs "
        "(8 becomes nan)",
    )
    assert witness.token.startswith(f"{slow},x1000:host,0/0/aten::mm/")


def test_a_program_that_does_not_repeat_itself_confirms_nothing(tmp_path: Path, runner: Runner) -> None:
    races, command = judged(runner, tmp_path, UNREPEATABLE)
    (witness,) = examine(tmp_path, races, command, runner=runner)
    assert (witness.verdict, witness.token, witness.command) == ("not confirmed", "", "")
    assert witness.says == (
        "a second run in the same timing differs by itself: what the host reads by "
        "_local_scalar_dense (train.py:9 <module>)"
    )


def test_a_race_between_ranks_names_its_rank_and_what_cannot_be_reversed_says_why(
    tmp_path: Path, runner: Runner
) -> None:
    races, command = judged(runner, tmp_path, RANKS, "--ranks", "2")
    witnesses = examine(tmp_path, races, command, runner=runner)
    told = [(one.race.first.kernel, one.race.second.kernel, one.verdict, one.says) for one in witnesses]
    late = "all_reduce on stream 0 comes after all_reduce on stream 1 however late that is"
    assert told == [
        ("nccl::all_reduce", "nccl::all_reduce", "not confirmed", late),
        ("nccl::all_reduce", "nccl::all_reduce", "not confirmed", late),
        (
            "nccl::all_reduce",
            "aten::add",
            "harmful",
            "in the opposite order, what the host reads on rank 1 by "
            "_local_scalar_dense (train.py:12 <module>) differs (12 becomes 8)",
        ),
    ]


# The collective's last write is seen by nobody; how the program ends is, if that counted where its trace is cut off.
SUM_OF_RANKS = """
import os
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
a = torch.ones(4, device="cuda")
work = dist.all_reduce(a, async_op=True)
a.sum()
torch.cuda.synchronize()
for _ in range(500):
    a.add_(1)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_run_whose_trace_could_not_be_written_is_no_witness(ranks: int, tmp_path: Path, runner: Runner) -> None:
    """It ends otherwise, and earlier, than the run with which it is compared: that is the disk's doing."""
    script, options = (SUM_OF_RANKS, ["--ranks", "2"]) if ranks else (OFTEN.format(changes=0), [])
    races, command = judged(runner, tmp_path, script, *options)
    place = resource.RLIMIT_FSIZE
    before = resource.prlimit(runner.pid, place)
    resource.prlimit(runner.pid, place, (4000, before[1]))
    try:
        with pytest.raises(UnwrittenTrace, match="^the trace cannot be written: .*File too large"):
            examine(tmp_path, races, command, runner=runner)
    finally:
        resource.prlimit(runner.pid, place, before)


def test_without_a_race_nothing_runs(tmp_path: Path) -> None:
    assert examine(tmp_path, [], ["train.py"]) == []
