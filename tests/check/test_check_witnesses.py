"""What a race does: the program runs again, in a timing that executes its two accesses the other way round."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path
from typing import cast

import pytest

from streamrace.detectors import Race
from streamrace.device.timing import Timing
from streamrace.fuzz.live.runs import UnwrittenTrace
from streamrace.repro.sessions.witness_runs import WitnessRequest
from tests.check.conftest import Check, Done

RACE = """
    import torch

    matrix = torch.full((512, 512), 2.0, device="cuda")
    kept = torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    {made}
    with torch.cuda.stream(side):
        read = {read}
    torch.cuda.synchronize()
    print("came to", read.sum().item())
"""


def words_of(done: Done) -> tuple[str, str, str]:
    (race,) = done.findings["races"]
    witness = race["witness"]
    return witness["verdict"], witness["says"], witness["command"]


def test_a_race_that_changes_a_value_is_harmful_and_the_command_shows_it_again(check: Check) -> None:
    """Nothing orders the write before the read, which is late enough here: the side stream is busy."""
    late = "(matrix @ matrix)[:1].new_zeros(4) + kept"
    check.script(RACE.format(made="kept.add_(1)", read=late))
    done = check("--witnesses", "1", "train.py")
    assert done.status == 1, done.err
    assert "came to 4.0" in done.out
    verdict, says, command = words_of(done)
    assert verdict == "harmful", says
    assert f"Race 1 is harmful: {says}." in done.told
    assert says.endswith("_local_scalar_dense (train.py:11 <module>) differs (4 becomes 0)"), "the value, in both"
    assert command in done.told

    ours, name, *words = shlex.split(command)
    assert (ours, name) == ("streamrace", "check")
    again = check("--overwrite", *words)
    assert again.status == 1
    assert "came to 0.0" in again.out
    assert again.findings["races"][0]["manifested"] == 1


@pytest.mark.parametrize(
    ("before", "written", "looked", "shows"),
    [
        ("6.3956", "6.3960", "read[0].item()", " differs (6.396 becomes 6.3956: the 5th digit)"),
        ("float('nan')", "0.41", "read[:1].cpu()", " differs (0.41 becomes nan)"),
        ("0", "1", "read.cpu()", " differs"),
    ],
)
def test_the_number_that_changes_is_shown_and_of_a_tensor_that_it_does(
    check: Check, before: str, written: str, looked: str, shows: str
) -> None:
    made = f"kept.fill_({before}); torch.cuda.synchronize(); kept.fill_({written})"
    program = RACE.format(made=made, read="(matrix @ matrix)[:1].new_zeros(4) + kept")
    check.script(program.replace("read.sum().item()", looked))
    verdict, says, _ = words_of(check("--witnesses", "1", "train.py"))
    assert verdict == "harmful" and says.endswith(shows), says


def test_a_race_that_changes_nothing_is_benign(check: Check) -> None:
    check.script(RACE.format(made="kept.add_(0)", read="(matrix @ matrix)[:1].new_zeros(4) + kept"))
    verdict, says, _ = words_of(check("--witnesses", "1", "train.py"))
    assert (verdict, says) == ("benign", "in the opposite order, the program sees the same")


def test_of_a_program_that_never_runs_twice_alike_nothing_is_claimed(check: Check) -> None:
    check.script(RACE.format(made="import os; kept.add_(os.getpid())", read="kept + 1"))
    verdict, says, command = words_of(check("--witnesses", "1", "train.py"))
    assert verdict == "not confirmed" and not command
    assert says.startswith("a second run in the same timing differs by itself: ")


def test_what_no_token_can_say_is_said(check: Check) -> None:
    check.script(RACE.format(made="kept.add_(1)", read="kept + 1"))
    _, says, _ = words_of(check("--witnesses", "1", "--slow", "kernel:*=1.5", "train.py"))
    assert says == "no token can say what --slow asks for: give whole factors from 2 on"


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp"), "cannot write /tmp: No space left on device"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found"), "cannot use a file: No usable"),
        (UnwrittenTrace("the trace cannot be written: [Errno 28]"), "the trace cannot be written: [Errno 28]"),
    ],
)
def test_where_there_is_no_room_for_what_it_is_compared_with_the_verdict_stays(
    problem: Exception, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("streamrace.fuzz.live.harm.examine", examine)
    again = WitnessRequest(["train.py"], Timing(), limit=1, took_s=1.0)
    (one, other) = again(tmp_path / "trace", [cast(Race, object())] * 2)
    assert one == other and one.verdict == "not confirmed"
    assert one.says.startswith(f"the program cannot be run again: {says}")
    assert not [*tmp_path.iterdir()]


TWO = """
    import os, signal, sys
    import torch

    matrix = torch.full((512, 512), 2.0, device="cuda")
    one, other = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    one.add_(1)
    with torch.cuda.stream(side):
        first = (matrix @ matrix)[:1].new_zeros(4) + one
    torch.cuda.synchronize()
    other.add_(1)
    with torch.cuda.stream(side):
        second = (matrix @ matrix)[:1].new_zeros(4) + other
    torch.cuda.synchronize()
    with open("runs.txt", "a+") as runs:
        runs.write("x")
        before = runs.tell()
    if not os.path.exists("command.txt"):
        open("command.txt", "w").write(str(os.getppid()))
    if before == int(sys.argv[1]):
        os.kill(int(open("command.txt").read()), signal.Signals[sys.argv[2]])
        signal.pause()
    print(first.sum().item(), second.sum().item())
