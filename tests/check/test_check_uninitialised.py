"""Values that nobody wrote: a program that uses memory as it got it, and its twin that fills the memory first."""

from __future__ import annotations

import pytest

from streamrace.detectors.base import Uninitialised
from tests.check.conftest import Check, Done

# Each with a wrong and a right use: what reads it, and where the host sees it. {0}: the first line of what is right.
TRAINING = """
    import sys, torch

    wrong = sys.argv[1] == "wrong"
    model = torch.nn.Linear(8, 8, device="meta").to_empty(device="cuda")
    if not wrong:
        model.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
"""
ROTARY = """
    import sys, torch

    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("frequencies", self.made(), persistent=False)
            self.proj = torch.nn.Linear(8, 8)

        def made(self, device=None):
            return 1.0 / 10000 ** (torch.arange(0, 8, 2, device=device) / 8)

        def forward(self, x):
            angles = torch.outer(torch.arange(4, device="cuda") + 1.0, self.frequencies)
            return self.proj(x) * torch.cat((angles, angles), -1).cos()

    saved = Rotary().state_dict()
    with torch.device("meta"):
        model = Rotary()
    model.to_empty(device="cuda").load_state_dict(saved)
    if sys.argv[1] == "right":
        model.frequencies = model.made("cuda")
    print(model(torch.ones(4, 8, device="cuda")).sum().item())
"""
BUFFER = """
    import sys, torch

    buffer = torch.empty(100, device="cuda")
    buffer[:60].copy_(torch.ones(60, device="cuda"))
    use = sys.argv[1]
    if use == "wrong":
        print(buffer.sum().item())
    elif use == "times zero":
        print((buffer * (torch.arange(100, device="cuda") < 60)).sum().item())
    elif use == "right":
        print(buffer[:60].sum().item())
    elif use == "copies":
        both = torch.cat((buffer.clone(), buffer)).to(torch.float64)
        print(both[:60].sum().item(), buffer.cpu()[:60].sum())
    else:
        kept = torch.arange(100, device="cuda") < 60
        print(torch.where(kept, buffer, 0).sum().item(), buffer.masked_fill(~kept, 0).sum().item())
"""
REUSED = """
    import sys, torch

    former = torch.ones(1000, device="cuda")
    del former
    again = torch.empty(1000, device="cuda")
    if sys.argv[1] == "right":
        again.zero_()
    if again.sum() > 0:
        print("positive")
"""
REDUCED = """
    import os, sys, torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    part = torch.empty(64, device="cuda")
    part[:40].fill_(1.0)
    if sys.argv[1] == "sum":
        dist.all_reduce(torch.empty(64, device="cuda"))
    else:
        both = torch.empty(128, device="cuda")
        dist.all_gather_into_tensor(both, part)
        both = both.view(2, 64)
        print((both if sys.argv[1] == "wrong" else both[:, :40]).sum().item())
    torch.cuda.synchronize()
    dist.destroy_process_group()
"""


def told(done: Done) -> Uninitialised:
    assert (done.status, done.findings["verdict"]) == (5, "uninitialised"), done.told + done.err
    (one,) = done.findings["checked"]["uninitialised"]
    return Uninitialised(**{name: one[name] for name in Uninitialised.__dataclass_fields__})


def silent(done: Done) -> None:
    assert done.status == 0 and "uninitialised" not in done.findings["checked"], done.told + done.err
    assert "nothing had written" not in done.told


def test_a_product_with_memory_that_nobody_wrote_tells_allocation_read_bytes_and_the_host(check: Check) -> None:
    check.script("""
        import torch

        x = torch.empty(64, 64, device="cuda")
        w = torch.ones(64, 64, device="cuda")
        print((x @ w).sum().item())
    """)
    done = check("--witnesses", "8", "train.py")
    found = told(done)
    assert found.kernel == "aten::mm" and found.ranges == [[0, 16384]] and found.nbytes == 16384
    assert [stack[0][:2] for stack in (found.stack, found.allocated)] == [["train.py", 5], ["train.py", 3]]
    assert found.reached == "host" and "train.py:5" in found.where
    assert "all of the 16,384 bytes allocated at train.py:3" in done.told


def test_the_same_memory_filled_first_is_clean_and_runs_once(check: Check) -> None:
    check.script("""
        import torch

        x = torch.empty(64, 64, device="cuda").fill_(2.0)
        print((x @ x).sum().item(), file=open("ran", "a"))
    """)
    silent(check("--witnesses", "8", "train.py"))
    assert len((check.folder / "ran").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("program", "where"),
    [
        (TRAINING, "parameter"),
        (ROTARY, "host"),
        (REUSED, "host"),
        pytest.param(BUFFER, "host", marks=pytest.mark.wide),  # read otherwise in the tests below
    ],
)
def test_each_use_of_what_nobody_wrote_is_told_and_its_right_twin_is_silent(
    check: Check, program: str, where: str
) -> None:
    check.script(program)
    assert told(check("--witnesses", "8", "train.py", "wrong")).reached == where
    silent(check("--witnesses", "8", "--overwrite", "train.py", "right"))


@pytest.mark.parametrize("use", ["copies", "masked"])
def test_padding_that_is_copied_or_masked_out_is_no_finding(check: Check, use: str) -> None:
    check.script(BUFFER)
    silent(check("--witnesses", "8", "train.py", use))


def test_a_product_with_zero_hides_nothing_as_nan_stays_nan(check: Check) -> None:
    check.script(BUFFER)
    assert told(check("--witnesses", "8", "train.py", "times zero")).kernel == "aten::mul"


def test_a_sum_over_ranks_tells_it_and_a_padding_that_is_gathered_does_not(check: Check) -> None:
    check.script(REDUCED)
    words = ("--ranks", "2", "--witnesses", "8", "--overwrite", "train.py")
    assert told(check(*words, "sum")).reached == "collective"
    assert told(check(*words, "wrong")).reached == "host"
    silent(check(*words, "right"))


def test_what_cannot_be_run_again_names_the_read_and_is_no_finding(check: Check) -> None:
    check.script(BUFFER)
    done = check("--witnesses", "0", "train.py", "wrong")
    assert done.status == 0
    assert "sum (train.py:7 <module>) reads 160 bytes that nothing had written" in done.told
    assert "is not known: --witnesses 0 runs the program once" in done.told


def test_it_is_kept_by_a_baseline_and_by_a_comment(check: Check) -> None:
    check.script(BUFFER)
    words = ("--witnesses", "8", "--overwrite")
    assert check(*words, "--write-baseline", "known.json", "train.py", "wrong").status == 0
    assert check(*words, "--baseline", "known.json", "train.py", "wrong").status == 0
    reason = "# stream-race: ok the padding is zero on our allocator"
    check.script(BUFFER.replace("print(buffer.sum().item())", f"print(buffer.sum().item())  {reason}"))
    done = check(*words, "train.py", "wrong")
    assert done.status == 0 and done.findings["checked"]["uninitialised"][0]["suppressed"]["kind"] == "comment"
