"""What is set so that all processors give the same bits makes no value wrong: products of int8 are exact."""

from __future__ import annotations

import pytest
import torch


def int8(*shape: int) -> torch.Tensor:
    """Large values of one sign: sums of two products do not fit into 16 bits."""
    return torch.randint(64, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(1))


def test_a_product_of_int8_is_exact_on_the_device_and_on_the_host() -> None:
    a, b = int8(48, 64), int8(64, 32)
    exact = (a.long() @ b.long()).int()
    assert torch.equal(torch._int_mm(a, b), exact)
    assert torch.equal(torch._int_mm(a.cuda(), b.cuda()).cpu(), exact)
    out = torch.empty(48, 32, dtype=torch.int32, device="cuda")
    torch._int_mm(a.cuda(), b.cuda(), out=out)
    assert torch.equal(out.cpu(), exact)


def test_so_is_one_of_float_numbers() -> None:
    a, b = int8(48, 64).float(), int8(64, 32).float()
    assert torch.equal((a.cuda() @ b.cuda()).cpu(), a @ b)
    assert torch.equal((a @ b).long(), a.long() @ b.long())


def test_a_quantized_convolution_is_exact() -> None:
    image, weight = int8(1, 32, 8, 8).float(), int8(16, 32, 3, 3).float()
    given = torch.quantize_per_tensor(image, 1.0, 0, torch.quint8)
    packed = torch.ops.quantized.conv2d_prepack(
        torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8), None, [1, 1], [1, 1], [1, 1], 1
    )
    exact = torch.nn.functional.conv2d(image.double(), weight.double(), padding=1)
    scale = float(exact.max()) / 127
    found = torch.ops.quantized.conv2d(given, packed, scale, 0).int_repr()
    assert (found.double() - (exact / scale).round()).abs().max() == 0


def test_a_product_that_does_not_fit_is_refused_as_ever() -> None:
    for a, b in ((int8(2, 3), int8(4, 5)), (int8(2), int8(2, 2)), (int8(2, 2).int(), int8(2, 2))):
        with pytest.raises(RuntimeError, match="_int_mm takes"):
            torch._int_mm(a, b)
