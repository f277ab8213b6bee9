"""Ranks that do not call the same collectives, or have ended: told at once, with the lines; never a wrong value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.warm import with_simulated_gpu

BEGIN = """
    import os, sys
    import torch
    import torch.distributed as dist

    right = "right" in sys.argv
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    other = rank == 1 and not right
    x, y = torch.ones(8, device="cuda"), torch.zeros(16, device="cuda")
"""
END = """
    torch.cuda.synchronize()
    dist.destroy_process_group()
"""

WRONG = {
    "kind": (
        "(dist.reduce_scatter_single if other else dist.all_gather_single)(*((x, y) if other else (y, x)))",
        "not the same collective",
        "all_gather of 8 float32",
        "reduce_scatter (SUM) of 16 float32",
    ),
    "size": (
        "dist.all_reduce(x[:4] if other else x)",
        "not the same size",
        "all_reduce (SUM) of 8 float32",
        "all_reduce (SUM) of 4 float32",
    ),
    "type": (
        "dist.all_reduce(x.int() if other else x)",
        "not the same type",
        "all_reduce (SUM) of 8 float32",
        "all_reduce (SUM) of 8 int32",
    ),
    "reduction": (
        "dist.all_reduce(x, op=dist.ReduceOp.AVG if other else dist.ReduceOp.SUM)",
        "not the same reduction",
        "all_reduce (SUM) of 8 float32",
        "all_reduce (AVG) of 8 float32",
    ),
    "root": (
        "dist.broadcast(x, src=1 if other else 0)",
        "not the same root",
        "broadcast of 8 float32 from rank 0",
        "broadcast of 8 float32 from rank 1",
    ),
    "sent": (
        "dist.recv(x[:4] if not right else x, 0) if rank else dist.send(x, 1)",
        "not the same size",
        "send of 8 float32",
        "recv of 4 float32",
    ),
    "splits": (
        "dist.all_to_all_single(y, torch.ones(16, device='cuda'), [8, 8], [4, 12] if other else [8, 8])",
        "not the same size",
        "all_to_all of 16 float32",
        "all_to_all of 16 float32",
    ),
    "awaited later": (
        "dist.all_reduce(x[:4] if other else x, async_op=True)",
        "not the same size",
        "all_reduce (SUM) of 8 float32",
        "all_reduce (SUM) of 4 float32",
    ),
}


def script(check: Any, call: str) -> Any:
    return check.script(BEGIN + "\n".join(f"    {line}" for line in call.splitlines()) + END)


@pytest.mark.parametrize("what", WRONG)
def test_calls_that_do_not_fit_are_told_with_both_lines(check: Any, what: str) -> None:
    call, differs, first, second = WRONG[what]
    done = check("--ranks", "2", program := script(check, call))
    assert (done.status, done.findings["verdict"]) == (6, "hang"), done.err
    why, line = done.findings["failure"], "train.py:11 <module>"
    assert "raised RuntimeError: Detected mismatch between collectives on ranks 0 and 1" in why
    assert f"({differs}): rank 0 calls {first} at {line}, rank 1 calls {second} at {line}" in why
    assert "collective 1 of the group of ranks 0, 1" in why
    assert check("--overwrite", "--ranks", "2", program, "right").status == 0


def test_collectives_in_another_order_are_told_before_any_value_is_wrong(check: Any) -> None:
    calls = """
z = torch.zeros(4, device="cuda")
calls = [lambda: dist.all_reduce(x), lambda: dist.reduce_scatter_single(z, x)]
for call in reversed(calls) if other else calls:
    call()
