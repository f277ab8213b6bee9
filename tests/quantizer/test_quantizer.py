"""The quantizer that stands in for DeepSpeed's CUDA one, held to the definition, block by block."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from streamrace.device.device import Device
from streamrace.frameworks.deepspeed import quantizer
from streamrace.frameworks.deepspeed.quantizer import Symmetric
from streamrace.replay.record import record
from streamrace.replay.replayer import Replayer
from streamrace.trace.records import Call
from tests.examples import examples

HALF = torch.float16
BITS = pytest.mark.parametrize("bits", [4, 8])


def halves(blocks: int, length: int, seed: int, spread: int = 6) -> Tensor:
    """float16 (blocks, length), of magnitudes that differ from block to block by up to 10**spread."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** -(torch.rand(blocks, 1, generator=generator) * spread)
    return (torch.randn(blocks, length, generator=generator) * sizes).to(HALF)


SHAPES = st.tuples(st.integers(1, 6), st.sampled_from([8, 16, 24, 40, 256]), st.integers(0, 2**32))


def there_and_back(values: Tensor, blocks: int, bits: int) -> tuple[Tensor, Tensor]:
    """The values after quantization, and the step of each block."""
    quantized, scales = quantizer.quantize(values, blocks, bits, Symmetric)
    return quantizer.dequantize(quantized, scales, blocks, bits, Symmetric), scales


def rounding(values: Tensor) -> Tensor:
    """Half a unit in the last place of float16: 2**-11 of the value, 2**-25 where it is subnormal."""
    return (values.double().abs() * 2.0**-11).clamp(min=2.0**-25)


def by_hand(block: list[float], bits: int) -> tuple[list[int], Fraction]:
    """The definition, in exact arithmetic: integers, and the step."""
    most = 1 << (bits - 1)
    largest = max(abs(Fraction(value)) for value in block)
    step = largest / most if largest else Fraction(1)
    return [min(max(round(Fraction(value) / step), -most), most - 1) for value in block], step


# -- quantize and dequantize ------------------------------------------------------------------------------


@BITS
@examples(60)
@given(shape=SHAPES)
def test_no_value_moves_by_more_than_half_a_step_but_the_positive_extreme(
    bits: int, shape: tuple[int, int, int]
) -> None:
    """Half a step up to (2**(b-1) - 1/2) steps; above that there is no number, and at most one step is lost."""
    values = halves(*shape)
    found, scales = there_and_back(values, shape[0], bits)
    step = scales.double().view(-1, 1)
    moved, most = (values.double() - found.double()).abs(), 1 << (bits - 1)
    slack = rounding(values) + step * 2.0**-20  # of the result, and of the product in float32
    clamped = values.double() > (most - 0.5) * step
    assert bool((moved <= torch.where(clamped, step, step / 2) + slack).all())
    assert bool((values.double()[clamped] >= found.double()[clamped]).all())


@BITS
@examples(30)
@given(shape=SHAPES)
def test_integers_and_steps_are_those_of_the_definition(bits: int, shape: tuple[int, int, int]) -> None:
    """Float32 may only disagree with exact arithmetic where the value lies between two integers, and by one."""
    values = halves(*shape)
    quantized, scales = quantizer.quantize(values, shape[0], bits, Symmetric)
    ones = torch.ones(shape[0])
    integers = quantizer.dequantize(quantized, ones, shape[0], bits, Symmetric).int().tolist()
    for block, got, scale in zip(values.tolist(), integers, scales.tolist(), strict=True):
        wanted, step = by_hand(block, bits)
        assert math.isclose(scale, step, rel_tol=2**-22)
        for value, have, want in zip(block, got, wanted, strict=True):
            near = abs(Fraction(value) / step - Fraction(have + want, 2)) < Fraction(1, 10**4)
            assert have == want or (abs(have - want) == 1 and near)


@BITS
def test_a_block_of_zeros_stays_zeros_and_has_the_step_one(bits: int) -> None:
    values = torch.zeros(3, 16, dtype=HALF)
    values[1, 5] = 2.0
    found, scales = there_and_back(values, 3, bits)
    assert scales.tolist() == [1.0, 2.0 / (1 << (bits - 1)), 1.0]
    assert not found[0].any()
    assert not found[2].any()


