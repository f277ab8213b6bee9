"""What inductor generates is judged as it is: its fused kernels, its order of collectives, with the program's lines."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.check.conftest import Checking
from tests.check.test_check_compile import BESIDE, COLLECTIVES, SHARDED, TRAINING
from tests.warm import with_simulated_gpu

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]

INDUCTOR = ("--compile", "inductor")


@pytest.fixture
def check(tmp_path: Path) -> Checking:
    return Checking(with_simulated_gpu(dynamo=False), tmp_path)


FUSED = """
    import torch

    @torch.compile
    def work(x, y):
        z = x.relu() * 2
        return (z + y).sin()

    side, x, y = torch.cuda.Stream(), torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**6)
        y.copy_(x)
    WAIT
    print(work(x, y).sum().item())
"""


def run(check: Checking, program: str, *words: str, **stands: str) -> Checking:
    for word, text in stands.items():
        program = program.replace(word, text)
    check.script(program)
    return check(*INDUCTOR, "--overwrite", *words)


def places(race: dict, side: str) -> list[tuple[int, str]]:
    return [(frame["line"], frame["function"]) for frame in race[side]["stack"]]


def test_a_compiled_training_step_has_the_losses_of_the_eager_one_within_rounding(check: Checking) -> None:
    close = "all(abs(one - other) < 1e-6 for one, other in zip(compiled, losses(False)))"
    done = run(check, TRAINING, "train.py", **{', mode="reduce-overhead"': "", "compiled == list(losses(False))": close,
                                               'warnings.simplefilter("error")': ""})  # fmt: skip
    assert done.status == 0, done.err
    assert "equal 3" in done.out
    assert "ran as the code that inductor generates (--compile inductor), each kernel in its first" in done.told
    assert done.findings["scenario"]["compile"] == "inductor"


def test_a_race_with_a_fused_kernel_has_the_line_that_was_compiled_and_its_witness_is_compiled_too(
    check: Checking,
) -> None:
    clean = run(check, FUSED, "--witnesses", "0", "train.py", WAIT="torch.cuda.current_stream().wait_stream(side)")
    assert clean.status == 0, clean.told
    done = run(check, FUSED, "--witnesses", "1", "train.py", WAIT="")
    (race,) = done.findings["races"]
    assert done.status == 1 and "Race 1 is harmful" in done.told
    assert places(race, "second") == [(6, "work"), (14, "<module>")]
    assert race["second"]["kernel"].startswith("triton::triton_poi_fused_")
    assert "--compile inductor train.py" in done.told


def test_two_runs_find_the_same(check: Checking) -> None:
    first = run(check, FUSED, "--witnesses", "0", "train.py", WAIT="").findings["races"]
    assert run(check, FUSED, "--witnesses", "0", "train.py", WAIT="").findings["races"] == first


def test_a_kernel_of_the_backward_pass_has_the_forward_line(check: Checking) -> None:
    done = run(
        check,
        """
        import torch

        weight = torch.ones(8, 8, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()

        @torch.compile
        def loss(x):
            return (x * weight).exp().sum()

        loss(torch.ones(8, 8, device="cuda")).backward()
        with torch.cuda.stream(side):
            weight.grad.clone()
        torch.cuda.synchronize()
    """,
        "--witnesses", "0", "train.py",
    )  # fmt: skip
    (race,) = done.findings["races"]
    assert places(race, "first") == [(8, "loss (backward)"), (10, "<module>")]


@pytest.mark.parametrize("lost", [False, True], ids=["as it is", "without the last wait"])
def test_collectives_run_in_the_order_into_which_inductor_moves_them(check: Checking, lost: bool) -> None:
    done = run(
        check,
        """
        import os

        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as fc
        from torch._inductor import config, ir

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        config.reorder_for_compute_comm_overlap = True
        config.reorder_for_compute_comm_overlap_passes = ["sink_waits", "raise_comms"]
        plain, waits = ir._WaitKernel.codegen, []

        def codegen(kernel, wrapper):
            waits.append(kernel)
            if len(waits) < 3 or not LOST:
                plain(kernel, wrapper)

        ir._WaitKernel.codegen = codegen

        @torch.compile(fullgraph=True)
        def step(x, w, v):
            whole = fc.all_gather_tensor(w, 0, dist.group.WORLD)
            y = torch.relu(x @ v) + 1
            other = fc.all_gather_tensor(v * 2, 0, dist.group.WORLD)
            part = fc.reduce_scatter_tensor((y @ whole).sin(), "sum", 0, dist.group.WORLD)
            return part + 1, other.sum()

        step(*(torch.ones(size, 8, device="cuda") for size in (4, 4, 8)))
        torch.cuda.synchronize()
        dist.destroy_process_group()
    """,
        "--ranks", "2", "--witnesses", "0", "train.py", LOST=str(lost),
    )  # fmt: skip
    assert done.status == int(lost), done.told + done.err
    if lost:
        (race,) = done.findings["races"]  # one of both ranks, whose generated files have different names
        assert race["first"]["kernel"] == "nccl::reduce_scatter"
        assert places(race, "second")[0] == (27, "step")


def test_a_model_under_fsdp2_is_clean(check: Checking) -> None:
    body = "x + torch.nn.functional.gelu(self.inner(x))"
    done = run(check, SHARDED, "--ranks", "2", "--witnesses", "0", "train.py", BODY=body)
    assert done.status == 0, done.told + done.err
    assert "ran as the code that inductor generates" in done.told


def test_a_compiled_optimizer_dropout_and_attention_of_changing_sizes_are_clean_inside_of_their_kernels(
    check: Checking,
) -> None:
    """Counters that a kernel reads as one number and increments, masks that it writes and reads again."""
    done = run(
        check,
        """
        import torch

        torch.manual_seed(0)
        model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run, step = torch.compile(model), torch.compile(optimizer.step)
        for length in (4, 6, 8):
            run(torch.randn(2, length, 16, device="cuda")).square().mean().backward()
            step()
            optimizer.zero_grad()
    """,
        "--witnesses", "0", "train.py",
    )  # fmt: skip
    assert done.status == 0, done.told + done.err
    assert "Warnings about kernels" not in done.told and "nothing had written" not in done.told


def test_compiled_flex_attention_has_the_values_of_attention(check: Checking) -> None:
    done = run(
        check,
        """
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(3))
        mask = create_block_mask(lambda batch, head, query, key: query >= key, None, None, 128, 128)
        made = torch.compile(flex_attention)(q, k, v, block_mask=mask)
        known = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(made, known)
        for one, other in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (made, known))):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        print("equal")
    """,
        "--witnesses", "0", "train.py",
    )  # fmt: skip
    assert done.status == 0, done.told + done.err
    assert "equal" in done.out


ON_THE_HOST = """
    import torch

    @torch.compile
    def work(x):
        BODY

    pinned = torch.zeros(64).pin_memory()
    pinned.copy_(torch.ones(64, device="cuda"), non_blocking=True)
    work(pinned)
