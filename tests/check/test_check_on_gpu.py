"""``check --on-gpu``, ``judge`` and ``streamrace.recording``: a program on a GPU, for which the simulated one stands.

What they see is asked in ``tests/device/test_recorder.py``, and on torch's CUDA build in ``tests/real_build``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.check.conftest import Checking
from tests.warm import ROOT, shell, with_simulated_gpu

RACE = """
    import torch

    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    y = x[x > 0]
    with torch.cuda.stream(side):
        x.add_(1)  # not ordered behind the line that reads x once more
    print("to its end")
"""
CLEAN = """
    import torch

    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    print(x.sum().item())
"""
GRAPH = """
    import torch

    x, graph, side = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        y = x * 2
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
"""


def test_a_race_is_told_as_on_the_simulated_gpu_but_for_its_timing(check: Checking) -> None:
    script = check.script(RACE)
    simulated, real = check(script), check("--on-gpu", "--overwrite", "--report", script)
    assert (real.status, real.findings["verdict"]) == (1, "race")
    (race,) = real.findings["races"]
    assert [race[side]["stack"][0]["line"] for side in ("first", "second")] == [4, 6]
    assert "to its end" in real.out
    assert "Recorded on a GPU: nothing was simulated, so no witness shows what a race does." in real.told
    assert "this timing shows" in simulated.told
    assert "this timing shows" not in real.told
    assert "once on rank 0." in real.told
    page = (check.folder / "runs" / "it" / "report" / "index.html").read_text()
    assert "recorded on a GPU: when work ran there is not known" in page
    assert "no GPU took part" not in page


def test_what_is_ordered_is_clean(check: Checking) -> None:
    done = check("--on-gpu", check.script(CLEAN))
    assert (done.status, done.findings["verdict"]) == (0, "clean")


def test_what_was_met_and_is_not_seen_is_said_and_nothing_is_clean(check: Checking) -> None:
    done = check("--on-gpu", check.script(GRAPH))
    assert (done.status, done.findings["verdict"]) == (4, "unknown")
    (unseen,) = done.findings["checked"]["unseen"]
    assert unseen.startswith("a CUDA graph was replayed, and what it launches is not seen (2 times, first at ")
    assert "train.py:6" in unseen


HANDED_ON = """
    import ctypes
    import torch

    ctypes.CDLL("./foreign.so")
    side = torch.cuda.Stream()
    x = torch.ones(8, device="cuda")
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        y = x + 1
    del x
    z = torch.zeros(8, device="cuda")
"""


def test_a_race_by_reuse_is_not_certain_where_a_compiled_part_may_have_handed_the_memory_on(check: Checking) -> None:
    library = Path(sys.modules["_queue"].__file__ or "")  # any; what it is linked with is read from its bytes
    (check.folder / "foreign.so").write_bytes(library.read_bytes() + b"libc10_cuda.so")
    done = check("--on-gpu", check.script(HANDED_ON))
    assert [race["kind"] for race in done.findings["races"]] == ["reused"]
    (unseen,) = done.findings["checked"]["unseen"]
    assert unseen.startswith("the compiled part foreign.so was loaded: kernels that it launches by itself are not seen")
    assert "so a race by reuse of memory that it hands to another stream may be none" in " ".join(done.told.split())


def test_a_program_that_fails_is_judged_up_to_there(check: Checking) -> None:
    done = check("--on-gpu", check.script(RACE + "    raise ValueError('mine')\n"))
    assert (done.status, done.findings["verdict"]) == (3, "race")
    assert "ValueError: mine" in done.err
    assert "it ended with exit status 1" in done.findings["failure"]


FORKS = """
    import os
    import torch

    x = torch.ones(8, device="cuda")
    pinned = torch.ones(8).pin_memory()
    x.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        for _ in range(20_000):
            pinned.add_(1)  # of the fork, in memory that has the same address
        os._exit(0)
    os.waitpid(child, 0)
    print(x.sum().item())