@BITS
def test_the_negative_extreme_is_exact_and_the_positive_loses_a_step(bits: int) -> None:
    most = 1 << (bits - 1)
    values = torch.tensor([1.0, -1.0, 0.5, -0.5, 1 / most, -1 / most, 0.0, 0.0], dtype=HALF)
    found, scales = there_and_back(values, 1, bits)
    assert scales.tolist() == [1 / most]
    assert found.tolist() == [1 - 1 / most, -1.0, 0.5, -0.5, 1 / most, -1 / most, 0.0, 0.0]


def test_ties_go_to_the_even_integer() -> None:
    values = torch.tensor([-8.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5], dtype=HALF)
    assert there_and_back(values, 1, 4)[0].tolist() == [-8, 0, 2, 2, 0, -2, -2, 4]


def test_int4_is_packed_two_to_a_byte_the_first_in_the_upper_half() -> None:
    values = torch.tensor([-8.0, 7, 1, -1, 0, 2, -3, 5], dtype=HALF)
    packed, scales = quantizer.quantize(values, 1, 4, Symmetric)
    assert packed.tolist() == [(-8 << 4) | 7, (1 << 4) | 15, 2, (-3 << 4) | 5]
    assert torch.equal(quantizer.dequantize(packed, scales, 1, 4, Symmetric), values)


def test_every_byte_unpacks_and_packs_to_itself() -> None:
    every = torch.arange(-128, 128).to(torch.int8)
    values = quantizer.dequantize(every, torch.ones(1), 1, 4, Symmetric)
    assert values.shape == (512,)
    packed, scales = quantizer.quantize(values, 1, 4, Symmetric)
    assert scales.tolist() == [1.0]
    assert torch.equal(packed, every)


def test_what_was_quantized_once_is_quantized_to_itself_unless_its_extreme_was_clamped() -> None:
    """Why hpZ under qwZ changes values: the secondary partition holds what was quantized, in other blocks."""
    values = torch.tensor([[-1.0, 0.3, 0.2, 0, 0, 0, 0, 0], [1.0, 0.3, 0.2, 0, 0, 0, 0, 0]], dtype=HALF)
    once, _ = there_and_back(values, 2, 8)
    again, _ = there_and_back(once, 2, 8)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[1], again[1])


def test_a_nan_becomes_zero_and_an_infinity_takes_its_block_along() -> None:
    """As on a GPU: a look for NaN behind a quantized collective does not see the one before it."""
    values = torch.full((3, 8), 0.5, dtype=HALF)
    values[0, 3], values[1, 3] = math.nan, math.inf
    found, _ = there_and_back(values, 3, 8)
    assert found[0].tolist() == pytest.approx([0.5 * 127 / 128] * 3 + [0.0] + [0.5 * 127 / 128] * 4)
    assert bool(found[1].isnan().all())
    assert bool(found[2].isfinite().all())


