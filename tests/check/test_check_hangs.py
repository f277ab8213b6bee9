"""Programs whose ranks wait for each other: what does not fit is said at once, and where the ranks part."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.check.conftest import Checking, Done
from tests.warm import ROOT, with_simulated_gpu

HEAD = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
"""
MISMATCH = """
    dist.all_reduce(x)  # common
    if rank == 0:  # condition
        dist.all_reduce(x)  # zero
    else:
        dist.broadcast(x, 0)  # other
    print(x.sum().item())
"""
KEYS = """
    def log(metrics):
        for name in sorted(metrics):  # loop
            dist.all_reduce(metrics[name])  # metric

    for step in range(3):
        metrics = {"loss": x.clone()}
        if rank == 0 and step == 2:
            metrics["reward"] = x.clone()
        log(metrics)
        dist.barrier()  # barrier
"""
UNEVEN = """
    for batch in range(4 - rank):  # loop
        dist.all_reduce(x)  # step
    print(x.sum().item())
"""
SIZES = """
    dist.all_gather_into_tensor(torch.empty(world * (4 + rank), device="cuda"), torch.ones(4 + rank, device="cuda"))
    torch.cuda.synchronize()
"""
ORDER = """
    one, two = dist.new_group(list(range(world))), dist.new_group(list(range(world)))
    if rank == 0:  # condition
        dist.all_reduce(x, group=one); x.sum().item()
        dist.all_reduce(y, group=two); y.sum().item()
    else:
        dist.all_reduce(y, group=two); y.sum().item()
        dist.all_reduce(x, group=one); x.sum().item()
"""
MESSAGES = """
    dist.recv(x, (rank - 1) % world)  # receives
    x.sum().item()
    dist.send(x, (rank + 1) % world)
    torch.cuda.synchronize()
"""
OBJECTS = """
    if rank == 0:
        dist.all_gather_object([None] * world, {"a": 1})  # objects
    else:
        dist.barrier()
    torch.cuda.synchronize()
"""


def line(check: Checking, comment: str) -> int:
    (at,) = (at for at, line in enumerate((check.folder / "train.py").read_text().split("\n"), 1) if comment in line)
    return at


def hang(done: Done) -> dict[str, Any]:
    assert (done.status, done.findings["verdict"]) == (6, "hang"), done.out + done.err
    (found,) = done.findings["checked"]["hangs"]
    return dict(found)


def test_another_collective_behind_a_condition(check: Checking) -> None:
    check.script(HEAD + MISMATCH)
    done = check("--ranks", "2", "train.py")
    found = hang(done)
    assert (found["kind"], found["differing"]) == ("mismatch", ["collective"])
    assert [found[side]["issue"]["stack"][0][1] for side in ("first", "second")] == [
        line(check, "# zero"), line(check, "# other"),
    ]  # fmt: skip
    assert found["common"][1] == line(check, "# common")
    where = f"train.py:{line(check, '# condition')}, `if rank == 0`"
    assert found["parted"] == f"they part at {where}: rank 0 goes there, rank 1 does not"
    calls = (
        f"calls all_reduce (SUM) of 4 float32 at train.py:{line(check, '# zero')} <module>, and rank 1 calls broadcast"
    )
    assert f"rank 0 {calls}" in done.told
    assert "No race was seen until then" in done.told


def test_a_metric_that_one_rank_has(check: Checking) -> None:
    """As in TRL 7310: the metrics are gathered by the names that a rank has. Another rank is in a barrier by then."""
    check.script(HEAD + KEYS)
    found = hang(done := check("--ranks", "3", "train.py"))
    assert found["kind"] == "mismatch"
    loop = f"train.py:{line(check, '# loop')}, `for name in sorted(metrics)`"
    assert found["parted"] == f"the loop at {loop} goes on for longer on rank 0"
    assert f"rank 1 calls barrier's all_reduce (SUM) of 1 float32 at train.py:{line(check, '# barrier')}" in done.told
    assert done.told.count("rank 2 is in barrier's all_reduce") == 1


