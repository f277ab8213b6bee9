"""Compiled functions are judged as the program is written, or as the graphs that AOTAutograd makes of it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.check.conftest import Checking
from tests.warm import shell, with_simulated_gpu

AOT = ("--compile", "aot_eager")

TRAINING = """
    import warnings

    import torch

    warnings.simplefilter("error")

    def losses(compiled):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)]
        model = torch.nn.Sequential(*layers).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            return model(x).square().mean()

        run = torch.compile(step, fullgraph=True, mode="reduce-overhead") if compiled else step
        for number in range(3):
            loss = run(torch.full((4, 8), 1.0 + number, device="cuda"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()

    compiled = list(losses(True))
    print("equal" if compiled == list(losses(False)) else "different", len(set(compiled)))
"""

BESIDE = """
    import torch

    side = torch.cuda.Stream()

    def scaled(x):
        return x * 3

    @torch.compile
    def work(x):
        y = x @ x
        return scaled(y)  # writes what is read beside

    out = work(torch.ones(64, 64, device="cuda"))
    WAIT
    with torch.cuda.stream(side):
        total = out.sum()
    torch.cuda.synchronize()
"""

COLLECTIVES = """
    import os
    import sys

    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")

    def step(x, weight):
        whole = collectives.all_gather_tensor(weight, 0, dist.group.WORLD)
        part = collectives.reduce_scatter_tensor(x @ whole, "sum", 0, dist.group.WORLD)
        return part + 1

    def without_last_wait(graph, _):
        *_, last = (node for node in graph.graph.nodes if "wait_tensor" in str(node.target))
        last.replace_all_uses_with(last.args[0])
        graph.graph.erase_node(last)
        graph.recompile()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=without_last_wait) if sys.argv[1:] else "inductor"
    x, weight = torch.ones(4, 8, device="cuda"), torch.ones(4, 8, device="cuda")
    out = torch.compile(step, backend=backend, fullgraph=True)(x, weight)
    torch.cuda.synchronize()
"""

SHARDED = """
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)

        def forward(self, x):
            return BODY

    model = torch.nn.Sequential(*(Block() for _ in range(2))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model)
    for step in range(2):
        run(torch.ones(4, 16, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_compiled_training_step_has_the_losses_of_the_eager_one_bit_for_bit(check: Checking) -> None:
    check.script(TRAINING)
    done = check(*AOT, "train.py")
    assert done.status == 0, done.err
    assert "equal 3" in done.out
    assert "ran as graphs of AOTAutograd, operator by operator (--compile aot_eager): this says nothing of" in done.told
    assert done.findings["scenario"]["compile"] == "aot_eager"


def test_the_verdict_says_when_compiled_functions_ran_eagerly_and_is_silent_without_any(check: Checking) -> None:
    check.script(BESIDE.replace("WAIT", "side.wait_stream(torch.cuda.current_stream())"))
    done = check("train.py")
    assert done.status == 0, done.err
    assert "What torch.compile compiles ran eagerly, operator by operator" in done.told
    assert "compile" not in done.findings["scenario"]
    check.script("import torch\ntorch.ones(4, device='cuda')")
    assert "compiled" not in check(*AOT, "--overwrite", "train.py").findings["checked"]


def test_a_race_with_a_compiled_function_is_found_at_the_line_that_was_traced(check: Checking) -> None:
    check.script(BESIDE.replace("WAIT", "side.wait_stream(torch.cuda.current_stream())"))
    clean = check(*AOT, "train.py")
    assert clean.status == 0, clean.err
    check.script(BESIDE.replace("WAIT", "pass"))
    done = check(*AOT, "--witnesses", "1", "--overwrite", "train.py")
    assert done.status == 1, done.err
    (race,) = done.findings["races"]
    places = [(frame["line"], frame["function"]) for frame in race["first"]["stack"]]
    assert places == [(6, "scaled"), (11, "work"), (13, "<module>")]
    assert "Race 1 is harmful" in done.told
    assert "--compile aot_eager train.py" in done.told, "the witness runs the graphs, too"


def test_backward_graphs_and_functions_after_a_graph_break_have_the_lines_of_the_program(check: Checking) -> None:
    check.script("""
        import torch

        weight = torch.ones(8, 8, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()

        @torch.compile
        def loss(x):
            y = x @ weight
            torch._dynamo.graph_break()
            return y.sin()

        out = loss(torch.ones(8, 8, device="cuda"))
        with torch.cuda.stream(side):
            out.detach().clone()
        torch.cuda.synchronize()
        out.sum().backward()
        with torch.cuda.stream(side):
            weight.grad.clone()
        torch.cuda.synchronize()
    """)
    done = check(*AOT, "train.py")
    first = [
        [(frame["line"], frame["function"]) for frame in race["first"]["stack"]] for race in done.findings["races"]
    ]
    assert first == [[(10, "loss"), (9, "loss"), (12, "<module>")], [(8, "loss (backward)"), (16, "<module>")]]


@pytest.mark.parametrize("lost", [False, True], ids=["as it is", "without the last wait"])
def test_collectives_within_a_graph_are_judged_as_the_graph_orders_them(check: Checking, lost: bool) -> None:
    check.script(COLLECTIVES)
    done = check("--ranks", "2", *AOT, "--witnesses", "0", "train.py", *["lost"] * lost)
    assert done.status == int(lost), done.err
    if lost:
        assert "ran as the program's own backend returned them" in done.told
        assert {race["first"]["kernel"] for race in done.findings["races"]} == {"nccl::reduce_scatter"}
        assert "train.py:16 step" in done.told


def test_a_compiled_model_under_fsdp2_is_clean(check: Checking) -> None:
    check.script(SHARDED.replace("BODY", "x + torch.nn.functional.gelu(self.inner(x))"))
    done = check("--ranks", "2", *AOT, "train.py")
    assert done.status == 0, done.told + done.err
    assert "ran as graphs of AOTAutograd" in done.told and "made no graph" not in done.told


def test_the_verdict_says_when_nothing_could_be_compiled(check: Checking) -> None:
    check.script("""
        import torch

        @torch.compile
        def work(x):
            torch._dynamo.graph_break()
            return x

        work(torch.ones(4, device="cuda"))
    """)
    assert "torch.compile made no graph, so what it compiles ran eagerly" in check(*AOT, "train.py").told


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_inductor_is_refused_without_triton_with_what_to_do_instead(check: Checking) -> None:
    check.script("import torch")
    refused = check("--compile", "inductor", "train.py")
    assert "--compile inductor generates Triton kernels: install Triton, whose interpreter runs" in refused.err


def test_an_unknown_way_to_compile_is_refused_with_those_that_there_are(check: Checking) -> None:
    check.script("import torch")
    refused = check("--compile", "triton", "train.py")
    assert refused.status == 2
    assert "takes eager, aot_eager, aot_eager_decomp_partition or inductor, not 'triton'" in refused.err


def test_decomposed_graphs_recompute_and_are_judged(check: Checking) -> None:
    check.script(SHARDED.replace("BODY", "x + torch.nn.functional.gelu(self.inner(x))"))
    done = check("--ranks", "2", "--compile", "aot_eager_decomp_partition", "--witnesses", "0", "train.py")
    assert done.status == 0, done.told + done.err
    assert "decomposed and operator by operator (--compile aot_eager_decomp_partition)" in done.told


def test_attention_with_dropout_can_be_compiled(check: Checking) -> None:
    check.script("""
        import torch

        torch.manual_seed(0)

        def attend(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

        q, k, v = (torch.randn(1, 2, 16, 8, device="cuda", requires_grad=True) for _ in range(3))
        made = []
        for function in (attend, torch.compile(attend)):
            torch.cuda.manual_seed(1)
            made.append(function(q, k, v))
            made[-1].sum().backward()
        print("equal" if torch.equal(*made) else "different")
    """)
    done = check(*AOT, "--witnesses", "0", "train.py")
    assert done.status == 0, done.told + done.err
    assert "equal" in done.out


def test_fix_runs_the_graphs_again_and_a_test_cannot(check: Checking) -> None:
    check.script(BESIDE.replace("WAIT", "pass"))
    check(*AOT, "--witnesses", "0", "train.py")

    def run(command: str) -> tuple[int, str]:
        done = with_simulated_gpu().run(
            "-m", "streamrace", command, "runs/it", "1", folder=check.folder, environment=shell()
        )
        return done.returncode, done.stdout + done.stderr

    status, told = run("fix")
    assert status == 0 and "Tried: clean" in told, told
    status, told = run("emit-test")
    assert status == 2 and "had --compile aot_eager, and a test has no such option" in told
