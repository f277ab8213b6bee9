"""The recorder of a GPU, on torch's real CUDA build, and the simulated device write the same records of a program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from streamrace.detectors import RaceDetector
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Alloc, Collective, Free, RecordStream, Reuse, TraceRecord
from tests.real_build.building import ROOT, RealBuild
from tests.real_build.order import HOST, of_calls, of_trace
from tests.real_build.running import PROGRAMS, Ran, hpz, run, simulate
from tests.real_build.test_real_order import MASKS

pytestmark = pytest.mark.real_build

Pair = tuple[str, tuple[str, int], tuple[str, int]]
FSDP2 = ROOT / "examples" / "fsdp2.py"
# What NCCL's work keeps alive, a thread of torch's frees at a time of its own.
_NCCL = (
    "an_all_reduce_is_not_waited_for",
    "an_all_reduce_is_waited_for",
    "the_input_of_an_all_gather_is_overwritten",
    "a_result_is_reduced_on_another_stream_and_not_waited_for",
)


class Recorded:
    """The traces of one program: of the simulated device (``own``), and of the recorder (``theirs``), by rank."""

    def __init__(self, real: RealBuild, folder: Path, *words: str | Path, ranks: int = 0, **settings: str) -> None:
        own, theirs = folder / "own", folder / "theirs"
        own.mkdir()
        self.ranks = range(max(ranks, 1))
        simulate(*words, ranks=ranks, trace=own if ranks else own / "rank0.trace")
        self.ran: Ran = run(real, "-m", "streamrace.recorder", "--trace", theirs, *words, ranks=ranks, **settings)
        self.own, self.theirs = self._read(own), self._read(theirs)

    def _read(self, folder: Path) -> list[list[TraceRecord]]:
        return [list(TraceReader(folder / f"rank{rank}.trace").read()) for rank in self.ranks]


def _memory(records: Sequence[TraceRecord]) -> list[tuple[int, ...]]:
    """Return the device's allocations, frees and reuses, with blocks numbered in their order."""
    numbers: dict[int, int] = {}
    made: list[tuple[int, ...]] = []
    for record in records:
        if isinstance(record, Alloc) and record.stream >= 0:  # else pinned memory, whose free has no callback
            numbers[record.block] = len(numbers)
            made.append((numbers[record.block], record.nbytes))
        elif isinstance(record, Free) and record.block in numbers:
            made.append((numbers[record.block],))
        elif isinstance(record, Reuse) and record.block in numbers:
            made.append((numbers[record.block], numbers[record.former], *record[2:5], record.last))
    return made


def _exchanged(records: Sequence[TraceRecord]) -> list[tuple[str, int, int]]:
    """Return each collective's name, and how many bytes it reads and writes."""
    return [
        (one.kernel.rpartition("::")[2].rstrip("_"), *(sum(hi - lo for _, lo, hi, _ in part) for part in one[3:5]))
        for one in records
        if isinstance(one, Collective)
    ]


def _pairs(traces: Sequence[Sequence[TraceRecord]]) -> set[Pair]:
    """Return the pairs of lines that race. Kernels have other names on both, so reads and writes are not told apart."""
    detector = RaceDetector()
    for rank, records in enumerate(traces):
        detector.feed(rank, records)
    detector.finish()

    def line(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int]:
        return (Path(frames[0][0]).name, frames[0][1]) if frames else ("", 0)

    return {
        (race.kind if race.kind == "reused" else "overlap", line(race.first.stack), line(race.second.stack))
        for race in detector.races
    }


@pytest.mark.parametrize("name", ["ddp", "hpz"])
def test_the_recorder_saw_every_wait_that_the_libraries_were_asked_for(
    real: RealBuild, tmp_path: Path, name: str
) -> None:
    program = PROGRAMS / "ddp.py" if name == "ddp" else hpz(tmp_path)
    of = Recorded(real, tmp_path, program, ranks=2)
    for rank in of.ranks:
        waits = of_trace(of.theirs[rank])
        assert len([who for who, _ in waits if who != HOST]) > 10
        assert waits == of_calls(of.ran.calls[rank])
    assert _pairs(of.theirs) == _pairs(of.own) == set()


