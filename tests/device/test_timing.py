"""A timing decides how long work takes, says so in a few characters, and gives the same run again, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.device.launch import main
from streamrace.device.timing import Delay, Jitter, Place, Stretch, Timing, timed
from streamrace.device.tokens import TokenError
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, Launch, Probe, Probed, TraceRecord
from tests.warm import ROOT, with_simulated_gpu

MM = Place(0, 0, "aten::mm", 2)

TOKENS = {
    "t1": Timing(),
    "t1,0/0/aten::mm/2+64us": Timing((Delay(MM, "long", 64_000),)),
    "t1,1/66/nccl::all_reduce/1@+1500ns": Timing((Delay(Place(1, 66, "nccl::all_reduce", 1), "late", 1500),)),
    "t1,0/0/cudaMemcpyAsync%20DtoH/1+1ms": Timing((Delay(Place(0, 0, "cudaMemcpyAsync DtoH", 1), "long", 10**6),)),
    "t1,x4:stream:3,x2:host:1,x3:kernel:aten::%2A,x9:rank:1,jitter:20:7": Timing(
        (
            Stretch("stream:3", 4),
            Stretch("host:1", 2),
            Stretch("kernel:aten::*", 3),
            Stretch("rank:1", 9),
            Jitter(20, 7),
        )
    ),
}
WRONG = {
    "": "does not begin with the version of a token",
    "t2,x4:stream:3": "is of another version",
    "t1,hpz,x4:stream:3": "names a scenario: this token is for 'streamrace replay'",
    "t1,x4:link:nccl": "stretches none of",
    "t1,x1:stream:3": "a factor is from 2 to",
    "t1,0/0/aten::mm/0+64us": "an occurrence is from 1 to",
    "t1,0/0/aten::mm/1@+64us": "only a collective",
    "t1,0/0/aten::mm/1+64": "is no deviation",
    "t1,0/0/a mm/1+64us": "which a token writes as '%20'",
    "t1,jitter:20:7,jitter:20:8": "has a second jitter",
}


@pytest.mark.host
@pytest.mark.parametrize("text", TOKENS)
def test_a_timing_is_said_in_a_token_and_read_again(text: str) -> None:
    assert str(TOKENS[text]) == text
    assert Timing.parse(f" {text}\n") == TOKENS[text]


@pytest.mark.host
@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_token_is_one_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TokenError, match="a token looks like t1,") as told:
        Timing.parse(text)
    assert WRONG[text] in str(told.value)
    assert main(["--timing", text, "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"streamrace: {told.value}\n")


def durations(timing: str, rank: int = 0) -> list[tuple[str, int]]:
    """Three products on the default stream and one on another, in this timing: how long each takes."""
    import torch
    from judged import story

    side = torch.cuda.Stream()
    a = torch.ones(4, 4, device="cuda")
    with story() as told, timed(Timing.parse(timing), rank=rank):
        for _ in range(3):
            torch.mm(a, a)
        with torch.cuda.stream(side):
            torch.mm(a, a)
    return [(f"{work.stream}", work.end - work.start) for work in told.launches]


def test_one_piece_of_work_takes_longer_and_no_other() -> None:
    plain, side = 2000, "1"
    assert durations("t1") == [("0", plain)] * 3 + [(side, plain)]
    assert durations("t1,0/0/aten::mm/2+64us") == [("0", plain), ("0", plain + 64_000), ("0", plain), ("2", plain)]
    assert durations("t1,0/0/aten::mm/2+64us", rank=1) == [("0", plain)] * 3 + [("3", plain)]
    assert durations("t1,0/4/aten::mm/1+64us,0/4/aten::mm/1+1us")[3:] == [("4", plain + 65_000)]


def test_streams_kernels_ranks_and_the_host_are_stretched() -> None:
    assert durations("t1,x4:stream:0") == [("0", 8000)] * 3 + [("1", 2000)]
    assert durations("t1,x2:kernel:%2Amm,x3:stream:2") == [("0", 4000)] * 3 + [("2", 12_000)]
    assert durations("t1,x4:rank:1") == [("0", 2000)] * 3 + [("3", 2000)]
    assert durations("t1,x4:rank:1", rank=1) == [("0", 8000)] * 3 + [("4", 8000)]


def test_the_host_is_slower_in_such_a_timing() -> None:
    import torch
    from judged import story

    a = torch.ones(4, 4, device="cuda")
    with story() as told, timed(Timing.parse("t1,x4:host"), rank=0):
        torch.mm(a, a), torch.mm(a, a)
    first, second = told.launches
    assert second.issued - first.issued == 20_000


def test_jitter_is_drawn_anew_for_each_piece_and_the_same_for_a_seed() -> None:
    import torch
    from judged import story

    a, drawn = torch.ones(4, 4, device="cuda"), {}
    for seed, rank in ((7, 0), (8, 0), (7, 1)):
        with story() as told, timed(Timing((Jitter(50, seed),)), rank=rank):
            for _ in range(20):
                torch.mm(a, a)
        drawn[seed, rank] = [work.end - work.start for work in told.launches]
    assert all(2000 <= one < 3000 for row in drawn.values() for one in row)
    assert len({tuple(row) for row in drawn.values()}) == 3
    assert len(set(drawn[7, 0])) > 10


SCRIPT = """
import os, torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
a = torch.ones(1000, device="cuda") * (dist.get_rank() + 1)
work = dist.all_reduce(a, async_op=True)
work.wait()
held = {str(i): a + i for i in range(3)}
print(sum(held.values())[0].item())
dist.destroy_process_group()
"""


def started(folder: Path, timing: str, *, warm: bool) -> tuple[list[bytes], str]:
    """The traces of a run in a process of its own. Unless it is ``warm``, it gets a hash seed of its own."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    command = [
        "-m",
        "streamrace.device",
        "--ranks",
        "2",
        "--trace",
        str(folder),
        "--timing",
        timing,
        str(folder / "train.py"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if warm:
        done = with_simulated_gpu().run(*command, environment=environment)
    else:
        environment["PYTHONHASHSEED"] = "1"
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
        )
    assert done.returncode == 0, done.stderr
    return [file_of(folder, rank).read_bytes() for rank in range(2)], done.stderr


def records(folder: Path, rank: int) -> list[TraceRecord]:
    return list(TraceReader(file_of(folder, rank)).read())


@pytest.mark.host
def test_the_same_timing_gives_the_same_trace_byte_for_byte(tmp_path: Path) -> None:
    timing = "t1,jitter:20:7,1/1/nccl::all_reduce/1@+64us,0/0/aten::add/9+1us"
    one, said = started(tmp_path / "one", timing, warm=False)
    other, _ = started(tmp_path / "other", timing, warm=True)
    assert one == other
    assert "streamrace: the timing delays 0/0/aten::add/9+1us, but the program launched no such work" in said

    # The rank that comes late lets both begin late, and each tells what it saw.
    starts = []
    for rank in range(2):
        told = records(tmp_path / "one", rank)
        starts += [one.start for one in told if isinstance(one, Collective) and one.kernel == "nccl::all_reduce"]
        op = [one.op for one in told if isinstance(one, Launch) and one.kernel == "aten::_local_scalar_dense"]
        assert [one.probe for one in told if isinstance(one, Probe) and one.kind == "read"] == op
        assert {one.probe for one in told if isinstance(one, Probed)} == {
            one.probe for one in told if isinstance(one, Probe)
        }
    assert starts[0] == starts[1] > 64_000