sys.stdout.write(f"{z.tolist()}\\n")
"""
    done = check("--ranks", "2", program := script(check, calls))
    assert (done.status, done.out.count("[")) == (6, 0)
    assert "not the same collective" in done.findings["failure"]
    done = check("--overwrite", "--ranks", "2", program, "right")
    assert done.out.count("[4.0, 4.0, 4.0, 4.0]") == 1, "both ranks print it, and it is shown once"


def test_a_program_that_catches_it_is_not_clean(check: Any) -> None:
    calls = "try:\n    dist.all_reduce(x[:4] if other else x)\nexcept RuntimeError:\n    sys.exit(0)"
    done = check("--ranks", "2", script(check, calls))
    assert (done.status, done.findings["verdict"]) == (6, "hang")
    assert "Detected mismatch" in done.err


ENDS = {
    "return": ("sys.exit(0)", "rank 0 raised RuntimeError: rank 1 has ended, and rank 0 waits for it in all_reduce"),
    "raise": ("raise ValueError('enough')", "rank 1 ended with exit status 1"),
    "exit": ("sys.exit(5)", "rank 1 ended with exit status 5"),
    "vanish": ("os._exit(0)", "rank 0 raised RuntimeError: rank 1 has ended, and rank 0 waits for it in all_reduce"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_that_ends_before_a_collective_leaves_nobody_waiting(check: Any, how: str) -> None:
    end, why = ENDS[how]
    done = check("--ranks", "2", script(check, f"if other:\n    {end}\ndist.all_reduce(x)\nx.sum().item()"))
    assert done.findings["failure"].startswith(why)
    assert (done.status, done.findings["verdict"]) == ((6, "hang") if how == "return" else (3, "unknown"))
    if why.startswith("rank 0"):
        assert "all_reduce (SUM) of 8 float32 at train.py:13 <module>" in done.findings["failure"]


def test_a_rank_may_end_when_nobody_needs_it_any_more(check: Any) -> None:
    calls = "dist.all_reduce(x)\nif rank:\n    sys.exit(0)\nfor _ in range(9):\n    x.mul_(2).sum().item()"
    assert check("--ranks", "2", script(check, calls)).status == 0


@pytest.mark.parametrize("how", ["os._exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_rank_that_dies_within_a_collective_is_named_without_gloos_noise(check: Any, how: str) -> None:
    """It has said that it comes, and what it gives never does: its device is not asked before it dies.

    Both have met before: while gloo still connects them, the other's end is told in gloo's words.
    """
    calls = "dist.all_reduce(y)\ntorch.cuda.synchronize()\n"
    calls += f"work = dist.all_reduce(x, async_op=True)\nif other:\n    {how}\nwork.wait()\nx.sum().item()"
    done = check("--ranks", "2", script(check, calls))
    assert re.match("rank 1 (ended with exit status 7|was killed by SIGKILL)", done.findings["failure"])
    assert "gloo" not in done.err
    assert "asynchronously" not in done.err


LEGAL = """
two, three = torch.zeros(2, device="cuda"), torch.zeros(3, device="cuda")
dist.all_reduce(torch.ones(2, 4, device="cuda") if rank else torch.ones(8, device="cuda"))  # counts, not shapes
last = torch.ones(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
dist.all_reduce(last if rank else y.repeat(8)[:120])
dist.broadcast(torch.ones(4, dtype=torch.complex64, device="cuda") if rank else x, 0)  # as NCCL moves them
dist.broadcast(torch.ones(4, dtype=torch.bool if rank else torch.uint8, device="cuda"), 0)
dist.all_gather([torch.zeros(8, device="cuda") for _ in range(2)], x) if rank else dist.all_gather_single(y, x)
dist.reduce_scatter_single(three, x[:6])
dist.gather(two, [torch.zeros(2, device="cuda") for _ in range(2)] if rank else None, dst=1)
dist.scatter(two, [torch.zeros(2, device="cuda") for _ in range(2)] if rank else None, src=1)
dist.reduce(x, dst=0)
dist.reduce(x, dst=1)
mine, theirs = ([1, 5], [2, 5]) if rank else ([3, 2], [3, 1])
into = torch.zeros(sum(theirs), 2, device="cuda")
dist.all_to_all_single(into, torch.ones(sum(mine), 2, device="cuda"), theirs, mine)
into = [torch.zeros(3 if rank else 2, device="cuda"), torch.zeros(4 if rank else 3, device="cuda")]
dist.all_to_all(into, [torch.zeros(3 if rank else 2, device="cuda"), torch.zeros(4 if rank else 3, device="cuda")])
given = [{"a": 1}, "text"] if rank == 0 else [None, None]
dist.broadcast_object_list(given, src=0)
dist.all_gather_object([None, None], "x" * (9 * rank + 1))
dist.recv(x, 0) if rank else dist.send(x, 1)
ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y[:8], 1 - rank)]
for work in dist.batch_isend_irecv(ops if rank else ops[::-1]):
    work.wait()
with dist._coalescing_manager():
    dist.all_reduce(two)
    dist.all_reduce(three)
dist.barrier()
alone = [dist.new_group([one]) for one in range(2)][rank]
dist.broadcast(x[:rank + 1], rank, group=alone)
dist.all_reduce(torch.zeros(0, device="cuda"))
"""


def test_what_nccl_lets_differ_may_differ(check: Any) -> None:
    done = check("--ranks", "2", script(check, LEGAL.strip()))
    assert done.status == 0, done.err


def test_lines_are_told_where_nobody_traces(check: Any) -> None:
    done = with_simulated_gpu().run(
        "-m", "streamrace.device", "--ranks", "2", script(check, WRONG["root"][0]), folder=check.folder
    )
    assert done.returncode == 1
    assert re.search(r"rank [01] raised RuntimeError: Detected mismatch", done.stderr)  # whoever comes to it first
    assert "from rank 0 at train.py:11 <module>, rank 1 calls broadcast" in done.stderr


def test_of_a_call_within_torch_the_programs_line_is_told_too(check: Any) -> None:
    calls = """
import torch.distributed.nn.functional as f
def step():
    f.all_reduce(x[:4] if other else x)
step()
"""
    done = check("--ranks", "2", script(check, calls))
    at = r"at torch/distributed/nn/functional.py:\d+ \S+, called from train.py:14 step"
    assert re.search(at, done.findings["failure"])
