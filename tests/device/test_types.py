"""Types that CUDA's kernels have and the CPU's lack, by torch's own tables: each is computed in a wider type."""

from __future__ import annotations

import traceback
import zlib
from typing import Any

import pytest
import torch
from judged import story
from samples import apart, lacking, name_of, samples
from torch import nn
from wide import departures


def look(part: int, parts: int, most: int) -> list[str]:
    def work(one: tuple[Any, torch.dtype]) -> list[str]:
        try:
            return [told for sample in samples(*one, most=most) for told in departures(sample)]
        except Exception:
            return [f"{name_of(one[0])} {one[1]}: {traceback.format_exc()}"]

    chosen = [one for one in lacking() if zlib.crc32(name_of(one[0]).encode()) % parts == part]
    found: list[str] = []
    for (op, dtype), told in apart(work, chosen):
        found += [f"{name_of(op)} {dtype}: the process died"] if told is None else told
    return found


def test_what_cudas_kernels_have_and_the_cpus_lack_is_computed_in_a_wider_type() -> None:
    assert look(0, 1, most=1) == []


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(2))
def test_so_it_is_for_every_sample(part: int) -> None:
    assert look(part, 2, most=1 << 30) == []


@pytest.mark.parametrize("function", [nn.functional.softmax, nn.functional.log_softmax])
def test_the_softmax_of_half_numbers_may_be_one_of_wide_ones(function: Any) -> None:
    """As transformers' eager attention has it; under autocast it is so by itself."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
    plain = x.float().requires_grad_()
    expected = function(plain, -1)
    expected.square().sum().backward()
    for autocast in (False, True):
        there = x.cuda().requires_grad_()
        with torch.autocast("cuda", torch.float16, enabled=autocast), story() as told:
            result = function(there, -1, **({} if autocast else {"dtype": torch.float32}))
            torch.cuda.synchronize()
        (launch,) = [one for one in told.launches if "softmax" in one.kernel]  # one, as on a GPU
        assert [(hi - lo) for _, lo, hi, _ in launch.reads] == [x.nbytes]
        assert [(hi - lo) for _, lo, hi, _ in launch.writes] == [2 * x.nbytes]
        result.square().sum().backward()
        assert result.dtype is torch.float32 and torch.equal(result.cpu(), expected)
        assert plain.grad is not None and there.grad is not None
        assert torch.equal(there.grad.cpu(), plain.grad.half())


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@pytest.mark.parametrize(
    ("weights", "statistics"),
    [(torch.float16, torch.float32), (torch.float32, torch.float16), (torch.float32, torch.float32)],
)
def test_a_batch_norm_takes_half_numbers_with_wide_ones(kind: Any, weights: Any, statistics: Any) -> None:
    x = torch.randn(
        6, 5, *([] if kind is nn.BatchNorm1d else [3, 3]), generator=torch.Generator().manual_seed(1)
    ).half()
    there, plain = kind(5).cuda(), kind(5)
    there.weight.data, there.bias.data = there.weight.data.to(weights), there.bias.data.to(weights)
    there.running_mean, there.running_var = there.running_mean.to(statistics), there.running_var.to(statistics)
    for train in (True, False):
        one, other = x.float().requires_grad_(), x.cuda().requires_grad_()
        expected, result = plain.train(train)(one), there.train(train)(other)
        expected.square().sum().backward()
        result.square().sum().backward()
        assert result.dtype is torch.float16 and there.weight.grad.dtype is weights
        assert there.running_mean.dtype is statistics
        assert one.grad is not None and other.grad is not None
        for mine, its in ((expected, result), (one.grad, other.grad), (plain.running_var, there.running_var)):
            torch.testing.assert_close(its.detach().cpu().float(), mine.detach(), atol=5e-3, rtol=2e-3)
    with pytest.raises(RuntimeError):  # what CUDA's kernel does not take either
        kind(5).cuda().half()(x.cuda().float())


def test_integers_are_counted_exactly() -> None:
    """As every mixture of experts of transformers 5 counts its tokens."""
    experts = torch.tensor([0, 3, 3, 1, 7, 3, 0, 2**20], dtype=torch.int32).cuda()
    counts = torch.histc(experts, bins=8, min=0, max=7)
    assert counts.dtype is torch.int32 and counts.tolist() == [2, 1, 0, 3, 0, 0, 0, 1]
    out = torch.empty(0, dtype=torch.int32, device="cuda")
    assert torch.histc(experts, bins=8, min=0, max=7, out=out) is out and out.tolist() == counts.tolist()


def test_an_in_place_operator_writes_what_it_was_given() -> None:
    x = torch.tensor([1.26, -2.55], dtype=torch.float16, device="cuda")
    view = x[:1]
    with story() as told:
        assert view.round_(decimals=1) is view
        torch.cuda.synchronize()
    (launch,) = told.launches
    assert launch.kernel == "aten::round" and [(hi - lo) for _, lo, hi, _ in launch.writes] == [2]
    assert torch.equal(x.cpu(), torch.tensor([1.3, -2.55], dtype=torch.float16))


def test_complex_numbers_are_summed_without_those_that_are_none() -> None:
    x = torch.tensor([[1 + 2j, complex("nan")], [3.0, complex(1, float("nan"))]], device="cuda")
    assert torch.nansum(x).item() == 4 + 2j and torch.nansum(x, 0).tolist() == [4 + 2j, 0]
    assert torch.nansum(torch.tensor([1.0, float("nan")], device="cuda")).item() == 1


def test_a_product_of_half_numbers_may_have_a_wide_result() -> None:
    a, b = (torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (1, 2))
    expected = a.float() @ b.float()
    assert torch.equal(torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32).cpu(), expected)
    out = torch.empty(8, 8, device="cuda")
    left, right = a.cuda(), b.cuda()
    with story() as told:
        torch.mm(left, right, out_dtype=torch.float32, out=out)
        torch.addmm(out, left, right, out_dtype=torch.float32, out=out)  # as gradients are added up
        torch.cuda.synchronize()
    assert [launch.kernel for launch in told.launches] == ["aten::mm", "aten::addmm"]
    assert [[hi - lo for _, lo, hi, _ in launch.reads] for launch in told.launches] == [[128, 128], [256, 128, 128]]
    assert torch.equal(out.cpu(), torch.addmm(expected, a.float(), b.float()))
    with pytest.raises(RuntimeError, match="out_dtype must be"):
        torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float64)


def test_a_type_that_no_kernel_of_the_cpus_takes_is_told_as_ours() -> None:
    with pytest.raises(NotImplementedError, match="streamrace: the simulated GPU computes by the CPU's kernels"):
        torch.geqrf(torch.ones(2, 2, dtype=torch.float16, device="cuda"))
    with pytest.raises(RuntimeError):  # CUDA has none either
        torch.fft.fft(torch.ones(4, dtype=torch.bfloat16, device="cuda"))


def test_models_of_transformers_run_in_half_numbers() -> None:
    """Eager attention takes a softmax of half numbers to wide ones, and experts are counted by ``histc``."""
    from transformers import MixtralConfig, MixtralForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MixtralConfig(
        **small, vocab_size=32, num_key_value_heads=2, num_local_experts=4, attn_implementation="eager"
    )
    torch.manual_seed(3)
    here = MixtralForCausalLM(config)
    ids = torch.arange(16).view(2, 8)
    expected = here(input_ids=ids, labels=ids).loss.item()
    there = here.half().cuda()
    loss = there(input_ids=ids.cuda(), labels=ids.cuda()).loss
    loss.backward()
    assert abs(loss.item() - expected) < 1e-2
    assert all(one.grad.isfinite().all() for one in there.parameters() if one.grad is not None)