"""


def test_what_a_fork_does_is_not_the_programs(check: Checking) -> None:
    done = check("--on-gpu", check.script(FORKS))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done
    assert done.findings["checked"]["seen"].startswith("4 launches")


def test_a_trace_that_cannot_be_written_is_told_in_a_sentence(check: Checking, tmp_path: Path) -> None:
    script = check.script(PART.replace('"steps"', '"/dev/null/steps"'))
    whole = [sys.executable, "-m", "streamrace.device", script]
    environment = {**shell(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(whole, cwd=check.folder, env=environment, capture_output=True, text=True, check=False)
    assert "RecorderError: the trace cannot be written: [Errno 20] Not a directory: '/dev/null/steps'" in done.stderr


RANKS = f"""
    import sys

    sys.path.insert(0, {str(ROOT / "tests/device")!r})
    import torch, torch.distributed as dist
    from recorded_beside import tell_of_collectives

    tell_of_collectives()  # the simulated GPU's are no operators of c10d
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x = torch.ones(8, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    x.add_(1)  # before the wait
    work.wait()
"""


def test_the_ranks_of_a_launcher_are_judged_together(check: Checking) -> None:
    done = check.ranks(2, "--on-gpu", check.script(RANKS))
    assert done[0].findings["verdict"] == "race", done
    races = done[0].findings["races"]
    assert {rank for race in races for rank in race["ranks"]} == {0, 1}
    assert {race["second"]["stack"][0]["line"] for race in races} == {12}


REFUSED = {
    "--ranks 2": "start the ranks with torchrun",
    "--dry": "--dry is for a simulated GPU",
    "--record": "--record is for a simulated GPU",
    "--timing t1": "--timing is for a simulated GPU",
    "--slow stream:1=2": "--slow is for a simulated GPU",
    "--vary --ranks 2": "is for a simulated GPU",
    "--gpus 2": "--gpus is for a simulated GPU",
    "--compile aot_eager": "--compile is for a simulated GPU",
}


@pytest.mark.parametrize("options", REFUSED)
def test_options_of_a_simulated_gpu_are_refused_in_a_sentence(check: Checking, options: str) -> None:
    done = check("--on-gpu", *options.split(), check.script(CLEAN))
    assert (done.status, done.findings) == (2, {})
    assert REFUSED[options] in done.err
    assert len(done.err.splitlines()) == 1


def test_without_a_gpu_one_sentence_says_what_to_do(check: Checking) -> None:
    done = command(check.folder, "check", "--on-gpu", check.script(CLEAN))
    assert done.returncode == 2
    assert done.stderr.startswith("Error: torch sees no GPU here")
    assert not list(check.folder.glob("runs/*"))


PART = """
    import streamrace, torch

    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with streamrace.recording("steps"):
        for _ in range(3):
            y = x * 2
            with torch.cuda.stream(side):
                y.add_(1)
            torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.zero_()  # not recorded
"""


@pytest.fixture
def steps(check: Checking) -> Path:
    """What was recorded of some steps of a program, which then went on."""
    whole = [sys.executable, "-m", "streamrace.device", check.script(PART)]
    subprocess.run(whole, check=True, cwd=check.folder, env={**shell(), "PYTHONPATH": str(ROOT)})
    return check.folder / "steps"


def command(folder: Path, *arguments: str) -> Any:
    """A command in a process without any GPU."""
    whole = [sys.executable, "-m", "streamrace", *arguments]
    environment = {**shell(), "PYTHONPATH": str(ROOT)}
    return subprocess.run(whole, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def judge(folder: Path, *options: str) -> Any:
    return command(folder, "judge", *options, "--name", "judged")


def test_some_steps_are_recorded_and_judged_later(check: Checking, steps: Path) -> None:
    done = judge(check.folder, "steps")
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stdout.replace("│", " ").split())
    assert "train.py:9 reads memory on stream 1 while train.py:7 may still be writing it" in told
    assert "3 times on rank 0." in done.stdout
    assert "train.py:12" not in done.stdout
    assert "when work ran there is not known" in command(check.folder, "explain", "runs/judged", "1").stdout
    fixed = command(check.folder, "fix", "runs/judged", "1")
    assert "nothing was tried live: it ran on a gpu" in " ".join(fixed.stdout.split()).lower()
    test = command(check.folder, "emit-test", "runs/judged", "1")
    assert test.returncode == 2
    assert "was recorded on a GPU, and a test runs on a simulated one" in test.stderr


def test_recordings_that_are_not_those_of_one_run_are_refused(check: Checking, steps: Path) -> None:
    assert "there is no folder missing" in judge(check.folder, "missing").stderr
    (check.folder / "empty").mkdir()
    assert "empty has no recordings (rank0.trace, ...)" in judge(check.folder, "empty").stderr
    shutil.copy(steps / "rank0.trace", steps / "rank1.trace")
    assert "are of different runs" in judge(check.folder, "steps").stderr
    (steps / "rank1.trace").write_bytes(b"no trace")
    done = judge(check.folder, "steps")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not list(check.folder.glob("runs/*"))


LATE = """
    import torch

    x, y, side = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    x.fill_(2.0)
    with torch.cuda.stream(side):
        {wait}y.copy_(x)
    torch.cuda.synchronize()
    print("y is", y.sum().item())
"""


def provoked(check: Checking, *options: str, race: str = "1") -> Any:
    """The command in a process that has a GPU, for which the simulated one stands."""
    words = ["-m", "streamrace", "provoke", "runs/it", race, *options]
    environment = {**shell(), "PYTHONPATH": str(ROOT)}
    return with_simulated_gpu().start(*words, folder=check.folder, environment=environment).completed()


def test_a_held_first_access_makes_the_second_come_first_and_what_is_printed_differ(check: Checking) -> None:
    assert check("--on-gpu", check.script(LATE.format(wait=""))).status == 1
    done = provoked(check)
    assert (done.returncode, done.stderr) == (1, "")
    assert "held for 20 ms before train.py:5 (once) line 1 of what the program prints" in done.stdout
    assert "is 'y is 0.0' and not 'y is 16.0'" in done.stdout
    found = json.loads(provoked(check, "--format", "json", "--hold", "0.5").stdout)
    assert (found["times"], found["line"], found["ms"], found["token"]) == (1, 1, 0.5, "t1,train.py:5@+500us")
    again = json.loads(provoked(check, "--format", "json", race=found["token"]).stdout)
    assert again == found
    check.script(LATE.format(wait="side.wait_stream(torch.cuda.default_stream()); "))
    done = provoked(check)
    assert (done.returncode, "the program prints the same" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("t1", "names not one line and how long to hold the stream before it"),
        ("t1,train.py:5@+2ms,train.py:6@+2ms", "names not one line"),
        ("t1,train.py:5+2ms", "a stream is held before work"),
        ("t1,train.py:5@+0ms", "is out of bounds: a time is from 1 to"),
        ("t1,a%b:5@+1ms", "has '%'"),
        ("t2,train.py:5@+1ms", "is of another version"),
    ],
)
def test_what_is_no_token_of_a_provocation_is_refused_in_a_sentence(check: Checking, token: str, why: str) -> None:
    assert check("--on-gpu", check.script(LATE.format(wait=""))).status == 1
    done = command(check.folder, "provoke", "runs/it", token)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert why in done.stderr


def test_a_place_that_is_not_reached_is_said_and_without_a_gpu_nothing_is_held(check: Checking) -> None:
    assert check("--on-gpu", check.script(LATE.format(wait=""))).status == 1
    check.script("print('nothing')\n")
    assert "Nothing was held: the program gave the GPU no work at train.py:5." in provoked(check).stdout
    done = command(check.folder, "provoke", "runs/it", "1")
    assert (done.returncode, done.stderr[:31]) == (2, "Error: torch sees no GPU here, ")
