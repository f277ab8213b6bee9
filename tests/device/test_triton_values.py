"""Triton kernels compute what torch computes: also where Triton's own interpreter is silently wrong."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.triton,
    pytest.mark.imports("triton"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]

FLOATING = (torch.float32, torch.float16, torch.bfloat16)
EIGHT_BITS = (torch.float8_e5m2, torch.float8_e4m3fn)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).cuda()


@pytest.mark.parametrize("dtype", FLOATING)
def test_arithmetic_has_the_bits_of_torchs(dtype: torch.dtype) -> None:
    from triton_kernels import arithmetic

    x, y = drawn(64, dtype=dtype), drawn(64, dtype=dtype, seed=1)
    out = torch.zeros(8, 64, dtype=dtype, device="cuda")
    arithmetic[(1,)](x, y, out, BLOCK=64)
    expected = [x + y, x - y, x * y, -x, torch.maximum(x, y), torch.minimum(x, y), x.abs(), x.clamp(-0.5, 0.5)]
    assert torch.equal(out, torch.stack(expected))


@pytest.mark.parametrize("dtype", [*FLOATING, torch.int64, torch.int32])
def test_the_result_of_a_comparison_is_a_number_in_the_type_of_what_was_compared(dtype: torch.dtype) -> None:
    """The interpreter says that it has this type already, and adds two of them as truth values."""
    from triton_kernels import compares

    x = (drawn(16) * 3).to(dtype)
    out = torch.zeros(2, 16, dtype=dtype, device="cuda")
    compares[(1,)](x, out, 1, BLOCK=16)
    above = x > 1
    first = torch.arange(16, device="cuda") < 9
    assert 0 < above.sum() < 16
    assert torch.equal(out[0], above.to(dtype))
    assert torch.equal(out[1], torch.where(above == first, above.to(dtype) - 1, 7).to(dtype))


@pytest.mark.parametrize("source", [*FLOATING, *EIGHT_BITS, torch.float64, torch.int32])
@pytest.mark.parametrize("target", [*FLOATING, *EIGHT_BITS, torch.float64, torch.int32])
def test_conversions_round_as_torchs_do(source: torch.dtype, target: torch.dtype) -> None:
    from triton_kernels import convert

    if {source, target} <= {torch.int32, *EIGHT_BITS}:
        return  # Triton converts none of these to another
    x = (torch.linspace(-300, 300, 256, dtype=torch.float64) * 1.1).to(source).cuda()
    out = torch.zeros(256, dtype=target, device="cuda")
    convert[(1,)](x, out, BLOCK=256)
    assert torch.equal(out.double(), x.to(target).double())


@pytest.mark.parametrize("dtype", [*FLOATING, *EIGHT_BITS])
def test_a_product_of_matrices_is_torchs(dtype: torch.dtype) -> None:
    from triton_kernels import product

    x, y = drawn(32, 64, dtype=dtype), drawn(64, 16, dtype=dtype, seed=1)
    out = torch.zeros(32, 16, device="cuda")
    product[(1,)](x, y, out, M=32, N=16, K=64)
    assert torch.equal(out, x.float() @ y.float())


def test_a_product_of_integers_is_exact() -> None:
    from triton_kernels import product

    x, y = (torch.arange(-512, 512).reshape(32, 32).to(torch.int8).cuda() for _ in range(2))
    out = torch.zeros(32, 32, dtype=torch.int32, device="cuda")
    product[(1,)](x, y, out, M=32, N=32, K=32)
    assert torch.equal(out.cpu(), x.cpu().int() @ y.cpu().int())


def test_numbers_as_arguments_have_the_types_that_compiled_kernels_give_them() -> None:
    """The interpreter leaves a float as it is, and its methods, as .to, are missing then."""
    from triton_kernels import normalize

    x, out = drawn(64), torch.zeros(64, device="cuda")
    normalize[(1,)](x, out, 1e-6, 3, 2, BLOCK=64)
    expected = x * torch.rsqrt(x.square().mean() + 1e-6) * 3 + 2
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATING)
def test_reductions_scans_and_sorts_are_torchs(dtype: torch.dtype) -> None:
    from triton_kernels import reductions, with_own_reduction

    x, out = drawn(32, dtype=dtype), torch.zeros(68, device="cuda")
    reductions[(1,)](x, out, BLOCK=32)
    wide = x.float()
    assert out[1:4].tolist() == [wide.max().item(), wide.min().item(), wide.argmax().item()]
    assert torch.equal(out[36:], wide.sort()[0])
    sums, expected = torch.cat([out[:1], out[4:36]]), torch.cat([wide.sum()[None], wide.cumsum(0)])
    torch.testing.assert_close(sums, expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    own = torch.zeros(1, dtype=dtype, device="cuda")
    with_own_reduction[(1,)](x, own, BLOCK=32)
    assert own.item() == x.max().item()


def test_functions_of_libdevice_have_values_and_others_are_refused_by_name() -> None:
    from triton_kernels import from_libdevice, without_counterpart

    x = drawn(32).abs() + 0.1
    x[3] = torch.nan
    out = torch.zeros(13, 32, device="cuda")
    from_libdevice[(1,)](x, out, BLOCK=32)
    wide = x.double()
    expected = [wide.tanh(), wide.rsqrt(), wide**3, wide.erf(), wide / 3, wide.isnan(), wide.round(), wide * wide + 1]
    numbers = torch.stack([one.float() for one in expected])
    torch.testing.assert_close(out[:8], numbers, rtol=1e-6, atol=0, equal_nan=True)
    known = ~x.isnan()
    exact = [x.trunc(), x * 3, x.nextafter(torch.full_like(x, 9)), x / 8, x.log2().floor()]
    assert torch.equal(out[8:, known], torch.stack(exact)[:, known])
    without_counterpart[(1,)](wide, BLOCK=32)
    with pytest.raises(RuntimeError, match="^streamrace: libdevice's function 'rcp64h' cannot be simulated: "):
        torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", FLOATING)
def test_atomic_operations_on_one_address_by_several_elements_all_count(dtype: torch.dtype) -> None:
    from triton_kernels import accumulate

    x = torch.arange(-8.0, 8.0, dtype=dtype, device="cuda")
    total, largest = torch.zeros(2, dtype=dtype, device="cuda"), torch.full((1,), -100.0, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    accumulate[(2,)](x, total, largest, count, BLOCK=8)
    assert total.tolist() == [-8.0, 0.0] and largest.item() == 7.0 and count.item() == 2


def test_autotune_takes_the_first_configuration_that_can_run_and_heuristics_are_computed() -> None:
    from triton_kernels import tuned

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (-(-meta["n"] // meta["BLOCK"]),)

    x, blocks = torch.zeros(96, device="cuda"), torch.full((1,), 5, dtype=torch.int32, device="cuda")
    tuned[grid](x, blocks, 96)
    assert set(x.tolist()) == {32.0} and blocks.item() == 3  # it was reset, as after a benchmark of two
    tuned[grid](x, blocks, 90)
    assert x.tolist() == [-32.0] * 90 + [32.0] * 6 and tuned.best_config.kwargs == {"BLOCK": 32}


def test_tensor_descriptors_of_host_and_device_copy_tiles() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor
    from triton_kernels import copy_tile, copy_tile_of

    x = drawn(40, 64)
    by_host, by_device = torch.zeros_like(x), torch.zeros_like(x)
    tile = [16, 16]
    copy_tile[(3, 4)](TensorDescriptor.from_tensor(x, tile), TensorDescriptor.from_tensor(by_host, tile), M=16, N=16)
    copy_tile_of[(3, 4)](x, by_device, 40, 64, M=16, N=16)
    assert torch.equal(by_host, x * 2) and torch.equal(by_device, x * 2)


def test_tritons_random_numbers_follow_from_their_seed() -> None:
    import triton_kernels as kernels

    first, again, other = (torch.zeros(64, device="cuda") for _ in range(3))
    for out, seed in ((first, 3), (again, 3), (other, 4)):
        kernels.drawn[(1,)](out, seed, BLOCK=64)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert bool(((first >= 0) & (first < 1)).all())


def test_the_variable_of_a_loop_is_a_number_of_tritons_and_that_of_an_unrolled_loop_pythons() -> None:
    from triton_kernels import sum_of_rows

    x, out = drawn(5, 16), torch.zeros(16, device="cuda")
    sum_of_rows[(1,)](x, out, 5, BLOCK=16)
    torch.testing.assert_close(out, x.sum(0) + x[::2].sum(0) + 3)
