"""Several ranks: forked by the command, or started by a launcher; judged together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUMS = """
    import os, sys
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    a = torch.ones(1000, device="cuda") * (rank + 1)
    work = dist.all_reduce(a, async_op=True)
    if rank == 1 and "fail" in sys.argv:
        raise ValueError("enough")
    if rank == 1 and "kill" in sys.argv:
        os.kill(os.getpid(), 9)
    if "race" not in sys.argv:
        work.wait()
    b = a + 1
    torch.cuda.synchronize()
    sys.stdout.write(f"rank {rank}: {b[0].item()}\\n")
    dist.destroy_process_group()
"""


def test_the_ranks_of_a_script_are_judged_together(check: Any) -> None:
    done = check("--ranks", "2", check.script(SUMS))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.err
    assert done.findings["checked"]["seen"] == "10 launches on 2 streams of 2 ranks"
    assert {"rank 0: 4.0", "rank 1: 4.0"} <= set(done.out.splitlines())


def test_a_race_with_a_collective_is_told_on_all_ranks(check: Any) -> None:
    done = check("--ranks", "2", check.script(SUMS), "race")
    (race,) = done.findings["races"]
    assert (done.status, race["ranks"], race["first"]["kernel"]) == (1, [0, 1], "nccl::all_reduce")
    assert "train.py:9 <module>" in done.told
    assert "train.py:16 <module>" in done.told


@pytest.mark.parametrize(("how", "why"), [("fail", "ended with exit status 1"), ("kill", "was killed by SIGKILL")])
def test_a_rank_that_dies_is_named_and_the_others_end(check: Any, how: str, why: str) -> None:
    done = check("--ranks", "2", check.script(SUMS), how)
    assert (done.status, done.findings["failure"]) == (3, f"rank 1 {why}; the others were ended"), done.err
    assert ("ValueError: enough" in done.err) == (how == "fail")


@pytest.mark.parametrize(("how", "statuses"), [("race", [1, 0]), ("well", [0, 0]), ("kill", [3, 3])])
def test_under_a_launcher_rank_0_judges_when_all_are_done(check: Any, how: str, statuses: list[int]) -> None:
    both = check.ranks(2, check.script(SUMS), how)
    assert [one.status for one in both] == statuses, both[0].err
    assert ["verdict: " in one.out for one in both] == [True, False]
    assert both[0].findings["scenario"]["ranks"] == 2
    if how == "kill":
        assert both[0].findings["failure"] == "rank 1 was killed by SIGKILL; the others were ended"
    else:
        assert len(both[0].findings["races"]) == statuses[0]


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"],
    "deepspeed": ["deepspeed.launcher.runner", "--num_gpus", "2", "--module"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "-m"],
}


@pytest.mark.wide
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_start_the_ranks(check: Any, launcher: str) -> None:
    shell = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], "streamrace", "check", check.script(SUMS), "race"],
        cwd=check.folder,
        env={**shell, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{shell['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("verdict: race") == 1
    (folder,) = (check.folder / "runs").iterdir()
    assert len(list((folder / "trace").iterdir())) == 2


def test_the_ranks_output_is_folded_and_all_of_it_is_kept(check: Any) -> None:
    script = check.script("""
        import os
        import sys
        import warnings
        import torch

        rank = int(os.environ["RANK"])
        print("model built")
        warnings.warn("a hook is registered twice")
        torch.ones(8, device=f"cuda:{rank}")
        if rank:
            print("no checkpoint on this rank")
        sys.stdout.flush()
        print("without an end", end="")
        if not rank:
            print("RuntimeError: handled", file=sys.stderr)
    """)
    done = check("--ranks", "3", script)
    assert done.status == 0, done.err
    shown = done.out.partition("╭")[0]
    assert shown.count("model built") == 1
    assert "ranks 1 and 2: no checkpoint on this rank" in shown
    assert done.err.count("a hook is registered twice") == 2  # the message, and its line of source
    assert done.err.splitlines()[-1] == "RuntimeError: handled"
    summary = shown.splitlines()[-1]
    assert summary.startswith("Output: runs/it/output.txt has all 15 lines; not shown: ")
    assert "of ranks 1 and 2 that rank 0 printed as well" in summary
    kept = (check.folder / "runs/it/output.txt").read_bytes().splitlines()
    assert len(kept) == 15 and kept.count(b"rank 1: model built") == 1
    assert sum(line.endswith(b": without an end") for line in kept) == 3
    assert not (check.folder / "runs/it/folded.txt").exists()
