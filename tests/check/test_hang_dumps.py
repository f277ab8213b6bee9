"""``streamrace hang``: what a cluster's flight recorder tells of a hang, in the words of ``streamrace check``."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.check.flight_recordings import Recorder, recorders
from tests.inputs.obeyed import Said, obeyed


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def said(folder: Path, *words: str) -> Said:
    done = obeyed(("hang", *(words or (".",))), folder)
    return done._replace(out=" ".join(done.out.replace("│", " ").split()))


def written(folder: Path, ranks: Sequence[Recorder], form: str = "pickle") -> Said:
    for rank in ranks:
        rank.write(folder, form)
    return said(folder)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_another_collective(tmp_path: Path, form: str) -> None:
    one, other = recorders(2)
    for rank in (one, other):
        rank.call("all_reduce", 10)
    one.call("_all_gather_base", 12, out=(8,), done=False)
    other.call("broadcast", 14, done=False)
    done = written(tmp_path, [one, other], form)
    places = [f" at /job/train.py:{line} step" if form == "pickle" else "" for line in (12, 14, 10)]
    assert done.status == 6
    assert "Hang: ranks call different things as one collective." in done.out
    assert (
        f"rank 0 calls all_gather of 4 float32{places[0]}, and rank 1 calls broadcast of 4 float32{places[1]}, as "
        "collective 2 of ranks 0, 1: not the same collective" in done.out
    )
    assert (f"They last made the same call{places[2]}." in done.out) == (form == "pickle")
    assert ("The dumps have no lines" in done.out) == (form == "json")
    assert "Reductions and roots are not in a dump, and not compared." in done.out


@pytest.mark.parametrize(
    ("more", "differs"), [({"shape": (5,)}, "size"), ({"dtype": "BFloat16"}, "type"), ({"shape": (2, 2)}, "")]
)
def test_other_sizes_and_types(tmp_path: Path, more: dict[str, Any], differs: str) -> None:
    one, other = recorders(2)
    one.call("all_reduce", 10, done=False)
    other.call("all_reduce", 10, done=False, **more)
    done = written(tmp_path, [one, other])
    assert done.status == (6 if differs else 0)
    if differs:
        assert f"as collective 1 of ranks 0, 1: not the same {differs}." in done.out
    else:
        assert "No cause was found: ranks 0, 1 stand in what has not completed" in done.out


def test_splits_of_one_tensor_are_not_known(tmp_path: Path) -> None:
    one, other = recorders(2)
    one.call("all_to_all", 10, shape=(6,), out=(4,), done=False)
    other.call("all_to_all", 10, shape=(4,), out=(6,), done=False)
    done = written(tmp_path, [one, other])
    assert done.status == 0 and "The splits of an all_to_all of one tensor" in done.out


def test_the_first_difference_counts_where_hardware_goes_past_it(tmp_path: Path) -> None:
    """As in TRL 7310: NCCL takes a barrier for a metric's sum, and ranks stand still a call later."""
    one, other = recorders(2)
    for rank in (one, other):
        rank.call("all_reduce", 10)
    one.call("all_reduce", 10)
    one.call("all_reduce_barrier", 12, shape=(1,), done=False)
    other.call("all_reduce_barrier", 12, shape=(1,))
    done = written(tmp_path, [one, other])
    assert done.status == 6
    assert "and rank 1 calls barrier's all_reduce of 1 float32 at /job/train.py:12 step, as collective 2" in done.out
    assert "They last made the same call at /job/train.py:10 step." in done.out


def test_a_rank_with_fewer_batches(tmp_path: Path) -> None:
    """A dump does not tell if rank 1 has ended or is elsewhere; the loop is in the program's source."""
    program = tmp_path / "program.py"
    program.write_text("def step():\n    for batch in batches:\n        reduce(batch)\n")
    ranks = recorders(3)
    for rank in ranks:
        rank.file = str(program)
        for _ in range(2):
            rank.call("all_reduce", 3)
    for rank in (ranks[0], ranks[2]):
        rank.call("all_reduce", 3, done=False)
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in ranks:
        rank.write(folder)
    done = said(tmp_path, "dumps")
    call = f"all_reduce of 4 float32 at {program}:3 step"
    assert done.status == 6
    assert "Hang: ranks wait for one that has not come to their collective." in done.out
    assert f"rank 0 waits for rank 1 in {call} (collective 3 of ranks 0, 1, 2)" in done.out
    assert f"rank 1 waits in no collective, after {call} (collective 2 of ranks 0, 1, 2)" in done.out
    assert f"The loop at {program}:2, `for batch in batches` goes on for longer on rank 0." in done.out
    assert f"rank 2 waits for rank 1 in {call}" in done.out


