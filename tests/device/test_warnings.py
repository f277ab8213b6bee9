"""What torch's kernels warn of, they warn of on the device as on the CPU: no more, and once."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from samples import DTYPES, Sample, apart, name_of, operators, samples
from torch.utils import _pytree as pytree


def warnings_of(call: Callable[[], Any]) -> list[str]:
    """What Python and the process's error output got, each as often as it was said."""
    with tempfile.TemporaryFile() as file, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            with contextlib.suppress(Exception):
                call()
                torch.cuda.synchronize()
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        lines = [line.partition("Warning: ")[2] for line in file.read().decode().splitlines() if "Warning: " in line]
    return [text[:60] for text in (*(str(one.message) for one in told), *lines)]


def every_way(sample: Sample, device: str) -> None:
    """Forward and backward, in place and with ``out=``, without the helpers that leave warnings out."""
    arguments, keywords = sample.on(device)
    made = sample.op(*arguments, **keywords)
    results = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor) and one.requires_grad]
    if results and sample.op.supports_autograd:
        torch.autograd.backward(results, [torch.ones_like(one) for one in results])
    with torch.no_grad():
        if sample.op.inplace_variant:
            arguments, keywords = sample.on(device)
            sample.op.inplace_variant(*arguments, **keywords)
        if sample.op.supports_out and isinstance(made, torch.Tensor):
            arguments, keywords = sample.on(device)
            sample.op(*arguments, **keywords, out=torch.empty(made.shape, dtype=made.dtype, device=device))


def warned_only_here(chosen: list[Any], most: int) -> list[str]:
    def work(op: Any) -> list[str]:
        torch.set_warn_always(True)
        found = []
        for dtype in DTYPES:
            for sample in samples(op, dtype, most=most) if dtype in op.dtypes else ():
                here, there = (warnings_of(functools.partial(every_way, sample, on)) for on in ("cpu", "cuda"))
                found += [f"{sample}: {one}" for one in set(there) - set(here)]
        return found

    return [
        one for op, told in apart(work, chosen) for one in (told or [f"{name_of(op)}: died"] if told is None else told)
    ]


def test_no_operator_warns_on_the_device_alone() -> None:
    losses = [op for op in operators() if op.name in ("nn.functional.mse_loss", "nn.functional.smooth_l1_loss")]
    assert warned_only_here(losses + operators()[::24], most=1) == []


@pytest.mark.wide
@pytest.mark.timeout(1200)
def test_so_it_is_for_all_operators() -> None:
    assert warned_only_here(operators(), most=3) == []


def test_what_a_kernel_warns_of_is_said_once() -> None:
    """Though it runs twice: to learn what its results look like, and when its time has come."""
    x = torch.ones(3, device="cuda")
    for _ in range(2):
        out = torch.empty(2, device="cuda")
        (said,) = warnings_of(functools.partial(torch.add, x, x, out=out))
        assert said.startswith("An output with one or more elements was resized")
        assert out.tolist() == [2.0] * 3