"""


@pytest.mark.parametrize("signal", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.wide)])
def test_what_was_settled_when_it_was_interrupted_stays(check: Check, signal: str) -> None:
    """The first run is judged, the second is the control, the third is the first race's; the fourth asks to end."""
    check.script(TWO)
    done = check("--witnesses", "8", "train.py", "4", signal)
    assert done.status == 1, done.err
    first, second = (race["witness"] for race in done.findings["races"])
    assert (first["verdict"], second["verdict"]) == ("harmful", "not confirmed"), (first, second)
    assert second["says"].startswith("interrupted after ")
    assert shlex.split(first["command"])


def test_two_races_that_one_delay_turns_take_one_run(check: Check) -> None:
    """The judged run, the control, and the witness of both."""
    check.script("""
        import torch

        side = torch.cuda.Stream()
        one = torch.ones(64, 64, device="cuda")
        made = one @ one
        with torch.cuda.stream(side):
            torch.zeros(1, device="cuda")
            first = made.sum()
            second = made.amax()
        torch.cuda.synchronize()
        print(first.item(), second.item(), file=open("ran", "a"))
    """)
    done = check("--witnesses", "2", "train.py")
    witnesses = [race["witness"] for race in done.findings["races"]]
    assert [one["verdict"] for one in witnesses] == ["harmful"] * 2
    assert witnesses[0]["token"] == witnesses[1]["token"]
    assert len((check.folder / "ran").read_text().splitlines()) == 3


READS = """
    import torch

    product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    there_before = torch.zeros(64, 64, device="cuda")
    one, other = torch.zeros(64, 64).pin_memory(), torch.zeros(64, 64).pin_memory()
    torch.cuda.synchronize()
    one.copy_({one} + 0, non_blocking=True)
    print(one.sum().item())
    other.copy_({other} + 0, non_blocking=True)
    print(other.sum().item())
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("harmful", "benign"),
        ("benign", "harmful"),
        *(pytest.param(both, both, marks=pytest.mark.wide) for both in ("harmful", "benign")),
    ],
)
def test_each_early_read_of_the_host_is_judged_alone(check: Check, one: str, other: str) -> None:
    """Delayed, the first read comes right, and with it the second, which is later still: that one is put back."""
    given = {"harmful": "product", "benign": "there_before"}
    check.script(READS.format(one=given[one], other=given[other]))
    done = check("--witnesses", "2", "train.py")
    assert done.status == 1, done.err
    assert [race["witness"]["verdict"] for race in done.findings["races"]] == [one, other]


def test_a_race_of_streams_does_not_lend_its_harm_to_a_read_of_the_host(check: Check) -> None:
    check.script("""
        import torch

        matrix = torch.full((512, 512), 2.0, device="cuda")
        kept, same = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        there = torch.zeros(4).pin_memory()
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        there.copy_(same + 0, non_blocking=True)
        print(there.sum().item())
        kept.add_(1)
        with torch.cuda.stream(side):
            read = kept * 2
        torch.cuda.synchronize()
        print(read.sum().item())
    """)
    done = check("--witnesses", "2", "train.py")
    assert [race["witness"]["verdict"] for race in done.findings["races"]] == ["benign", "harmful"]


def test_a_token_that_is_none_is_one_sentence(check: Check) -> None:
    check.script("print('started')\n")
    done = check("--timing", "t9,nonsense", "train.py")
    assert (done.status, done.out) == (2, "")
    assert "Traceback" not in done.err and "t9" in done.err