@pytest.mark.parametrize("issued", [False, True])
def test_another_order_of_two_groups(tmp_path: Path, issued: bool) -> None:
    """The host waits in its first collective, or has ``issued`` both: each GPU stands in its first."""
    ranks = recorders(2, tp=[0, 1], dp=[0, 1])
    for rank, order in zip(ranks, (("tp", "dp"), ("dp", "tp")), strict=True):
        for group in order[: 2 if issued else 1]:
            rank.call("all_reduce", 10 if group == "tp" else 11, group=group, done=False)
    done = written(tmp_path, ranks)
    assert done.status == 6
    assert "Hang: ranks wait for each other in collectives of different groups." in done.out
    assert "train.py:10 step (collective 1 of group tp (mesh_tp) of ranks 0, 1)" in done.out
    assert "rank 1 waits for rank 0 in all_reduce of 4 float32 at /job/train.py:11 step" in done.out
    assert ("Orders that may hang" in done.out) == issued


def test_receives_in_a_circle(tmp_path: Path) -> None:
    ranks = recorders(3)
    for rank in ranks:
        rank.between("recv", (rank.rank - 1) % 3, 10, done=False)
    done = written(tmp_path, ranks)
    assert done.status == 6
    assert "Hang: ranks wait for each other in sends and receives." in done.out
    assert "recv of 4 float32 from rank 2 at /job/train.py:10 step" in done.out


@pytest.mark.parametrize("batched", [False, True])
def test_a_ring_may_hang_unless_it_is_one_batch(tmp_path: Path, batched: bool) -> None:
    """Calls of a batch never change their state: the entry that ends it does."""
    ranks = recorders(3)
    for rank in ranks:
        for _ in range(2):
            rank.between("send", (rank.rank + 1) % 3, 10, done=not batched)
            rank.between("recv", (rank.rank - 1) % 3, 11, done=not batched, same=batched)
            if batched:
                rank.call("coalesced", 12, same=True, is_p2p=True)
    done = written(tmp_path, ranks)
    assert done.status == (0 if batched else 5)
    assert ("sends and receives are issued in an order in which each waits for the other" in done.out) != batched
    assert ("No hang was found in what the dumps hold" in done.out) == batched


def test_an_order_of_groups_that_may_hang(tmp_path: Path) -> None:
    ranks = recorders(2, tp=[0, 1], dp=[0, 1])
    for rank, order in zip(ranks, (("tp", "dp"), ("dp", "tp")), strict=True):
        for _ in range(3):
            for group in order:
                rank.call("all_reduce", 10 if group == "tp" else 11, group=group)
    done = written(tmp_path, ranks)
    assert done.status == 5
    assert "May hang: collectives of several groups are issued in different order." in done.out
    assert "(group dp (mesh_dp) of ranks 0, 1)" in done.out and "(3 times)" in done.out


def test_collectives_in_one_batch_share_their_number(tmp_path: Path) -> None:
    one, other = recorders(2)
    for rank in (one, other):
        for at in range(2):
            differs = at == 1 and rank is other
            rank.call("_all_gather_base", 10, shape=(5 if differs else 4,), out=(8,), done=False, same=at > 0)
        rank.call("ALLGATHER_coalesced", 11, done=False, same=True)
    done = written(tmp_path, [one, other])
    assert done.status == 6
    assert "all_gather of 4 float32" in done.out and "all_gather of 5 float32" in done.out
    assert "as collective 1 of ranks 0, 1: not the same size." in done.out


