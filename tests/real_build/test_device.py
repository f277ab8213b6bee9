"""The simulated device agrees with torch's real CUDA build: the allocator's figures, streams, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_build.building import RealBuild
from tests.real_build.running import PROGRAMS, run, simulate

pytestmark = pytest.mark.real_build

# Without a workspace of cuBLAS, which the simulated device does not have: see below.
_NO_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}
_EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_the_allocator_has_the_same_figures_and_gives_out_the_same_addresses(real: RealBuild) -> None:
    ran = run(real, PROGRAMS / "allocator.py", **_NO_WORKSPACE)
    assert len(ran.lines) > 800
    assert ran.lines == simulate(PROGRAMS / "allocator.py").lines


def test_blocks_that_another_stream_may_use_come_back_when_its_event_is_over(real: RealBuild) -> None:
    late = run(real, PROGRAMS / "allocator.py", **_NO_WORKSPACE, STREAMRACE_REAL_BUILD_UNREADY="1000")
    soon = run(real, PROGRAMS / "allocator.py", **_NO_WORKSPACE)
    assert late.lines != soon.lines


@pytest.mark.parametrize("unready", ["0", "1000"])
def test_up_to_a_limit_and_beyond_the_allocator_has_the_same_figures_and_errors(real: RealBuild, unready: str) -> None:
    ran = run(real, PROGRAMS / "memory_limit.py", STREAMRACE_REAL_BUILD_UNREADY=unready)
    assert len([line for line in ran.lines if "CUDA out of memory" in line]) > 40
    assert ran.lines == simulate(PROGRAMS / "memory_limit.py").lines


# Where an event is over at once, memory that another stream used comes back before one allocation more.
@pytest.mark.parametrize(
    ("program", "lines", "settings"),
    [("allocator.py", 700, _NO_WORKSPACE), ("memory_limit.py", 2000, {"STREAMRACE_REAL_BUILD_UNREADY": "1000"})],
)
def test_expandable_segments_have_the_same_figures_and_addresses(
    real: RealBuild, program: str, lines: int, settings: dict[str, str]
) -> None:
    ran = run(real, PROGRAMS / program, **settings, **_EXPANDABLE)
    assert len(ran.lines) > lines
    assert ran.lines == simulate(PROGRAMS / program, **_EXPANDABLE).lines


def test_norms_of_a_list_take_the_same_memory_meanwhile(real: RealBuild) -> None:
    ran = run(real, PROGRAMS / "foreach.py", "--norms", CUBLAS_WORKSPACE_CONFIG=":0:0")
    assert ran.lines == simulate(PROGRAMS / "foreach.py", "--norms").lines


def test_the_33rd_stream_of_a_priority_is_the_first_again(real: RealBuild) -> None:
    ran = run(real, PROGRAMS / "streams.py")
    assert ran.lines[1].startswith(str([number % 32 for number in range(40)]))
    assert ran.lines == simulate(PROGRAMS / "streams.py").lines


def test_misuse_gives_the_same_errors(real: RealBuild) -> None:
    ran = run(real, PROGRAMS / "errors.py")
    assert len(ran.lines) == 25
    assert "no error" not in str(ran.lines)
    assert ran.lines == simulate(PROGRAMS / "errors.py").lines


_HEAD = "import torch\nx = torch.ones(8, 8, device='cuda')\n"
_LEAVES = [
    ("priorities", "print(torch.cuda.Stream(priority=-2).priority, torch.cuda.Stream.priority_range())"),
    ("stream id", "print(torch.cuda.Stream().stream_id)"),
    ("workspace", "x @ x\nprint(torch.cuda.memory_stats()['allocation.all.allocated'])"),
    ("history of split blocks", "x = None\nprint(torch.cuda.memory_stats()['inactive_split.all.freed'])"),
    ("snapshot", "print(len(torch.cuda.memory_snapshot()))"),
    ("text of an error", "try: x @ torch.ones(8, 8)\nexcept RuntimeError as error: print(error)"),
    ("text of an event", "print(torch.cuda.Event())"),
]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="docs/concepts/departures.md")
@pytest.mark.parametrize("code", [code for _, code in _LEAVES], ids=[name for name, _ in _LEAVES])
def test_where_the_simulated_device_departs(real: RealBuild, tmp_path: Path, code: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_HEAD + code)
    ran = run(real, program).lines
    if not ran:
        pytest.fail("the real build prints nothing")
    assert ran == simulate(program).lines
