"""The ranks of a script: forked by the command, or by torchrun, with a trace each that are judged together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.detectors import find_races
from streamrace.device.launch import main
from tests.warm import ROOT, with_simulated_gpu

pytestmark = pytest.mark.host

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, a = dist.get_rank(), torch.ones(1000, device="cuda") * (dist.get_rank() + 1)
work = dist.all_reduce(a, async_op=True)
{wait}
b = a + 1
torch.cuda.synchronize()
sys.stdout.write("%s %s %s\\n" % (rank, b[0].item(), torch.cuda.device_count()))
dist.destroy_process_group()
"""


def on_device(*arguments: str) -> subprocess.CompletedProcess[str]:
    return with_simulated_gpu().run("-m", "streamrace.device", *arguments)


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in interpreters of its own, which torchrun starts in one of its own."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=60,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str]]:
    """What the ranks told; gloo may write beside it."""
    return re.findall(r"^(\d) ([\d.]+) (\d)$", done.stdout, re.MULTILINE)


def script_in(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def test_a_script_runs_on_several_ranks_and_their_traces_are_judged_together(tmp_path: Path) -> None:
    script = script_in(tmp_path, SCRIPT.format(wait="pass"))
    done = on_device("--ranks", "2", "--trace", str(tmp_path / "trace"), script)
    assert done.returncode == 0, done.stderr
    assert sorted((rank, count) for rank, _, count in said(done)) == [("0", "2"), ("1", "2")]
    (race,) = find_races(tmp_path / "trace")
    assert (race.first.kernel, race.second.kernel, race.ranks) == ("nccl::all_reduce", "aten::add", (0, 1))
    assert [(side.stack[0].file, side.stack[0].line) for side in (race.first, race.second)] == [
        ("train.py", 8),
        ("train.py", 10),
    ]


def test_torchrun_starts_the_ranks_as_well(tmp_path: Path) -> None:
    script = script_in(tmp_path, SCRIPT.format(wait="work.wait()"))
    done = torchrun("--nproc-per-node", "2", "-m", "streamrace.device", "--trace", str(tmp_path / "trace"), script)
    assert done.returncode == 0, done.stderr
    assert sorted(said(done)) == [("0", "4.0", "2"), ("1", "4.0", "2")]
    assert find_races(tmp_path / "trace") == []


def test_a_rank_that_dies_is_named_and_the_others_end(tmp_path: Path) -> None:
    fatal = "if rank == 1: os.kill(os.getpid(), 9)\nwork.wait()\ntorch.cuda.synchronize()"
    done = on_device("--ranks", "3", script_in(tmp_path, SCRIPT.format(wait=fatal)))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        137,
        "streamrace: rank 1 was killed by SIGKILL; the others were ended",
    )


def test_a_rank_that_raises_is_named_with_its_traceback(tmp_path: Path) -> None:
    done = on_device("--ranks", "2", script_in(tmp_path, SCRIPT.format(wait="assert rank == 0")))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "streamrace: rank 1 ended with exit status 1; the others were ended"
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ranks", "none"), "--ranks needs a number, not 'none'"),
        (("--dry", "--world", "64"), "--world and --per-node are gone: say --nodes and --gpus (of each node)"),
        (("--nodes", "2"), "--nodes, --hardware and --network are a dry run's: add --dry, or say --ranks"),
        (("--dry", "--ranks", "2"), "--ranks 2 of 1 are not equally far apart"),
        (("--dry", "--hardware", "z80"), "there is no hardware profile 'z80'"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"streamrace: {sentence}")


PROFILED = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
a = torch.ones(1000, device="cuda")
both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
with torch.profiler.profile(activities=both) as profile:
    dist.all_reduce(a)
names = [one.key for one in profile.key_averages()]
assert names and not any("gloo" in name for name in names), names
sys.stdout.write("%s %s %s\\n" % (dist.get_rank(), a[0].item(), torch.cuda.device_count()))
dist.destroy_process_group()
"""


def test_a_profile_of_two_ranks_ends_and_has_nothing_of_what_moves_the_values(tmp_path: Path) -> None:
    """gloo's thread told the profiler of its own collective. It asked for the device's time, and waited for ever."""
    done = on_device("--ranks", "2", script_in(tmp_path, PROFILED))
    assert done.returncode == 0, done.stderr
    assert sorted(said(done)) == [("0", "2.0", "2"), ("1", "2.0", "2")]


UNEVEN = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[rank])
with model.join(divide_by_initial_world_size=False):
    for batch in range(2 + rank):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
a = torch.ones(3, device="cuda")
try:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, a, 1 - rank), 1])
except ValueError as error:
    assert "Invalid" in str(error), error
sys.stdout.write("%s %s %s\\n" % (rank, model.module.weight.grad[0, 0].item(), torch.cuda.device_count()))
dist.destroy_process_group()
"""


def test_a_rank_with_fewer_batches_joins_the_others(tmp_path: Path) -> None:
    """Two ranks have a sum of 2 for a batch, and so has the one that is left: its own, over one rank."""
    done = on_device("--ranks", "2", script_in(tmp_path, UNEVEN))
    assert done.returncode == 0, done.stderr
    assert sorted(said(done)) == [("0", "4.0", "2"), ("1", "6.0", "2")]
