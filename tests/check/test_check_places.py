"""Where a race is: streams that a loop makes anew, accesses of the host, work at the end of a context manager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrace.reports.data.findings import Findings
from streamrace.reports.formats import writing
from tests.check.conftest import Checking as Check

HERE = Path(__file__).resolve().parents[2] / "scenarios" / "catalogue" / "fsdp2"


def test_a_stream_made_anew_in_each_iteration_makes_one_race(check: Check) -> None:
    check.script("""
        import torch

        one = torch.ones(64, 64, device="cuda")
        for _ in range(10):
            side = torch.cuda.Stream()
            made = one @ one
            with torch.cuda.stream(side):
                read = made.sum()
            torch.cuda.synchronize()
    """)
    (race,) = check("--witnesses", "0", "train.py").findings["races"]
    assert race["occurrences"] == 10


def test_streams_that_are_made_at_two_lines_are_two_races_through_one_helper(check: Check) -> None:
    """So with a helper that makes them: it counts who asked for one."""
    check.script("""
        import torch

        def stream():
            return torch.cuda.Stream()

        def total(side):
            with torch.cuda.stream(side):
                return made.sum()

        one = torch.ones(64, 64, device="cuda")
        left = stream()
        right = stream()
        made = one @ one
        for side in (left, right):
            total(side)
        torch.cuda.synchronize()
    """)
    races = check("--witnesses", "0", "train.py").findings["races"]
    assert [(race["occurrences"], race["second"]["stream"]) for race in races] == [(1, "stream 1"), (1, "stream 2")]


def test_two_lines_that_race_on_a_stream_each_are_two_races(check: Check) -> None:
    check.script("""
        import torch

        one = torch.ones(64, 64, device="cuda")
        sides = [torch.cuda.Stream() for _ in range(2)]
        made = one @ one
        with torch.cuda.stream(sides[0]):
            read = made.sum()
        with torch.cuda.stream(sides[1]):
            also = made.sum()
        torch.cuda.synchronize()
    """)
    assert len(check("--witnesses", "0", "train.py").findings["races"]) == 2


def test_the_host_is_no_stream_and_a_stream_without_a_name_has_its_number(check: Check) -> None:
    check.script("""
        import torch

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            there = (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).to("cpu", non_blocking=True)
        print(there.sum().item())
    """)
    done = check("--witnesses", "0", "train.py")
    assert "second read by aten::sum on the host" in done.told
    assert "Missing: the host never waits for stream 1 after cudaMemcpyAsync DtoH" in done.told


def test_the_end_of_a_context_manager_is_no_place(check: Check) -> None:
    check.script("""
        import contextlib
        import torch

        kept = torch.zeros(64, device="cuda")

        @contextlib.contextmanager
        def counting():
            yield
            kept.add_(1)

        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with counting():
            pass
        with torch.cuda.stream(side):
            read = kept * 2
        torch.cuda.synchronize()
    """)
    (race,) = check("--witnesses", "0", "train.py").findings["races"]
    assert [frame["function"] for frame in race["first"]["stack"]] == ["counting", "<module>"]


@pytest.mark.parametrize("program", ["fsdp2_copy_out", "fsdp2_reduce_scatter"])
def test_each_race_within_fsdp2_is_shown_at_the_line_of_the_program_that_led_to_it(check: Check, program: str) -> None:
    """Its forward runs eight calls below the program's line, its backward in hooks that autograd's thread calls."""
    for name in (program, "_training"):
        check.script((HERE / f"{name}.py").read_text(), f"{name}.py")
    done = check("--ranks", "2", f"{program}.py", "--without")
    assert done.status == 1, done.err
    (run,) = json.loads(writing.text(Findings.read(check.folder / "runs" / "it"), "sarif"))["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"_training.py"}
    lines = (HERE / "_training.py").read_text().splitlines()
    shown = {lines[place["region"]["startLine"] - 1].strip() for place in places}
    assert shown <= {"loss = model(batch).float().square().mean()", "loss.backward()", "optimizer.step()"}
