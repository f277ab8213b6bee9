"""scaled_dot_product_attention: chosen as on the CPU, with the CPU's bits, one kernel forward and one backward.

Not compared with dropout: what is dropped is drawn from the device's own generator, as on CUDA.
"""

from __future__ import annotations

import pytest
import torch
from judged import story
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def attend(device: str, dtype: torch.dtype, masked: str, **how: object) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 4, 9, 8, dtype=dtype) for _ in range(3)]
    q, k, v = [one.to(device).requires_grad_() for one in made]
    masks = {
        "": None,
        "bool": (torch.rand(9, 9) > 0.3) | torch.eye(9, dtype=torch.bool),
        "float": torch.randn(9, 9, dtype=dtype),
        "differentiated": torch.randn(9, 9, dtype=dtype),
    }
    mask = masks[masked]
    mask = mask.to(device).requires_grad_(masked == "differentiated") if mask is not None else None
    made = scaled_dot_product_attention(q, k, v, attn_mask=mask, **how)  # type: ignore[arg-type]
    made.float().square().sum().backward()
    return [one.detach().cpu() for one in (made, q.grad, k.grad, v.grad, *([mask.grad] if masked[:1] == "d" else []))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_gives_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    ways: list[tuple[str, dict[str, object]]] = [
        ("", {}), ("", {"is_causal": True}), ("", {"scale": 0.3}), ("bool", {}), ("float", {}), ("differentiated", {}),
    ]  # fmt: skip
    for masked, how in ways:
        for one, other in zip(attend("cpu", dtype, masked, **how), attend("cuda", dtype, masked, **how), strict=True):
            assert torch.equal(one, other), (masked, how)


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
