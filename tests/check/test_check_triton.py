"""Triton kernels take part in races as torch's own do: with the user's line, a witness, and a twin that is clean."""

from __future__ import annotations

import importlib.util
from textwrap import dedent

import pytest

from tests.check.conftest import Checking

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]

KERNELS = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, out, factor, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at) * factor)

    @triton.jit
    def rows_of(table, index, out, BLOCK: tl.constexpr):
        row = tl.load(index + tl.program_id(0))
        at = tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(table + row * BLOCK + at))

    side = torch.cuda.Stream()
"""

AVERAGE = """
    weights, average = torch.ones(1024, device="cuda"), torch.empty(1024, device="cuda")
    for step in range(2):
        weights += 1
        WAIT
        with torch.cuda.stream(side):
            scale[(4,)](weights, average, 0.5, BLOCK=256)
    torch.cuda.current_stream().wait_stream(side)
    print("average", average.mean().item())
"""


def program(body: str, **words: str) -> str:
    text = dedent(KERNELS) + dedent(body)
    for word, stands in words.items():
        text = text.replace(word, stands)
    return text


def line_of(text: str, words: str) -> str:
    return f"train.py:{next(at for at, line in enumerate(text.lstrip().splitlines(), 1) if words in line)}"


def pairs(found: dict[str, list[dict[str, dict[str, str]]]]) -> set[tuple[str, str]]:
    return {(race["first"]["kernel"], race["second"]["kernel"]) for race in found["races"]}


def test_a_kernel_on_a_stream_that_waits_for_nothing_is_a_harmful_race_with_the_line_of_its_launch(
    check: Checking,
) -> None:
    text = program(AVERAGE, WAIT="pass")
    launch, write = (line_of(text, words) for words in ("scale[(4,)]", "weights += 1"))
    check.script(text)
    done = check("--witnesses", "2", "train.py")
    assert done.status == 1, done.err
    assert pairs(done.findings) == {("aten::add", "triton::scale"), ("triton::scale", "aten::add")}
    assert f"{launch} reads memory on stream 1 while {write} may still be writing it" in done.told
    assert "triton/" not in done.out and "streamrace/device" not in done.out
    verdicts = {race["second"]["kernel"]: race["witness"]["verdict"] for race in done.findings["races"]}
    assert verdicts["triton::scale"] == "harmful" and set(verdicts.values()) <= {"harmful", "benign"}, done.out


def test_the_twin_that_waits_both_ways_is_clean_and_computes_the_same_in_each_timing(check: Checking) -> None:
    body = AVERAGE.replace("weights += 1", "torch.cuda.current_stream().wait_stream(side); weights += 1")
    check.script(program(body, WAIT="side.wait_stream(torch.cuda.current_stream())"))
    for more in ((), ("--slow", "kernel:triton::scale=100"), ("--slow", "kernel:aten::add=100")):
        done = check(*more, "--overwrite", "train.py")
        assert (done.status, done.findings["races"]) == (0, []), done.out
        assert "average 1.5" in done.out


LOOKED_UP = """
    table = torch.zeros(8, 64, device="cuda")
    index = torch.tensor([1, 3], device="cuda")
    out = torch.zeros(2, 64, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    rows_of[(2,)](table, index, out, BLOCK=64)
    with torch.cuda.stream(side):
        table[ROW].fill_(7.0)
    torch.cuda.synchronize()
"""


@pytest.mark.parametrize(("row", "races"), [("3", 1), ("2", 0)])
def test_only_the_rows_that_the_indices_name_are_read(check: Checking, row: str, races: int) -> None:
    check.script(program(LOOKED_UP, ROW=row))
    done = check("train.py")
    assert len(done.findings["races"]) == races, done.out


BACKWARD = """
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            out = torch.empty_like(x)
            scale[(1,)](x, out, 2.0, BLOCK=64)
            return out

        @staticmethod
        def backward(context, gradient):
            out = torch.empty_like(gradient)
            scale[(1,)](gradient.contiguous(), out, 2.0, BLOCK=64)
            return out

    x = torch.ones(64, device="cuda", requires_grad=True)
    Scaled.apply(x).sum().backward()
    WAIT
    with torch.cuda.stream(side):
        copy = x.grad * 1
    torch.cuda.synchronize()
    print("gradient", copy[0].item())
"""


@pytest.mark.parametrize("waits", [False, True])
def test_a_kernel_in_a_backward_pass_is_judged_as_the_forward_one(check: Checking, waits: bool) -> None:
    wait = "side.wait_stream(torch.cuda.current_stream())" if waits else "pass"
    check.script(program(BACKWARD, WAIT=wait))
    done = check("train.py")
    assert pairs(done.findings) == (set() if waits else {("triton::scale", "aten::mul")}), done.out
    assert "gradient 2.0" in done.out


RANKS = """
    import os

    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x, out = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    WAIT
    scale[(1,)](x, out, 0.5, BLOCK=256)
    work.wait()
    print("mean", out[0].item())
"""


@pytest.mark.parametrize("waits", [False, True])
def test_a_kernel_that_reads_what_ranks_reduce_waits_for_the_collective(check: Checking, waits: bool) -> None:
    check.script(program(RANKS, WAIT="work.wait()" if waits else "pass"))
    done = check("--ranks", "2", "train.py")
    assert pairs(done.findings) == (set() if waits else {("nccl::all_reduce", "triton::scale")}), done.out
    assert not waits or "mean 1.0" in done.out


COMPILED = """
    import warnings

    warnings.simplefilter("error")

    @torch.compile
    def scaled(x):
        out = torch.empty_like(x + 1)
        scale[(1,)](x * 2, out, 0.5, BLOCK=64)
        return out - 1

    x = torch.full((64,), 3.0, device="cuda")
    result = scaled(x)
    WAIT
    with torch.cuda.stream(side):
        copy = result * 1
    torch.cuda.synchronize()
    print("result", result[0].item())
"""


@pytest.mark.parametrize("waits", [False, True])
def test_a_launch_within_a_compiled_function_breaks_its_graph_and_is_judged(check: Checking, waits: bool) -> None:
    check.script(program(COMPILED, WAIT="side.wait_stream(torch.cuda.current_stream())" if waits else "pass"))
    done = check("--compile", "aot_eager", "train.py")
    assert "result 2.0" in done.out, done.err
    assert pairs(done.findings) == (set() if waits else {("aten::sub", "aten::mul")})


def test_a_dry_run_refuses_a_kernel_by_its_name(check: Checking) -> None:
    check.script(program(AVERAGE, WAIT="pass"))
    done = check("--dry", "train.py")
    assert "the Triton kernel 'scale' cannot be simulated: its accesses follow from values" in done.err


UNWRITTEN = """
    x, out = torch.ones(512, device="cuda"), torch.empty(512, device="cuda")
    scale[(GRID,)](x, out, 0.5, BLOCK=256)
    WAIT
    with torch.cuda.stream(side):
        out[256:] = 0.5
    torch.cuda.current_stream().wait_stream(side)
    print("sum", (out * 2).sum().item())
"""


@pytest.mark.parametrize(("grid", "rest", "verdict"), [(2, "", "clean"), (1, "", "clean"), (1, "#", "uninitialised")])
def test_memory_that_a_kernel_leaves_unwritten_is_told_if_no_other_work_writes_it(
    check: Checking, grid: int, rest: str, verdict: str
) -> None:
    """The other half is written by another stream, at the same time where both need not wait for each other."""
    wait = "side.wait_stream(torch.cuda.current_stream())" if grid == 2 else "pass"
    text = program(UNWRITTEN, GRID=str(grid), WAIT=wait)
    check.script(text.replace("out[256:]", f"pass {rest} = out[256:]") if rest else text)
    done = check("--witnesses", "2", "--slow", "kernel:triton::scale=100", "train.py")
    assert done.findings["verdict"] == verdict, done.out
    assert "sum 512.0" in done.out or rest


def test_a_program_without_triton_imports_nothing_of_it(check: Checking) -> None:
    check.script("""
        import sys

        import torch

        torch.nn.Linear(4, 4).cuda()(torch.ones(4, device="cuda")).sum().backward()
        print("imported", [name for name in sys.modules if name.partition(".")[0] == "triton"])
    """)
    assert "imported []" in check("train.py").out


GRAPH = """
    x, out = torch.zeros(1024, device="cuda"), torch.empty(1024, device="cuda")

    def work():
        scale[(4,)](x, out, 2.0, BLOCK=256)  # captured

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for step in range(3):
        WAIT
        with torch.cuda.stream(side):
            x.fill_(step)
        torch.cuda.current_stream().wait_stream(side)
        graph.replay()  # replayed
        print("sum", out.sum().item())
"""


def test_a_kernel_in_a_cuda_graph_runs_at_each_replay_and_takes_part_in_its_races(check: Checking) -> None:
    text = program(GRAPH, WAIT="side.wait_stream(torch.cuda.current_stream())")
    right = check(check.script(text))
    assert right.status == 0, right.out + right.err
    assert [line for line in right.out.splitlines() if line.startswith("sum")] == [
        "sum 0.0",
        "sum 2048.0",
        "sum 4096.0",
    ]
    text = program(GRAPH.replace('print("sum", out.sum().item())', "pass"), WAIT="pass")
    wrong = check("--overwrite", check.script(text))
    assert wrong.status == 1, wrong.out + wrong.err
    assert pairs(wrong.findings) == {("triton::scale", "aten::fill_")}
    (race,) = wrong.findings["races"]
    places = [(frame["line"], frame["function"].endswith("(captured)")) for frame in race["first"]["stack"][:2]]
    lines = [int(line_of(text, words).partition(":")[2]) for words in ("# captured", "# replayed")]
    assert places == [(lines[0], True), (lines[1], False)]


def test_memory_of_a_pool_that_a_kernel_writes_is_its_tensors(check: Checking) -> None:
    body = """
        x = torch.ones(1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            temporary = x * 3
            total = temporary.sum()
            del temporary
            out = torch.empty(1024, device="cuda")  # has its memory
            scale[(4,)](x, out, 2.0, BLOCK=256)
        graph.replay()
        print("sum", out.sum().item())
    """
    done = check(check.script(program(body)))
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.out + done.err
    assert "sum 2048.0" in done.out
