"""The recorder of a GPU, on torch's real CUDA build, and the simulated device write the same records of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.trace.records import Collective, HostWait, RecordStream
from tests.real_build.building import ROOT, RealBuild
from tests.real_build.order import HOST, of_calls, of_trace
from tests.real_build.recorded import Recorded, pairs, story
from tests.real_build.running import PROGRAMS, hpz
from tests.real_build.test_real_order import MASKS

pytestmark = pytest.mark.real_build

# What NCCL's work keeps alive, a thread of torch's frees at a time of its own.
_NCCL = (
    "an_all_reduce_is_not_waited_for",
    "an_all_reduce_is_waited_for",
    "the_input_of_an_all_gather_is_overwritten",
    "a_result_is_reduced_on_another_stream_and_not_waited_for",
)


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
    assert pairs(of.theirs) == pairs(of.own) == set()


def test_small_programs_have_the_same_order_and_the_same_races(real: RealBuild, tmp_path: Path) -> None:
    of = Recorded(real, tmp_path, PROGRAMS / "corpus.py", *MASKS, *_NCCL, STREAMRACE_REAL_BUILD_UNREADY="1")
    assert of_trace(of.theirs[0]) == of_trace(of.own[0])
    assert len(pairs(of.own)) > 30
    assert pairs(of.theirs) == pairs(of.own)


# Programs of one rank, how many records each has at least, and whether it races.
ALONE = {
    "allocator": (("allocator.py", "--kept"), 1000, False),
    "memory limit": (("memory_limit.py",), 500, False),
    "lists of tensors": (("foreach.py",), 500, False),
    "views": (("views.py",), 2000, True),
    "host copies": (("host_copies.py",), 200, True),
    **{f"random steps {seed}": (("random_steps.py", f"{seed}", "100"), 1000, True) for seed in range(3)},
}


@pytest.mark.parametrize("name", ALONE)
def test_a_program_of_one_rank_has_the_same_records_and_races(real: RealBuild, tmp_path: Path, name: str) -> None:
    (program, *words), count, races = ALONE[name]
    of = Recorded(real, tmp_path, PROGRAMS / program, *words)
    assert len(story(of.own[0])) > count
    assert story(of.theirs[0]) == story(of.own[0])
    assert bool(pairs(of.own)) == races
    assert pairs(of.theirs) == pairs(of.own)


@pytest.mark.parametrize("program", [ROOT / "examples" / "fsdp2.py", PROGRAMS / "hsdp.py"], ids=lambda file: file.stem)
def test_sharded_training_has_the_same_records_and_no_race(real: RealBuild, tmp_path: Path, program: Path) -> None:
    of = Recorded(real, tmp_path, program, ranks=2 if program.stem == "fsdp2" else 4)
    for rank in of.ranks:
        assert len(story(of.own[rank])) > 500
        assert story(of.theirs[rank]) == story(of.own[rank])
    assert pairs(of.theirs) == pairs(of.own) == set()


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_zero_has_the_same_records_and_no_race(real: RealBuild, tmp_path: Path, stage: str) -> None:
    of = Recorded(real, tmp_path, PROGRAMS / "zero.py", stage, ranks=2)
    for rank in of.ranks:
        # Stage 3 prints its tensors, by masked_select: see test_where_records_differ.
        records = of_trace if stage == "3" else story
        assert len(records(of.own[rank])) > (700 if stage == "3" else 900)
        assert records(of.theirs[rank]) == records(of.own[rank])
    assert pairs(of.theirs) == pairs(of.own) == set()


_SELECT = "import torch\nx = torch.ones(36, device='cuda')\ntorch.masked_select(x, x > 0)\n"
_RANKS = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parts = list(torch.zeros(2, 8, device="cuda"))
dist.all_gather(parts, torch.ones(8, device="cuda"))
dist.destroy_process_group()
"""


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="docs/concepts/departures.md")
@pytest.mark.parametrize(
    ("code", "ranks"),
    [
        pytest.param(_SELECT, 0, id="what is selected has indices"),
        pytest.param(_RANKS, 2, id="a list is gathered by way of a buffer"),
    ],
)
def test_where_records_differ(real: RealBuild, tmp_path: Path, code: str, ranks: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(code)
    of = Recorded(real, tmp_path, program, ranks=ranks)
    if of_trace(of.theirs[0]) != of_trace(of.own[0]):
        pytest.fail("the waits differ, too")
    assert story(of.theirs[0]) == story(of.own[0])


def test_the_host_waits_for_a_barrier_once_it_was_issued(real: RealBuild, tmp_path: Path) -> None:
    """Else what the host does behind the barrier would not be ordered with the other ranks' work before it."""
    program = tmp_path / "barrier.py"
    program.write_text(_RANKS.replace("dist.all_gather(", "dist.barrier()\n#"))
    of = Recorded(real, tmp_path, program, ranks=2)
    for records in of.theirs:
        order = [one for one in records if isinstance(one, (Collective, HostWait))]
        barrier = next(at for at, one in enumerate(order) if isinstance(one, Collective) and "barrier" in one.kernel)
        assert not order[:barrier] and isinstance(order[barrier + 1], HostWait)


_EMPTIED = "torch.cuda.empty_cache()"
_RETRIED = """
torch.cuda.set_per_process_memory_fraction(24 * 2**20 / torch.cuda.get_device_properties(0).total_memory)
big = torch.empty(24 * 2**20, dtype=torch.uint8, device="cuda")
del big
"""


@pytest.mark.parametrize("given_back", [_EMPTIED, _RETRIED], ids=["empty_cache", "before an allocation fails"])
def test_memory_that_went_back_to_the_driver_is_not_reused(real: RealBuild, tmp_path: Path, given_back: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import torch
x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x + 1
del x, y
{given_back}
z = torch.zeros(8, device="cuda")
""")
    of = Recorded(real, tmp_path, program)
    assert story(of.theirs[0]) == story(of.own[0])
    assert pairs(of.theirs) == pairs(of.own) == set()


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