def test_nothing_is_known_of_a_rank_without_a_dump(tmp_path: Path) -> None:
    ranks = recorders(4, tp=[0, 1])
    for rank in ranks:
        rank.call("all_reduce", 10)
        rank.call("all_reduce", 11, done=False)
    done = written(tmp_path, ranks[:3])
    assert done.status == 0
    assert "There is no dump of rank 3: nothing is known of what it issued." in done.out
    assert (
        "rank 0 is in all_reduce of 4 float32 at /job/train.py:11 step (collective 2 of ranks 0, 1, 2, 3)" in done.out
    )
    ranks[1].entries[-1]["profiling_name"] = "nccl:broadcast"
    done = written(tmp_path, ranks[:3])
    assert done.status == 6
    assert "They last made the same call at /job/train.py:10 step." in done.out


def test_what_ring_buffers_have_lost_is_left_out(tmp_path: Path) -> None:
    one, other = recorders(2)
    for rank in (one, other):
        for step in range(9):
            rank.call("all_reduce", 10 + step)
            rank.between("send" if rank is one else "recv", 1 - rank.rank, 30)
    one.call("all_reduce", 20, done=False)
    other.call("reduce", 21, done=False)
    one.size = 5
    done = written(tmp_path, [one, other])
    assert done.status == 6
    assert "as collective 10 of ranks 0, 1: not the same collective." in done.out
    assert "They last made the same call at /job/train.py:18 step." in done.out
    assert "On rank 0 the recorder has lost earlier calls" in done.out


def test_messages_are_counted_from_the_first_that_has_not_completed(tmp_path: Path) -> None:
    one, other = recorders(2)
    for _ in range(9):
        one.between("send", 1, 30)
        other.between("recv", 0, 31)
    one.between("send", 1, 32, done=False)
    other.call("recv 1<-0", 33, shape=(9,), done=False)
    one.size = 3
    done = written(tmp_path, [one, other])
    assert done.status == 6
    assert "rank 0 calls send of 4 float32 to rank 1 at /job/train.py:32 step" in done.out
    assert "as message 1 from rank 0 to rank 1: not the same size." in done.out


def test_a_dump_of_active_calls_alone_does_not_tell_what_was_not_issued(tmp_path: Path) -> None:
    one, other = recorders(2)
    for rank in (one, other):
        rank.call("all_reduce", 10)
    one.call("all_reduce", 11, done=False)
    other.entries = []
    done = written(tmp_path, [one, other])
    assert done.status == 0
    assert "On rank 1 the recorder left out what has completed: a call may have, if it is not there." in done.out


def test_a_rank_that_has_issued_nothing_is_behind(tmp_path: Path) -> None:
    one, other = recorders(2)
    one.call("all_reduce", 10, done=False)
    done = written(tmp_path, [one, other])
    assert done.status == 6 and "and rank 1 waits in no collective." in done.out


def test_a_script_reads_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = recorders(2)
    one.call("all_reduce", 10, done=False)
    for rank in (one, other):
        rank.write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", "hang", str(tmp_path), "--format", "json"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    found = json.loads(done.stdout)
    assert (found["verdict"], found["hangs"][0]["kind"], found["hangs"][0]["first"]["lacks"]) == ("hang", "behind", [1])


class _Executed:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


