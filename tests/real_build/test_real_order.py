"""The simulated device records the waits that torch's real CUDA build asks CUDA for, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.trace.files import TraceReader
from tests.real_build.building import ROOT, RealBuild
from tests.real_build.order import ALL, HOST, Waiting, of_calls, of_trace
from tests.real_build.running import PROGRAMS, Ran, run, simulate

pytestmark = pytest.mark.real_build

# Programs in which the simulated device's host waits twice: see below.
MASKS = ("a_mask_makes_the_host_wait_for_what_came_before", "what_a_mask_selects_is_read_once_the_host_has_counted")


def _recorded(folder: Path, *words: str | Path, ranks: int = 0) -> list[list[Waiting]]:
    simulate(*words, ranks=ranks, trace=folder if ranks else folder / "rank0.trace")
    return [of_trace(TraceReader(folder / f"rank{rank}.trace").read()) for rank in range(max(ranks, 1))]


def _asked(ran: Ran) -> list[list[Waiting]]:
    return [of_calls(calls) for calls in ran.calls]


def test_stock_fsdp2_waits_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    program = ROOT / "examples" / "fsdp2.py"
    asked = _asked(run(real, program, ranks=2))
    assert [sum(who != HOST for who, _ in waits) for waits in asked] == [99, 99]
    assert asked == _recorded(tmp_path, program, ranks=2)


def test_small_programs_wait_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    words = (PROGRAMS / "corpus.py", *MASKS)
    (asked,) = _asked(run(real, *words))
    assert {HOST, ALL} < {one for waiting in asked for one in waiting}
    assert [asked] == _recorded(tmp_path, *words)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the simulated device has two waits of the host, torch one"
)
def test_a_mask_makes_the_host_wait_once(real: RealBuild, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nx = torch.ones(8, device='cuda')\nx[x > 0]\n")
    assert _asked(run(real, program)) == _recorded(tmp_path, program)


_START = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(4, device="cuda")
"""


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="docs/concepts/departures.md")
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("dist.all_reduce(x)\ndist.barrier()", id="a barrier is on the current stream"),
        pytest.param((PROGRAMS / "ddp.py").read_text(encoding="utf-8"), id="DDP's timers, and its future"),
    ],
)
def test_where_the_simulated_device_departs(real: RealBuild, tmp_path: Path, code: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(code if code.startswith('"') else _START + code + "\ndist.destroy_process_group()\n")
    asked = _asked(run(real, program, ranks=2))
    if not all(asked):
        pytest.fail("the real build waits for nothing")
    assert asked == _recorded(tmp_path, program, ranks=2)
