"""Meta kernels and the CPU's, over all operators that torch has samples for: where they differ is known by name."""

from __future__ import annotations

import zlib

import pytest
import torch
from samples import DTYPES, forward, name_of, operators, samples

# As in csrc/meta.cpp (kDiffer): refused by name where they are large. All else that differs is corrected there.
DIFFER = {
    "aten::_batch_norm_with_update",
    "aten::_embedding_bag",
    "aten::_fft_c2r",
    "aten::_fft_r2c",
    "aten::linalg_eig",
    "aten::linalg_solve_triangular",
    "aten::max_unpool2d",
    "aten::nonzero_static",
}


def dissent(part: int, parts: int, most: int) -> set[str]:
    """Runs the samples of a part of the operators; gives of which operators the two said different things."""
    from streamrace.device import dry
    from streamrace.device.library import functions

    dry.install(dry.World())
    torch.set_num_threads(1)
    for op in operators():
        if zlib.crc32(name_of(op).encode()) % parts == part:
            for dtype in DTYPES:
                if dtype in op.supported_dtypes("cpu"):
                    for sample in samples(op, dtype, most=most):
                        forward(sample, "cuda")
    return {name.partition(".")[0] for name in functions().dry_dissent().decode().split()}


def test_what_meta_kernels_say_of_results_is_the_cpus_but_for_what_is_named() -> None:
    """Of a tenth of the operators, by the first sample of each; all are wide."""
    found = dissent(0, 10, most=1) - DIFFER
    assert not found, found


@pytest.mark.wide
@pytest.mark.parametrize("part", range(6))
def test_so_it_is_for_every_sample(part: int) -> None:
    found = dissent(part, 6, most=1 << 30) - DIFFER
    assert not found, found


def test_a_convolution_lies_as_the_cpus_does_however_large() -> None:
    """The samples have no channels last."""
    from streamrace.device import dry

    dry.install(dry.World(), real=64)
    for dims, last in ((2, torch.channels_last), (3, torch.channels_last_3d)):
        image, filters = torch.randn(2, 3, *[8] * dims), torch.randn(5, 3, *[3] * dims)
        convolve = (torch.nn.functional.conv2d, torch.nn.functional.conv3d)[dims - 2]
        for one in (image, image.to(memory_format=last)):
            for other in (filters, filters.to(memory_format=last)):
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    here = convolve(one.to(dtype), other.to(dtype), padding=1)
                    there = convolve(one.cuda().to(dtype), other.cuda().to(dtype), padding=1)
                    made = [(result.shape, result.stride(), result.dtype) for result in (here, there)]
                    assert made[0] == made[1], (dims, one.stride(), other.stride(), dtype, made)