HEAD = {"version": "2.10", "pg_config": {}, "entries": []}
REFUSED = {
    "a pickle that calls": (pickle.dumps({**HEAD, "entries": [_Executed()]}), "has the opcode STACK_GLOBAL"),
    "an old pickle that calls": (pickle.dumps({**HEAD, "entries": [_Executed()]}, 2), "has the opcode GLOBAL"),
    "a truncated pickle": (pickle.dumps({**HEAD, "more": ["x" * 99] * 9}, 2)[:-40], "it is cut off or is not a pickle"),
    "no dict": (pickle.dumps([1, 2, 3], 2), "it has no version"),
    "truncated JSON": (json.dumps(HEAD).encode()[:-3], "it is cut off or is not JSON"),
    "something else": (b"\x7fELF", "is not JSON"),
    "an unknown version": (pickle.dumps({**HEAD, "version": "3.0"}, 2), "its format is 3.0, and format 2 is read"),
    "no groups": (pickle.dumps({"version": "2.10"}, 2), "pg_config"),
    "ranks that are code": (
        pickle.dumps({**HEAD, "pg_config": {"0": {"ranks": "__import__('os')"}}}, 2), "pg_config.0.ranks",
    ),
    "keys that are no texts": (pickle.dumps({**HEAD, 1: 2}, 2), "a key in it is no text"),
    "a number without end": (pickle.dumps({**HEAD, "more": 1 << 90}, 2), "of more than 64 bits"),
    "lists in lists": (pickle.dumps({**HEAD, "more": eval("[" * 70 + "]" * 70)}, 2), "it is nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_foreign_file_is_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    raw, sentence = REFUSED[what]
    (tmp_path / "nccl_trace_rank_0").write_bytes(raw)
    done = said(tmp_path)
    (line,) = done.err.splitlines()
    assert done.status == 2 and sentence in line, done
    assert line.startswith("Error: nccl_trace_rank_0 is no dump of torch's flight recorder: ")


def test_lists_that_are_shared_without_end_are_refused(tmp_path: Path) -> None:
    shared: list[Any] = ["a"] * 10
    for _ in range(30):
        shared = [shared] * 10
    (tmp_path / "dump0").write_bytes(pickle.dumps(shared, 2))
    done = said(tmp_path)
    assert done.status == 2 and "it holds more than 8,388,608 values" in done.err


def test_files_that_are_not_of_one_job(tmp_path: Path) -> None:
    first = recorders(2)[0].write(tmp_path)
    foreign = recorders(3)[1].write(tmp_path)
    done = said(tmp_path)
    assert done.status == 2 and "are not of one job: group '0' has ranks 0, 1 in one, and ranks 0, 1, 2" in done.err
    foreign.rename(tmp_path / "nccl_trace_rank_7")
    assert "nccl_trace_rank_7 is not the dump of rank 7: its group '0' has ranks 0, 1, 2" in said(tmp_path).err
    first.rename(tmp_path / "renamed_7.pickle")
    assert "are both of rank 7: name one of them" in said(tmp_path).err
    for rank, version in enumerate(("2.10", "2.9")):
        recorders(2)[rank].write(tmp_path, version=version)
    done = said(tmp_path, "nccl_trace_rank_0", "nccl_trace_rank_1")
    assert "are not of one job: their formats are 2.10 and 2.9" in done.err


def test_names_that_lead_to_no_dump(tmp_path: Path) -> None:
    assert "cannot use nccl_trace_rank_0: No such file" in said(tmp_path, "nccl_trace_rank_0").err
    assert ". has no dumps: no name of a file there ends in a rank" in said(tmp_path).err
    (tmp_path / "dump").write_text("{}")
    assert "dump does not tell its rank" in said(tmp_path, "dump").err


PROGRAM = """
    import os, sys
    import torch
    import torch.distributed as dist

    folder = sys.argv[1]
    child = os.fork()
    rank = 0 if child == 0 else 1
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    if rank == 0:
        works = [
            dist.all_reduce(torch.ones(4), async_op=True),  # reduces
            dist.broadcast(torch.ones(4), 0, async_op=True),
        ]
    with open(f"{folder}/dumps/gloo_{rank}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    if rank == 1:
        os.waitpid(child, 0)  # its collectives would fail without this rank
    os._exit(0)
"""


def test_a_dump_that_torch_wrote(tmp_path: Path) -> None:
    """Calls that cannot have completed: gloo may complete one before it is recorded, and then never notes that."""
    program = tmp_path / "train.py"
    program.write_text(dedent(PROGRAM).lstrip())
    (tmp_path / "dumps").mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, str(program), str(tmp_path)], env=environment, timeout=200, check=True)
    (line,) = (at for at, line in enumerate(program.read_text().splitlines(), 1) if "# reduces" in line)
    done = said(tmp_path, "dumps")
    assert done.status == 6
    call = f"all_reduce of 4 float32 at {program}:{line} <module> (collective 1 of ranks 0, 1)"
    assert f"rank 0 waits for rank 1 in {call}, and rank 1 waits in no collective." in done.out
    assert "The dumps do not tell the ranks of group '0'" in done.out