def test_the_allocator_reuses_the_same_bytes(real: RealBuild, tmp_path: Path) -> None:
    program = tmp_path / "allocator.py"
    text = (PROGRAMS / "allocator.py").read_text(encoding="utf-8")
    program.write_text(text.replace("    torch.cuda.empty_cache()\n", ""))
    of = Recorded(real, tmp_path, program, CUBLAS_WORKSPACE_CONFIG=":0:0")
    assert len(_memory(of.own[0])) > 1000
    assert _memory(of.theirs[0]) == _memory(of.own[0])


def test_small_programs_have_the_same_order_and_the_same_races(real: RealBuild, tmp_path: Path) -> None:
    of = Recorded(real, tmp_path, PROGRAMS / "corpus.py", *MASKS, *_NCCL, STREAMRACE_REAL_BUILD_UNREADY="1")
    assert of_trace(of.theirs[0]) == of_trace(of.own[0])
    assert len(_pairs(of.own)) > 30
    assert _pairs(of.theirs) == _pairs(of.own)


def test_stock_fsdp2_has_the_same_order_and_collectives_and_no_race(real: RealBuild, tmp_path: Path) -> None:
    of = Recorded(real, tmp_path, FSDP2, ranks=2)
    for rank in of.ranks:
        assert of_trace(of.theirs[rank]) == of_trace(of.own[rank])
        assert len(_exchanged(of.own[rank])) == 27
        assert _exchanged(of.theirs[rank]) == _exchanged(of.own[rank])
    assert _pairs(of.theirs) == _pairs(of.own) == set()


# Lines of the pinned torch.
@pytest.mark.parametrize(
    ("method", "place", "races"),
    [
        ("wait_stream", "_fsdp_collectives.py:362", 3),
        ("wait_stream", "_fsdp_collectives.py:607", 2),
        ("wait_event", "_fsdp_collectives.py:447", 3),
    ],
)
def test_fsdp2_without_a_wait_has_the_same_races(
    real: RealBuild, tmp_path: Path, method: str, place: str, races: int
) -> None:
    of = Recorded(real, tmp_path, PROGRAMS / "without.py", method, place, FSDP2, ranks=2)
    assert len(_pairs(of.own)) == races
    assert _pairs(of.theirs) == _pairs(of.own)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="a table of addresses, copied to the device, is allocated"
)
def test_the_fused_copies_of_fsdp2_allocate_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    of = Recorded(real, tmp_path, FSDP2, ranks=2, CUBLAS_WORKSPACE_CONFIG=":0:0")
    assert _memory(of.theirs[0]) == _memory(of.own[0])


def test_memory_that_went_back_to_the_driver_is_not_reused(real: RealBuild, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import torch
x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x + 1
del x
torch.cuda.empty_cache()
z = torch.zeros(8, device="cuda")
""")
    of = Recorded(real, tmp_path, program)
    assert _pairs(of.theirs) == _pairs(of.own) == set()


@pytest.mark.parametrize(("setting", "uses"), [("1", 0), ("0", 1)])
def test_what_nccl_tells_the_allocator_by_itself_is_known_by_its_setting(
    real: RealBuild, tmp_path: Path, setting: str, uses: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(8, device="cuda"), async_op=True).wait()
dist.destroy_process_group()
""")
    of = Recorded(real, tmp_path, program, ranks=2, TORCH_NCCL_AVOID_RECORD_STREAMS=setting)
    assert [sum(isinstance(record, RecordStream) for record in records) for records in of.theirs] == [uses, uses]


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_have_the_same_order_and_the_same_races(real: RealBuild, tmp_path: Path, seed: int) -> None:
    of = Recorded(real, tmp_path, PROGRAMS / "random_steps.py", str(seed), "100", CUBLAS_WORKSPACE_CONFIG=":0:0")
    assert of_trace(of.theirs[0]) == of_trace(of.own[0])
    assert len(_pairs(of.own)) > 100
    assert _pairs(of.theirs) == _pairs(of.own)