def test_a_rank_with_fewer_batches(check: Checking) -> None:
    check.script(HEAD + UNEVEN)
    found = hang(check("--ranks", "2", "train.py"))
    assert found["kind"] == "ended"
    assert (found["first"]["rank"], found["first"]["lacks"], found["first"]["issue"]["number"]) == (0, [1], 4)
    assert found["second"]["issue"] is None
    assert found["second"]["last"]["number"] == 3
    loop = f"train.py:{line(check, '# loop')}, `for batch in range(4 - rank)`"
    assert found["parted"] == f"the loop at {loop} goes on for longer on rank 0"


def test_other_sizes(check: Checking) -> None:
    check.script(HEAD + SIZES)
    found = hang(check("--ranks", "2", "train.py"))
    assert (found["kind"], found["differing"], found["parted"]) == ("mismatch", ["size"], "")


@pytest.mark.parametrize("world", [2, 3])
def test_another_order_of_two_groups(check: Checking, world: int) -> None:
    check.script(HEAD + ORDER)
    found = hang(done := check("--ranks", str(world), "train.py"))
    assert (found["kind"], found["first"]["lacks"]) == ("order", list(range(1, world)))
    assert "the 1st of 2 groups of ranks 0, 1" in done.told
    assert f"they part at train.py:{line(check, '# condition')}, `if rank == 0`" in found["parted"]
    assert [stand["rank"] for stand in found["stands"]] == list(range(world))


def test_receives_in_a_circle(check: Checking) -> None:
    check.script(HEAD + MESSAGES)
    found = hang(done := check("--ranks", "3", "train.py"))
    assert found["kind"] == "messages"
    assert f"recv of 4 float32 from rank 2 at train.py:{line(check, '# receives')}" in done.told


def test_objects_are_called_by_their_name(check: Checking) -> None:
    check.script(HEAD + OBJECTS)
    hang(done := check("--ranks", "2", "train.py"))
    assert f"all_gather_object's all_gather of 1 int64 at train.py:{line(check, '# objects')}" in done.told


def test_a_race_until_then_is_found_as_ever(check: Checking) -> None:
    race = """
    side, z = torch.cuda.Stream(), torch.ones(4, device="cuda")
    z += 1
    with torch.cuda.stream(side):
        z.mul_(2)
"""
    check.script(HEAD + race + UNEVEN)
    done = check("--ranks", "2", "train.py")
    hang(done)
    assert done.findings["races"]
    assert "Until then, 2 races, one missing wait between streams." in done.told


ASYNC = """
    groups = [dist.new_group(list(range(world))), dist.new_group(list(range(world)))]
    order = (0, 1) if rank == 0 or {same} else (1, 0)
    for step in range(3):
        works = [dist.all_reduce((x, y)[at], group=groups[at], async_op=True) for at in order]
        for work in works:
            work.wait()
    torch.cuda.synchronize()
"""
RING = """
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, y, (rank - 1) % world)]
    works = dist.batch_isend_irecv(ops) if {same} else [op.op(op.tensor, op.peer) for op in ops]
    for work in works:
        work.wait()
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(("program", "kind", "world"), [(ASYNC, "order", 2), (RING, "messages", 3)])
def test_an_order_that_may_hang_elsewhere(check: Checking, program: str, kind: str, world: int) -> None:
    check.script(HEAD + program.replace("{same}", "False"))
    done = check("--ranks", str(world), "train.py")
    assert (done.status, done.findings["verdict"]) == (5, "may-hang"), done.out + done.err
    (found,) = done.findings["checked"]["may_hang"]
    assert (found["kind"], len(found["circle"])) == (kind, world)
    assert found["count"] == (3 if kind == "order" else 1)
    check.script(HEAD + program.replace("{same}", "True"))
    done = check("--ranks", str(world), "--overwrite", "train.py")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


JOIN = """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for batch in range(4 - rank):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
"""
SPLITS = """
    sent, taken = [rank + 1] * world, [other + 1 for other in range(world)]
    got = torch.empty(sum(taken), device="cuda")
    dist.all_to_all_single(got, torch.ones(sum(sent), device="cuda"), taken, sent)
    print(got.sum().item())
