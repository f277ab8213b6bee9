"""A race as a test that stands by itself: it fails while the race is there, passes when it is mended, and never passes
for want of a look.
"""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from streamrace.detectors.identity import LastingKey
from streamrace.device.timing import Timing
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.live.standalone import Alone, standing
from streamrace.fuzz.reduction.race_predicate import Shows
from streamrace.fuzz.testing import programs
from streamrace.fuzz.testing.programs import Judgement, StreamRaceWarning, judged
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import regression_test
from tests.check.conftest import Checking
from tests.warm import ROOT, shell, with_simulated_gpu

LIBRARY = """
    import torch

    side = torch.cuda.Stream()


    def produce(x):
        return x @ x


    def consume(x):
        WAIT
        with torch.cuda.stream(side):
            return x.sum()
"""
PROGRAM = """
    '''Reads what is not there yet.'''
    # /// catalogue
    # title = "a race"
    # ///
    import sys
    import torch
    from near import consume, produce

    torch.manual_seed(0)
    print(sys.argv)
    unused = {"a": 1}
    for step in range(3):
        a = torch.ones(8, 8, device="cuda")
        torch.cuda.synchronize()
        b = produce(a)
        c = consume(b)
        torch.cuda.synchronize()  # or steps race
        a.zero_()
        print(c.item())
"""
PAIR = LastingKey(
    "write-read",
    ("aten::mm", "write", ("near.py", "produce")),
    ("aten::sum", "read", ("near.py", "consume")),
    None,
)
SYNCHRONIZE = "torch.cuda.synchronize()  # or steps race"
WAIT = "side.wait_stream(torch.cuda.current_stream())"
BETWEEN = ("near.py:produce", "near.py:consume")
LATE = Timing.parse("t1,0/0/aten::mm/1+64us")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(variables={**shell(), "DS_ACCELERATOR": None}) as one:
        yield one


def look(
    runner: Runner, wait: str, text: str = PROGRAM, timing: Timing = LATE, beside: Any = (), **changed: str
) -> Judgement:
    library = dedent(LIBRARY).replace("WAIT", wait)
    for old, new in changed.items():
        library = library.replace(old, new)
    with standing(Alone({"train.py": dedent(text), "near.py": library}), runner, 100.0) as runs:
        return judged(runs, BETWEEN, timing, Timing(), beside)


def test_the_race_fails_with_both_lines_and_the_wait_that_is_missing(runner: Runner) -> None:
    found = look(runner, "pass")
    first, *_ = found.problem.splitlines()
    assert first == (
        "stream race: the read by sum at near.py:14 consume is not ordered after the write by mm at near.py:8 produce"
    )
    assert "Missing: stream 1 never waits for stream 'default' after mm (near.py:8 produce)" in found.problem
    told = "In the timing t1,0/0/aten::mm/1+64us what the host reads by _local_scalar_dense (train.py:20 <module>)"
    assert found.problem.endswith(f"{told} differs.")


def test_with_the_wait_there_is_nothing_to_say(runner: Runner) -> None:
    assert look(runner, WAIT) == Judgement()


def test_where_a_place_is_gone_no_race_at_all_may_be_left(runner: Runner) -> None:
    renamed = PROGRAM.replace("consume", "use")
    gone = "The program does not come by near.py:consume any more: what was there may be elsewhere."
    assert gone in look(runner, "pass", renamed, consume="use").problem
    found = look(runner, WAIT, renamed, consume="use")
    assert found == Judgement(notes=("the program does not come by near.py:consume any more: it has no race at all",))


def test_a_race_elsewhere_fails_too_but_for_one_that_is_known(runner: Runner) -> None:
    other = PROGRAM.replace("c = consume(b)", "c = consume(b)\n        b.add_(1)")
    first, second, *_ = look(runner, WAIT, other).problem.splitlines()
    assert first.startswith(
        "stream race: the write by add at train.py:18 <module> is not ordered after the read by sum"
    )
    assert second == "None is between near.py:produce and near.py:consume any more, but this one was not there."
    found = look(runner, WAIT, other, beside=[("near.py:consume", "train.py:<module>")])
    assert found.problem == ""
    (note,) = found.notes
    assert note == (
        "the known race of the read by sum at near.py:14 consume and the write by add at train.py:18 <module> is still "
        "there: values were not compared, as it may change them"
    )


def test_what_orders_the_two_by_chance_is_told(runner: Runner) -> None:
    (note,) = look(runner, "x.max().item()").notes
    assert note == "only by chance: the read at near.py:12 consume orders the two"


def test_a_timing_of_work_that_is_gone_is_told(runner: Runner) -> None:
    (note,) = look(runner, WAIT, timing=Timing.parse("t1,0/0/aten::mm/9+64us")).notes
    assert note.endswith("there is no 9. aten::mm on stream 0 of rank 0 any more")


