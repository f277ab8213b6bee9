"""Operators on lists of tensors (``torch._foreach_*``): one launch where CUDA takes all tensors at once, else one each.

Beside torch's CUDA build: ``tests/real_build/programs/foreach.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from judged import story
from torch import Tensor


def lists(*dtypes: torch.dtype) -> list[Tensor]:
    return [torch.ones(4 + at, 3, device="cuda", dtype=dtype) for at, dtype in enumerate(dtypes)]


FLOATS, HALVES, LONGS = 3 * [torch.float32], 3 * [torch.bfloat16], 3 * [torch.int64]
# The call, its launches on CUDA, and how many there are.
CALLS: dict[str, tuple[Callable[[], object], str, int]] = {
    "one type": (lambda: torch._foreach_mul_(lists(*FLOATS), 2.0), "_foreach_mul_", 1),
    "half": (lambda: torch._foreach_add(lists(*HALVES), lists(*HALVES)), "_foreach_add", 1),
    "integers": (lambda: torch._foreach_add_(lists(*LONGS), 1), "_foreach_add_", 1),
    "integers that become floats": (lambda: torch._foreach_div(lists(*LONGS), 2), "div", 3),
    "several types": (lambda: torch._foreach_mul_(lists(torch.float32, torch.bfloat16), 2.0), "mul", 2),
    "a copy to another type": (lambda: torch._foreach_copy_(lists(*HALVES), lists(*FLOATS)), "_foreach_copy_", 1),
    "other strides": (
        lambda: torch._foreach_add_([torch.ones(3, 3, device="cuda")], [torch.ones(3, 3, device="cuda").t()]), "add", 1
    ),
    "a norm": (lambda: torch._foreach_norm(lists(*FLOATS)), "_foreach_norm", 1),
    "a norm that CUDA has no kernel for": (lambda: torch._foreach_norm(lists(*FLOATS), 3), "linalg_vector_norm", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_list_is_one_launch_where_cuda_takes_all_at_once(name: str) -> None:
    call, kernel, count = CALLS[name]
    with story() as told:
        call()
    launches = [launch.kernel.removeprefix("aten::") for launch in told.launches]
    assert launches.count(kernel) == count
    assert any(launch.startswith("_foreach") for launch in launches) == kernel.startswith("_foreach")


def test_a_launch_reads_and_writes_every_tensor_of_its_lists() -> None:
    with story() as told:
        torch._foreach_add_(lists(*FLOATS), lists(*FLOATS))
    launch = told.launches[-1]
    assert (len({block for block, *_ in launch.reads}), len({block for block, *_ in launch.writes})) == (3, 3)