"""
COMMUNICATORS = """
    one, two = dist.new_group(list(range(world))), dist.new_group(list(range(world)))
    for step in range(2):
        works = [dist.all_reduce(x, group=one, async_op=True), dist.all_reduce(y, group=two, async_op=True)]
        if rank == 0:  # waits in another order are none of NCCL's
            works.reverse()
        for work in works:
            work.wait()
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize("program", [JOIN, SPLITS, COMMUNICATORS], ids=["join", "splits", "communicators"])
def test_ranks_that_differ_and_still_fit_are_no_hang(check: Checking, program: str) -> None:
    """Batches, sizes or waits of the ranks differ, and each collective meets its own."""
    check.script(HEAD + program)
    done = check("--ranks", "2", "train.py")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


def test_a_possible_hang_is_known_once_it_is_in_the_baseline(check: Checking) -> None:
    check.script(HEAD + ASYNC.replace("{same}", "False"))
    check("--ranks", "2", "--write-baseline", "known.json", "train.py")
    again = check("--ranks", "2", "--overwrite", "--baseline", "known.json", "train.py")
    assert again.status == 0, again.out + again.err


@pytest.mark.parametrize(
    "end", ["raise ValueError('own')", "import os; os.kill(os.getpid(), 9)"], ids=["raises", "killed"]
)
def test_a_rank_that_fails_is_no_hang(check: Checking, end: str) -> None:
    check.script(
        HEAD
        + f"""
    dist.all_reduce(x)
    if rank == 1:
        torch.cuda.synchronize()
        {end}
    dist.all_reduce(x)
    torch.cuda.synchronize()
"""
    )
    done = check("--ranks", "2", "train.py")
    assert (done.status, done.findings["verdict"]) == (3, "unknown"), done.out + done.err
    assert "hangs" not in done.findings["checked"]
    assert "rank 1" in done.findings["failure"]


def test_a_hang_is_explained_from_its_run(check: Checking, tmp_path: Path) -> None:
    check.script(HEAD + KEYS)
    done = check("--ranks", "3", "train.py")
    assert "streamrace explain runs/it" in done.told

    def explain(*words: str) -> subprocess.CompletedProcess[str]:
        shell = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
        return with_simulated_gpu().run("-m", "streamrace", "explain", *words, folder=tmp_path, environment=shell)

    told = explain("runs/it").stdout
    calls = [line.strip() for line in told.splitlines() if "(collective 5 of ranks 0, 1, 2)" in line]
    metric = line(check, "# metric")
    assert calls == [f"All_reduce (SUM) of 4 float32 at train.py:{metric} log (collective 5 of ranks 0, 1, 2)."] * 2
    assert "agree on it first" in told
    assert json.loads(explain("--format", "json", "runs/it").stdout)["number"] == 1
    wrong = explain("runs/it", "2")
    assert (wrong.returncode, wrong.stderr) == (
        2, "Error: runs/it has no race, and no hang '2': give a number from 1 to 1\n",
    )  # fmt: skip


def test_the_page_has_a_lane_for_each_rank(check: Checking) -> None:
    check.script(HEAD + ORDER)
    check("--ranks", "3", "--report", "train.py")
    page = (check.folder / "runs" / "it" / "report" / "index.html").read_text()
    lanes = page.partition("The hang</h2>")[2].partition("</svg></li>")[0]
    assert [f">rank {rank}</text>" in lanes for rank in range(4)] == [True, True, True, False]
    markdown = (check.folder / "runs" / "it" / "report" / "report.md").read_text()
    assert markdown.count("waits for rank") >= 3


SETS = """
    sizes = {"loss": 1, "reward": 2, "kl": 3, "entropy": 4, "value": 5, "clip": 6}
    for name in set(sizes):  # loop
        dist.all_reduce(torch.ones(sizes[name], device="cuda"))
    torch.cuda.synchronize()
"""
POLLS = """
    big, event = torch.ones(1024, 1024, device="cuda"), torch.cuda.Event()
    big @ big
    event.record()
    for _ in range(2):
        x.add_(1)
    if event.query():  # condition
        dist.all_reduce(x)
    dist.barrier()
"""