def test_what_goes_by_the_time_fails_though_all_is_ordered(runner: Runner) -> None:
    asks = PROGRAM.replace("print(c.item())", "print(c.item(), torch.ones(1, device='cuda') * early)").replace(
        "c = consume(b)", "c = consume(b); time.sleep(0); early = torch.cuda.current_stream().query()"
    )
    problem = look(runner, WAIT, asks.replace("import sys", "import sys, time")).problem
    assert problem.startswith("no race is seen, and yet values depend on timing: what the host reads by")


def test_of_a_program_that_fails_nothing_is_known(runner: Runner) -> None:
    problem = look(runner, WAIT, PROGRAM + "    raise ValueError('broken off')\n").problem
    assert problem.startswith("nothing is known of the race: the program ends with status 1")
    assert problem.endswith("ValueError: broken off")
    assert (
        look(runner, WAIT, "pass").problem == "nothing is known of the race: the program issues no work to the device"
    )


def test_a_smaller_program_has_the_race_and_its_harm_and_no_race_that_was_not_there(runner: Runner) -> None:
    whole = {"train.py": dedent(PROGRAM), "near.py": dedent(LIBRARY).replace("WAIT", "pass")}

    def without(*lines: str) -> dict[str, str]:
        text = whole["train.py"]
        for line in lines:
            assert line in text
            text = text.replace(line, "pass")
        return {**whole, "train.py": text}

    everything = Shows(Alone(whole), PAIR, Timing(), runner, 100.0)
    look = everything.look(whole, twice=True)
    assert look.race and look.witness and look.witness.verdict == "harmful"
    shows = replace(everything, harm="harmful", known=look.keys)
    assert shows(without('unused = {"a": 1}'))
    assert shows.look(without(SYNCHRONIZE)).why == "it has races that were not there"
    unread = without("print(c.item())", "c = consume(b)")
    assert shows.look(unread).why == "it has no races, and not this one"
    assert shows.look(without("import torch")).why.startswith("it ends with status 1 (NameError: ")


def test_a_checked_race_becomes_a_test_of_what_shows_it(
    check: Checking, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mended, the same file passes."""

    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[Runner]:
        yield runner

    monkeypatch.setattr(regression_test, "Runner", shared)
    monkeypatch.setattr(programs, "Runner", shared)
    check.script(PROGRAM)
    check.script(LIBRARY.replace("WAIT", "pass"), "near.py")
    assert check("train.py", "--its", "own").status == 1
    monkeypatch.chdir(check.folder)
    main(["emit-test", "runs/it", "near.py:produce,near.py:consume", "--trials", "2"])
    told = capsys.readouterr().out
    assert told.startswith("test_sum_in_consume_waits_for_mm_in_produce: 29 lines of 32, 2 trials")
    assert "Not every removal was tried" in told
    file = Path("runs/it/test_race_1.py")
    text = file.read_text()
    assert text.startswith('"""The sum in consume has to wait for the mm in produce.\n\nReads what is not there yet.\n')
    assert "# /// catalogue" not in text
    assert "for step in range(1):" in text

    def run() -> None:
        runpy.run_path(str(file))["test_sum_in_consume_waits_for_mm_in_produce"]()

    with pytest.raises(pytest.fail.Exception, match=r"the read by sum at near.py:\d+ consume is not ordered after"):
        run()
    file.write_text(text.replace("def consume(x):\n", f"def consume(x):\n    {WAIT}\n"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamRaceWarning)
        run()


UNEVEN = """
    '''Gathers what one rank has.'''
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    unused = torch.zeros(3, device="cuda")
    for step in range(3 - rank):
        value = torch.ones(4, device="cuda")
        dist.all_reduce(value)
        print(value.sum().item())
"""


def test_a_hang_becomes_a_test_that_fails_and_passes_when_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(UNEVEN))
    house = with_simulated_gpu()
    shell_ = {**shell(), "PYTHONPATH": str(ROOT)}
    words = ["check", "--ranks", "2", "--name", "it", "train.py"]
    assert house.run("-m", "streamrace", *words, folder=tmp_path, environment=shell_).returncode == 6
    words = ["emit-test", "--trials", "12", "runs/it", "1"]
    made = house.run("-m", "streamrace", *words, folder=tmp_path, environment=shell_)
    assert "test_no_rank_waits_for_ever" in made.stdout, made.stdout + made.stderr
    file = tmp_path / "runs" / "it" / "test_hang_1.py"
    text = file.read_text()
    assert "unused" not in text
    assert "rank 0 waits for rank 1 in all_reduce (SUM) of 4 float32" in " ".join(text.split())

    def tested() -> str:
        alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        return house.run(*alone, folder=tmp_path, environment=shell_).stdout

    assert "hang: rank 0 waits for rank 1" in tested()
    file.write_text(text.replace("range(3 - rank)", "range(3)"))
    assert "1 passed" in tested()