def test_memory_is_read_as_float16_whatever_it_is() -> None:
    """The compiled module casts a pointer: bfloat16 1.0 is read as 1.875, 0.001 as 0.81."""
    small = torch.tensor([1.0, 0.001, 0, 0, 0, 0, 0, 0], dtype=torch.bfloat16)
    found, scales = there_and_back(small, 1, 8)
    assert scales.tolist() == pytest.approx([1.875 / 128])
    assert found[1].item() == pytest.approx(0.8125, abs=0.01)
    single = torch.tensor([1.0] * 8)
    assert torch.equal(there_and_back(single, 1, 8)[0], there_and_back(single.view(HALF)[:8], 1, 8)[0])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not whole blocks": ({"values": torch.zeros(20, dtype=HALF), "groups": 3}, "do not divide into 3 blocks"),
    "short blocks": ({"groups": 8}, "a block of 4 elements is not a multiple of the 8"),
    "no blocks": ({"groups": 0}, "do not divide into 0 blocks"),
    "long blocks": ({"values": torch.zeros(16392, dtype=HALF)}, "longer than the 16384"),
    "asymmetric": ({"kind": quantizer.Asymmetric}, "symmetrically to 4 or 8 bits, not Asymmetric to 8"),
    "other bits": ({"bits": 3}, "symmetrically to 4 or 8 bits, not Symmetric to 3"),
    "transposed": ({"values": torch.zeros(8, 8, dtype=HALF)[:, ::2]}, "not contiguous"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_without_a_kernel_are_refused_in_one_sentence(case: str) -> None:
    options, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        quantizer.quantize(
            **{"values": torch.zeros(32, dtype=HALF), "groups": 1, "bits": 8, "kind": Symmetric, **options}
        )


def test_blocks_that_do_not_divide_among_the_ranks_are_refused() -> None:
    """GPT-2's vocabulary is odd: DeepSpeed would leave the last blocks of its gradient unwritten."""
    with pytest.raises(ValueError, match="would leave 1 of them unwritten"):
        quantizer.swizzle_quant(torch.zeros(257, 16, dtype=HALF), 257, 4, Symmetric, 1, 2, 2)


# -- the reduction of gradients ---------------------------------------------------------------------------

CLUSTERS = st.sampled_from([(2, 2), (2, 4), (4, 2), (3, 2), (2, 1), (2, 8)])


@examples(30)
@given(cluster=CLUSTERS, slices=st.sampled_from([1, 2]), seed=st.integers(0, 2**32))
def test_the_swizzle_is_a_permutation_device_by_device_then_node_by_node(
    cluster: tuple[int, int], slices: int, seed: int
) -> None:
    nodes, devices = cluster
    ranks, per_rank = nodes * devices, 2 * slices
    values = halves(ranks * per_rank, 16, seed)
    straight, scales = quantizer.quantize(values, ranks * per_rank, 4, Symmetric)
    swizzled, moved = quantizer.swizzle_quant(values, ranks * per_rank, 4, Symmetric, slices, nodes, devices)
    order = [
        (node * devices + device) * per_rank + part * 2 + block
        for part in range(slices)
        for device in range(devices)
        for node in range(nodes)
        for block in range(2)
    ]
    assert sorted(order) == list(range(ranks * per_rank))
    assert torch.equal(swizzled.view(ranks * per_rank, -1), straight[order])
    assert torch.equal(moved, scales[order])


def all_to_all(rows: list[Tensor]) -> list[Tensor]:
    """What each member has after an all-to-all of the members' rows."""
    pieces = [row.chunk(len(rows)) for row in rows]
    return [torch.cat([piece[member] for piece in pieces]) for member in range(len(rows))]


def reduced(gradients: list[Tensor], blocks: int, nodes: int, devices: int) -> list[Tensor]:
    """DeepSpeed's all_to_all_quant_reduce, all ranks in this process."""
    ranks = [(node, device) for node in range(nodes) for device in range(devices)]
    packed = {
        rank: quantizer.swizzle_quant(gradient, blocks, 4, Symmetric, 1, nodes, devices)
        for rank, gradient in zip(ranks, gradients, strict=True)
    }
    for node in range(nodes):
        columns = [all_to_all([packed[node, device][part] for device in range(devices)]) for part in (0, 1)]
        for device in range(devices):
            packed[node, device] = quantizer.quantized_reduction(
                columns[0][device], columns[1][device], blocks, blocks // devices, 4, Symmetric, devices
            )
    result = {}
    for device in range(devices):
        columns = [all_to_all([packed[node, device][part] for node in range(nodes)]) for part in (0, 1)]
        for node in range(nodes):
            quantized, scales = columns[0][node], columns[1][node]
            found = quantizer.dequantize(quantized, scales, scales.numel(), 4, Symmetric)
            result[node, device] = sum(found.chunk(nodes)) / nodes
    return [result[rank] for rank in ranks]


@examples(30)
@given(cluster=CLUSTERS, per_rank=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_each_rank_gets_its_partition_of_the_sums_in_nodes_averaged_over_nodes(
    cluster: tuple[int, int], per_rank: int, seed: int
) -> None:
    """Not the mean over ranks: the compiled reduction adds, and DeepSpeed divides by the nodes alone.

    An element's bound: one step of each first quantization, m/8 of its block, and one of the second, in the sum over
    the node's devices; both averaged over nodes. Beside that float16's roundings, of the sums' size.
    """
    nodes, devices = cluster
    ranks = nodes * devices
    blocks = per_rank * ranks
    gradients = [halves(blocks, 16, seed + rank, spread=2) for rank in range(ranks)]
    found = torch.cat(reduced(gradients, blocks, nodes, devices)).double()
    exact = torch.stack(gradients).double().view(nodes, devices, blocks, 16)
    wanted = exact.sum(1).mean(0)
    largest = exact.abs().amax(-1).sum(1).mean(0).view(blocks, 1)
    bound = 2 * largest / 8 + largest / 64 + devices * largest * 2.0**-10
    moved = (found.view(blocks, 16) - wanted).abs()
    assert bool((moved <= bound).all())
    assert float(moved.mean() / wanted.abs().mean()) < 0.25


def test_the_reduction_adds_in_float16_the_first_device_first() -> None:
    devices, length = 3, 8
    large = torch.full((length,), 2048.0, dtype=HALF)
    parts = [large, torch.ones(length, dtype=HALF), -large]
    packed = [quantizer.quantize(part, 1, 8, Symmetric) for part in parts]
    values, scales = (torch.cat([one[at] for one in packed]) for at in (0, 1))
    total, step = quantizer.quantized_reduction(values, scales, devices, 1, 8, Symmetric, devices)
    ordered = [quantizer.dequantize(*one, 1, 8, Symmetric) for one in packed]
    wanted = quantizer.quantize((ordered[0] + ordered[1]) + ordered[2], 1, 8, Symmetric)
    assert torch.equal(total, wanted[0])
    assert torch.equal(step, wanted[1])


# -- for the dispatcher -----------------------------------------------------------------------------------

OPERATORS = torch.ops.stream_races
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "int8": (OPERATORS.quantize.default, (halves(4, 16, 0), 4, 8)),
    "int4": (OPERATORS.quantize.default, (halves(4, 16, 0).view(-1), 2, 4)),
    "back": (OPERATORS.dequantize.default, (torch.ones(4, 16, dtype=torch.int8), torch.ones(4), 4, 8)),
    "int4 back": (OPERATORS.dequantize.default, (torch.ones(64, dtype=torch.int8), torch.ones(4), 4, 4)),
    "swizzle": (OPERATORS.swizzle_quant.default, (halves(8, 16, 0), 8, 4, 1, 2, 2)),
    "one device": (OPERATORS.swizzle_quant.default, (halves(8, 16, 0), 8, 8, 2, 4, 1)),
    "reduce": (OPERATORS.quantized_reduction.default, (torch.ones(64, dtype=torch.int8), torch.ones(4), 4, 2, 4, 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_values_it_has_the_same_shapes_strides_and_dtypes(call: str) -> None:
    operator, arguments = CALLS[call]
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in arguments]
        found = operator(*given)
    wanted = operator(*arguments)
    for fake, real in zip(*((one if isinstance(one, tuple) else (one,)) for one in (found, wanted)), strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def steps(device: Device) -> None:
    values = torch.arange(64.0, device="cuda").to(HALF) - 32
    quantized, scales = quantizer.swizzle_quant(values, 8, 4, Symmetric, 1, 2, 2)
    total, sums = quantizer.quantized_reduction(quantized, scales, 8, 4, 4, Symmetric, 2)
    device.probe("loss", "", quantizer.dequantize(total, sums, 4, 4, Symmetric).float().sum(), lambda value: None)


def test_each_call_is_one_launch_and_replays_to_the_same_bits() -> None:
    recording = record(steps)
    names = [one.function for one in recording.records[0] if isinstance(one, Call) and "stream_races" in one.function]
    assert names == [f"stream_races::{name}.default" for name in ("swizzle_quant", "quantized_reduction", "dequantize")]
    assert not [one for one in recording.records[0] if isinstance(one, Call) and "amax" in one.function]
    assert Replayer(recording).verify().departure is None