@pytest.mark.parametrize("program", [SETS, POLLS], ids=["sets", "time"])
def test_an_order_that_differs_from_machine_to_machine(check: Checking, program: str) -> None:
    check.script(HEAD + program)
    alike = check("--ranks", "2", "train.py", PYTHONHASHSEED="0")
    assert (alike.status, alike.findings["verdict"]) == (0, "clean"), alike.out + alike.err
    done = check("--ranks", "2", "--vary", "--overwrite", "train.py")
    found = hang(done)
    assert found["kind"] == "mismatch"
    where = f"the loop at train.py:{line(check, '# loop')}" if program is SETS else f"{line(check, '# condition')}, `if"
    assert where in found["parted"]
    assert "Each rank had an interpreter, a hash seed and a host's speed of its own." in done.told


def test_there_must_be_ranks_to_vary(check: Checking) -> None:
    check.script(HEAD)
    assert check("--vary", "train.py").err == "Error: --vary compares what ranks do: say --ranks N, for two or more\n"
    assert check("--vary", "--dry", "train.py").status == 2


FSDP = """
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
    for layer in (*model, model):
        fully_shard(layer)
    for batch in range(3):
        loss = model(torch.ones(2, 8, device="cuda")).sum()
        if rank == 0 and batch == 1:
            continue
        loss.backward()  # backward
"""
DDP = """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    for batch in range(3 - rank):
        model(torch.ones(2, 8, device="cuda")).sum().backward()  # backward
    torch.cuda.synchronize()
"""


def test_a_library_shows_the_programs_line(check: Checking) -> None:
    check.script(HEAD + FSDP)
    hang(done := check("--ranks", "2", "train.py"))
    at = f"called from train.py:{line(check, '# backward')} <module>"
    assert f"DefaultAllGather.__call__, {at}, and rank 1 calls reduce_scatter" in done.told
    assert f"DefaultReduceScatter.__call__, {at}, as collective" in done.told


SKIPS = """
    for batch in range(3):
        dist.all_reduce(x)
        if rank == 0 and batch == 1:  # condition
            continue
        dist.broadcast(y, 0)
    torch.cuda.synchronize()
"""


def test_a_rank_that_skips_the_rest_of_a_loops_round(check: Checking) -> None:
    check.script(HEAD + SKIPS)
    where = f"train.py:{line(check, '# condition')}, `if rank == 0 and batch == 1`"
    found = hang(check("--ranks", "2", "train.py"))
    assert found["parted"] == f"they may part at {where}, which skips what follows"


def test_ddps_gradients_are_those_of_a_backward_pass(check: Checking) -> None:
    check.script(HEAD + DDP)
    hang(done := check("--ranks", "2", "train.py"))
    told = f"all_reduce (SUM) of 72 float32 of a backward pass at train.py:{line(check, '# backward')} <module>"
    assert f"rank 0 waits for rank 1 in {told}" in done.told


POOL = """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
"""
THREAD = """
    import threading

    group = dist.new_group([0, 1])
    began = threading.Event()

    def later():
        began.wait()
        dist.all_reduce(x, group=group)
        torch.cuda.synchronize()

    helper = threading.Thread(target=later)
    helper.start()
    began.set()
    helper.join()
    dist.all_reduce(y)
    torch.cuda.synchronize()
"""


IN_THREAD = """
    import threading

    helper = threading.Thread(target=lambda: (dist.all_reduce(x), torch.cuda.synchronize()))
    if rank == 0:
        helper.start()
        helper.join()
"""


@pytest.mark.parametrize(("program", "kind"), [(POOL + ORDER, "order"), (IN_THREAD, "ended")], ids=["pool", "thread"])
def test_idle_threads_do_not_hide_a_hang(check: Checking, program: str, kind: str) -> None:
    check.script(HEAD + program)
    assert hang(check("--ranks", "2", "train.py"))["kind"] == kind


def test_a_thread_that_goes_on_is_no_hang(check: Checking) -> None:
    check.script(HEAD + THREAD)
    done = check("--ranks", "2", "train.py")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err


def test_a_foreign_kind_of_hang_is_refused(check: Checking) -> None:
    check.script(HEAD + UNEVEN)
    check("--ranks", "2", "train.py")
    file = check.folder / "runs" / "it" / "findings.json"
    file.write_text(file.read_text().replace('"ended"', '"strange"'))
    shell = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ("-m", "streamrace", "explain", "runs/it")
    done = with_simulated_gpu().run(*words, folder=check.folder, environment=shell)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
