"""scaled_dot_product_attention: chosen as on the CPU, with the CPU's bits, one kernel forward and one backward.

Where the program says which kernels it allows, it is chosen as on CUDA.

Not compared with dropout: what is dropped is drawn from the device's own generator, as on CUDA.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from judged import story
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode


def attend(
    device: str, dtype: torch.dtype, masked: str, *, heads: int = 4, head: int = 8, wide: int = 8, **how: Any
) -> list[Tensor]:
    """Output and gradients. ``heads``: of keys and values; ``head``: its size, ``wide``: of values."""
    torch.manual_seed(0)
    parts = [torch.randn(2, many, 9, size, dtype=dtype) for many, size in ((4, head), (heads, head), (heads, wide))]
    q, k, v = [one.to(device).requires_grad_() for one in parts]
    masks = {
        "": None,
        "bool": (torch.rand(9, 9) > 0.3) | torch.eye(9, dtype=torch.bool),
        "float": torch.randn(9, 9, dtype=dtype),
        "differentiated": torch.randn(9, 9, dtype=dtype),
    }
    mask = masks[masked]
    mask = mask.to(device).requires_grad_(masked == "differentiated") if mask is not None else None
    made = scaled_dot_product_attention(q, k, v, attn_mask=mask, **how)
    made.float().square().sum().backward()
    found = (made, q.grad, k.grad, v.grad, mask.grad if mask is not None and mask.requires_grad else None)
    return [one.detach().cpu() for one in found if one is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_gives_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("", {}), ("", {"is_causal": True}), ("", {"scale": 0.3}), ("bool", {}), ("float", {}), ("differentiated", {}),
    ]  # fmt: skip
    for masked, how in ways:
        for one, other in zip(attend("cpu", dtype, masked, **how), attend("cuda", dtype, masked, **how), strict=True):
            assert torch.equal(one, other), (masked, how)


def errors(dtype: torch.dtype, masked: str = "", **how: Any) -> list[float]:
    """How far the allowed kernel is from the definition, on the CPU."""
    there = attend("cuda", dtype, masked, **how)
    with sdpa_kernel(SDPBackend.MATH):
        here = attend("cpu", dtype, masked, **how)
    return [float((one.double() - other.double()).abs().max()) for one, other in zip(here, there, strict=True)]


def test_a_kernel_that_the_program_chose_is_that_one_as_on_cuda() -> None:
    cases: list[tuple[SDPBackend, torch.dtype, str, dict[str, Any]]] = [
        (SDPBackend.FLASH_ATTENTION, torch.bfloat16, "", {"is_causal": True}),
        (SDPBackend.FLASH_ATTENTION, torch.float16, "", {"heads": 2, "enable_gqa": True}),
        (SDPBackend.FLASH_ATTENTION, torch.float16, "", {"head": 13, "wide": 13}),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32, "", {"is_causal": True, "scale": 0.3}),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32, "bool", {"head": 16}),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32, "differentiated", {"wide": 16}),
        (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16, "differentiated", {}),
    ]
    for backend, dtype, masked, how in cases:
        with sdpa_kernel(backend):
            x = torch.ones(1, 4, 8, 8, dtype=dtype, device="cuda", requires_grad=True)
            node = scaled_dot_product_attention(x, x, x).grad_fn
        kernel = "Flash" if backend == SDPBackend.FLASH_ATTENTION else "Efficient"
        assert kernel in type(node).__name__
        with sdpa_kernel(backend):
            found = errors(dtype, masked, **how)
        assert max(found) < (1e-4 if dtype == torch.float32 else 0.13), (backend, dtype, masked, how, found)


def test_where_none_fits_it_says_so_as_on_cuda() -> None:
    no_kernel = pytest.raises(RuntimeError, match="No available kernel")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.warns(match="Expected query, key and value"), no_kernel:
        attend("cuda", torch.float32, "")
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        assert max(errors(torch.float32)) < 1e-4
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(NotImplementedError, match="cuDNN's attention"):
        attend("cuda", torch.bfloat16, "")


def test_dropout_is_by_the_definition_or_refused() -> None:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        attend("cuda", torch.bfloat16, "", dropout_p=0.5)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(NotImplementedError, match="dropout"):
        attend("cuda", torch.bfloat16, "", dropout_p=0.5)


def test_the_operators_give_what_cuda_s_give() -> None:
    q = torch.randn(2, 4, 40, 8, dtype=torch.bfloat16, device="cuda")
    flash = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
    right = (q.float() @ q.float().mT / 8**0.5).logsumexp(-1).cpu()
    assert flash[1].shape == (2, 4, 40) and efficient[1].shape == (2, 4, 64)
    assert flash[1].is_contiguous() and flash[0].stride() == q.stride()
    assert torch.allclose(flash[1].cpu(), right, atol=1e-2) and torch.equal(efficient[1][..., :40], flash[1])
    assert torch.isinf(efficient[1][..., 40:]).all() and torch.equal(efficient[0], flash[0])
    with pytest.raises(RuntimeError, match="fp16 and bf16"):
        torch.ops.aten._scaled_dot_product_flash_attention(q.float(), q.float(), q.float())


def test_it_is_two_kernels_unless_the_program_forbids_them() -> None:
    with story() as told:
        attend("cuda", torch.float32, "")
    names = [launch.kernel for launch in told.launches if "attention" in launch.kernel]
    assert names == [f"aten::_scaled_dot_product_flash_attention_for_cpu{end}" for end in ("", "_backward")]
    with story() as told, sdpa_kernel(SDPBackend.MATH):
        there = attend("cuda", torch.float32, "")
    assert not [launch for launch in told.launches if "flash" in launch.kernel]
    with sdpa_kernel(SDPBackend.MATH):
        assert all(torch.equal(*pair) for pair in zip(attend("cpu", torch.float32, ""), there, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_program_that_looks_at_operators_sees_cudas(dtype: torch.dtype) -> None:
    """Else what it counts, or saves by name, would not be what a GPU counts or saves."""
    q, k, v = (torch.randn(2, 4, 16, 8, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    aten = torch.ops.aten
    saved = [aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default]
    contexts = partial(create_selective_checkpoint_contexts, saved)
    with story() as told:
        made = checkpoint(scaled_dot_product_attention, q, k, v, use_reentrant=False, context_fn=contexts)
        made.float().sum().backward()
    names = [launch.kernel for launch in told.launches if "attention" in launch.kernel]
    assert names == [
        f"aten::_scaled_dot_product_flash_attention_for_cpu{end}" for end in ("", "_backward")
    ]  # saved once

    with FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(q, k, v)
    assert counter.get_total_flops() == 2 * (
        2 * 2 * 4 * 16 * 16 * 8
    )  # two products, a multiplication and an addition each