"""


@pytest.mark.parametrize(
    ("body", "accesses"),
    [("return x.sin() + 1", {"read"}), ("x.add_(1)", {"read", "write"})],
    ids=["reads", "reads and writes"],
)
def test_a_kernel_on_the_host_races_with_a_copy_to_pinned_memory(
    check: Checking, body: str, accesses: set[str]
) -> None:
    done = run(check, ON_THE_HOST, "--witnesses", "0", "train.py", BODY=body)
    assert done.status == 1, done.told
    assert {race["second"]["kernel"] for race in done.findings["races"]} == {"inductor::cpp_kernel"}
    assert {race["kind"].split("-")[1] for race in done.findings["races"]} == accesses
    waiting = ON_THE_HOST.replace("work(pinned)", "torch.cuda.synchronize()\n    work(pinned)")
    assert run(check, waiting, "--witnesses", "0", "train.py", BODY=body).findings["races"] == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("mode='reduce-overhead'", "torch.compile's graph trees (mode='reduce-overhead' or 'max-autotune') cannot be"),
        ("options={'triton.cudagraphs': True}", "torch.compile's graph trees"),
        ("options={'cpp_wrapper': True}", "inductor's C++ wrapper (cpp_wrapper, AOTInductor) cannot be simulated"),
        ("mode='max-autotune-no-cudagraphs'", ""),
        ("backend='aot_eager'", ""),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name_and_the_rest_runs(
    check: Checking, options: str, sentence: str
) -> None:
    done = run(
        check,
        """
        import torch

        work = torch.compile(lambda x, y: (x @ y).relu() + 1, OPTIONS)
        print(work(torch.ones(16, 16, device="cuda"), torch.ones(16, 16, device="cuda")).sum().item())
    """,
        "--witnesses", "0", "train.py", OPTIONS=options,
    )  # fmt: skip
    assert f"streamrace: {sentence}" in done.err if sentence else "4352.0" in done.out


def test_generated_code_stays_only_where_the_user_wants_it(check: Checking, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = check.folder / "code"
    temporary = check.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run(check, FUSED, "--witnesses", "0", "train.py", WAIT="")
    assert not list(temporary.rglob("*.py"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.fspath(kept))
    run(check, FUSED, "--witnesses", "0", "train.py", WAIT="")
    assert [file for file in kept.rglob("*.py") if "triton_poi_fused" in file.read_text()]


def test_a_dry_run_has_no_values_from_which_the_accesses_of_its_kernels_would_follow(check: Checking) -> None:
    done = run(check, "import torch", "--dry", "train.py")
    assert done.status == 2
    assert "--compile inductor generates Triton kernels, whose accesses follow from values, and a dry run" in done.err


def test_lost_waits_of_a_graph_of_ones_own_are_found_as_with_aot_eager(check: Checking) -> None:
    done = run(check, COLLECTIVES, "--ranks", "2", "--witnesses", "0", "train.py", "lost")
    assert done.status == 1, done.err
    assert "ran as the program's own backend returned them" in done.told


def test_a_function_that_calls_another_has_both_lines(check: Checking) -> None:
    done = run(check, BESIDE, "--witnesses", "0", "train.py", WAIT="pass")
    (race,) = done.findings["races"]
    assert places(race, "first") == [(6, "scaled"), (11, "work"), (13, "<module>")]
