"""Kernels are timed by what they are: shapes and types, the GPU, and never faster for more work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.costs import flops
from streamrace.device.hardware import Clock, HardwareTiming, Profile, ProfileError, Scale, load_profile
from streamrace.device.hardware.kernels import GPUS, Kernels, Signature
from tests.examples import examples

pytestmark = pytest.mark.host
A100, H100, V100 = (load_profile(name) for name in ("a100-100gbps", "h100", "v100"))
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
SIZE = st.integers(1, 9000)
MACHINES = st.sampled_from([A100, H100, V100])


def kernels(profile: Profile) -> Kernels:
    made = Kernels.of(profile)
    assert made is not None
    return made


def of(profile: Profile, one: Signature) -> float:
    return kernels(profile).nanoseconds(one)


def made(name: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", switches: int = 0) -> Signature:
    size = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}[dtype]
    nbytes = size * sum(math.prod(shape) for shape in shapes)
    return Signature(name, nbytes, shapes, (dtype,) * len(shapes), switches)


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Signature:
    return made("aten::mm", (m, k), (k, n), (m, n), dtype=dtype)


def attention(batch: int, keys: int, head: int, *, causal: bool = False, backward: bool = False) -> Signature:
    shape = (batch, 16, keys, head)
    return made(FLASH + "_backward" * backward, *[shape] * (8 if backward else 4), switches=int(causal))


@given(MACHINES, SIZE, SIZE, SIZE, st.integers(0, 2), st.integers(1, 500))
@examples(150)
def test_a_larger_product_is_never_faster(machine: Profile, m: int, n: int, k: int, which: int, more: int) -> None:
    larger = [m, n, k]
    larger[which] += more
    assert of(machine, product(*larger)) >= of(machine, product(m, n, k))


@given(MACHINES, SIZE, SIZE, SIZE, st.floats(1.0, 4.0))
@examples(60)
def test_a_faster_machine_is_never_slower(machine: Profile, m: int, n: int, k: int, times: float) -> None:
    some = [product(m, n, k), attention(1 + m % 8, n, 64), made("aten::add", (m, n), (m, n), (m, n))]
    for faster in (
        replace(machine, tflops=machine.tflops * times),
        replace(machine, memory_gbytes_per_s=machine.memory_gbytes_per_s * times),
        replace(machine, kernel_us=machine.kernel_us / times),
    ):
        for one in some:
            assert of(faster, one) <= of(machine, one)


@given(MACHINES, st.integers(1, 32), SIZE, st.sampled_from([32, 64, 128, 256]), st.booleans(), st.booleans())
@examples(60)
def test_longer_sequences_take_longer_and_a_causal_mask_saves(
    machine: Profile, batch: int, keys: int, head: int, causal: bool, backward: bool
) -> None:
    one = attention(batch, keys, head, causal=causal, backward=backward)
    assert of(machine, attention(batch, keys + 64, head, causal=causal, backward=backward)) >= of(machine, one)
    if causal and keys >= 512:
        assert of(machine, one) <= of(machine, attention(batch, keys, head, backward=backward))


@given(MACHINES, st.integers(0, 1 << 32), st.integers(0, 1 << 30))
@examples(60)
def test_more_bytes_are_never_faster(machine: Profile, nbytes: int, more: int) -> None:
    for name in ("aten::add", "aten::_softmax", "aten::native_layer_norm_backward", "cudaMemcpyAsync HtoD"):
        assert of(machine, Signature(name, nbytes + more)) >= of(machine, Signature(name, nbytes))


def test_a_kernel_without_bytes_takes_the_shortest_time() -> None:
    assert of(A100, Signature("aten::zero_", 0)) == A100.kernel_us * 1000


def test_one_tile_too_many_costs_a_round() -> None:
    """108 multiprocessors: 108 tiles of 256 x 128 are one round, and 109 are two."""
    full = kernels(A100).arithmetic(product(256 * 12, 128 * 9, 4096))
    over = kernels(A100).arithmetic(product(256 * 12, 128 * 9 + 1, 4096))
    assert over > 1.15 * full


def test_a_product_of_few_rows_is_bound_by_its_weights() -> None:
    weights = 8192 * 8192 * 2
    took = of(A100, product(1, 8192, 8192)) / 1e9
    assert weights / took < A100.memory_gbytes_per_s * 1e9
    assert weights / took > 0.5 * A100.memory_gbytes_per_s * 1e9


def test_types_have_their_own_peaks() -> None:
    half, single, double = (of(H100, product(4096, 4096, 4096, dtype)) for dtype in ("float16", "float32", "float64"))
    assert single > 10 * half
    assert single == double  # the H100's tensor cores multiply float64 at float32's rate
    assert of(V100, product(4096, 4096, 4096, "float64")) > 1.9 * of(V100, product(4096, 4096, 4096, "float32"))


def test_an_embedding_reads_the_rows_that_it_is_asked_for() -> None:
    def looked_up(rows: int) -> float:
        shapes = ((rows, 4096), (2048,), (2048, 4096))
        nbytes = 2 * rows * 4096 + 8 * 2048 + 2 * 2048 * 4096
        return of(A100, Signature("aten::embedding", nbytes, shapes, ("bfloat16", "int64", "bfloat16")))

    assert looked_up(32000) == looked_up(128000)


def test_memory_of_the_host_is_reached_over_pcie_and_slower_where_it_is_not_pinned() -> None:
    within, pinned, pageable = (
        of(A100, Signature(name, 1 << 30))
        for name in ("aten::copy_", "cudaMemcpyAsync DtoH", "cudaMemcpyAsync DtoH pageable")
    )
    assert 10 * within < pinned < pageable


def clock(profile: Profile, **more: Any) -> Clock:
    return Clock(HardwareTiming(profile, (0,), **more), 0)


def timed(one: Clock, signature: Signature) -> int:
    return one.kernel(signature.name, flops(signature.name, signature.shapes), signature.nbytes, signature)


def test_a_small_model_that_stands_for_a_large_one_has_one_efficiency() -> None:
    """Its shapes are not those of the large one: what they reach says nothing of it."""
    small, scale = product(64, 64, 64), Scale(flops=1000.0, parameter_bytes=1000.0, name="llama-2-7b")
    flat = clock(replace(A100, gpu=None), scale=scale)
    assert timed(clock(A100, scale=scale), small) == timed(flat, small)
    assert timed(clock(A100), small) != timed(clock(replace(A100, gpu=None)), small)


def test_a_profile_of_before_means_what_it_did() -> None:
    """None of the fields that came later: a roofline with one efficiency."""
    before = replace(A100, gpu=None)
    big = product(8192, 8192, 8192)
    assert timed(clock(before), big) == round(2 * 8192**3 / (A100.tflops * 1e3 * A100.efficiency))
    timing = HardwareTiming(before, (0,)).as_dict()
    later = ("gpu", "matmul_fraction", "attention_fraction", "attention_backward_fraction", "memory_fraction")
    recorded = {key: value for key, value in timing["profile"].items() if key not in (*later, "host_gbytes_per_s")}
    assert HardwareTiming.from_dict({**timing, "profile": recorded}).profile == before


def test_what_a_profile_says_of_itself_goes_before_what_others_measured() -> None:
    big, copy = product(8192, 8192, 8192), Signature("aten::copy_", 1 << 30)
    assert of(replace(A100, matmul_fraction=0.4), big) > 1.9 * of(A100, big)
    assert of(replace(A100, memory_fraction=0.42), copy) > 1.9 * of(A100, copy)
    assert of(replace(A100, attention_fraction=0.1), attention(4, 4096, 128)) > of(A100, attention(4, 4096, 128))


def test_a_gpu_that_nobody_measured_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "own.toml"
    source = Clock.__init__.__code__.co_filename.replace("clock.py", "profiles/h100.toml")
    with open(source, encoding="utf-8") as file:
        path.write_text(file.read().replace('gpu = "h100"', 'gpu = "b200"'), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"gpu must be one of a100, h100, v100, not 'b200'"):
        load_profile(str(path))
    assert GPUS == ("a100", "h100", "v100")
