"""What is set so that all processors give the same bits makes no value wrong, in any operator of torch's samples.

Each is run with our settings (:data:`streamrace.device.processor.KERNELS`) and, in a process of its own, with torch's.
Products and convolutions, whose kernels the settings choose, are also computed exactly: in float64, and in int64 as
integers wrap. Integers are equal, floating point numbers as close as torch's own tests ask.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import Raised, apart, forward, name_of, operators, samples
from torch import Tensor
from torch.utils import _pytree as pytree

from streamrace.device.processor import KERNELS

ROOT = Path(__file__).parents[2]
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.complex64,
)
# Their values are whatever the memory held.
_NO_VALUES = {"empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided"}
# A basis, or signs, of which several are right: their last bits decide which one.
_ONE_OF_SEVERAL = {
    "linalg.eig", "linalg.eigh", "linalg.svd", "svd", "pca_lowrank", "svd_lowrank", "linalg.qr", "qr", "geqrf", "ormqr",
    "linalg.householder_product", "linalg.lstsq", "linalg.ldl_factor", "linalg.ldl_factor_ex",
}  # fmt: skip

_PRODUCTS = {
    "mm", "bmm", "addmm", "addbmm", "baddbmm", "matmul", "__rmatmul__", "mv", "addmv", "dot", "inner", "einsum",
    "tensordot", "linalg.multi_dot", "linalg.vecdot", "nn.functional.linear", "nn.functional.bilinear",
    *(f"nn.functional.conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)),
}  # fmt: skip
_EXACT = " exactly"

Results = dict[str, list[Tensor]]


def computed(number: int, of: int, most: int) -> Results:
    chosen = [op for op in operators() if zlib.crc32(name_of(op).encode()) % of == number and op.name not in _NO_VALUES]
    made: Results = {}
    for _, results in apart(lambda op: results_of(op, most), [op for op in chosen if op.name not in _ONE_OF_SEVERAL]):
        made.update(results or {})
    return made


def results_of(op: Any, most: int) -> Results:
    made = {}
    for dtype in DTYPES:
        for sample in samples(op, dtype, most=most) if dtype in op.dtypes else ():
            leaves = pytree.tree_leaves(forward(sample, "cpu"))
            if not any(isinstance(one, Raised) for one in leaves):
                made[str(sample)] = [plain(one) for one in leaves if isinstance(one, Tensor)]
            if str(sample) in made and op.name in _PRODUCTS:
                made[str(sample) + _EXACT] = exactly(sample)
    return made


def exactly(sample: Any) -> list[Tensor]:
    """The results by numbers that are wide enough for all of them."""

    def wide(one: Any) -> Any:
        if not isinstance(one, Tensor) or one.dtype == torch.bool:
            return one
        kinds = {True: torch.complex128, False: torch.float64 if one.is_floating_point() else torch.int64}
        return one.detach().to(kinds[one.is_complex()]).requires_grad_(one.requires_grad)

    wider = copy.copy(sample)
    wider.arguments, wider.keywords = pytree.tree_map(wide, (sample.arguments, sample.keywords))
    return [plain(one) for one in pytree.tree_leaves(forward(wider, "cpu")) if isinstance(one, Tensor)]


def plain(one: Tensor) -> Tensor:
    return one.detach().resolve_conj().resolve_neg().to_dense().clone()


def wrong(ours: Results, plainly: Results) -> list[str]:
    found = [f"{name}: only with one of the settings" for name in ours.keys() ^ plainly.keys()]
    for name in ours.keys() & plainly.keys():
        for one, other in zip(ours[name], plainly[name], strict=True):
            try:
                torch.testing.assert_close(one, other, equal_nan=True)
            except AssertionError as error:
                found.append(f"{name}: {error}")
    for name in ours.keys() & {name.removesuffix(_EXACT) for name in ours if name.endswith(_EXACT)}:
        for one, other in zip(ours[name], ours[name + _EXACT], strict=True):
            if (off := _apart(one, other)) > 0:
                found.append(f"{name} is up to {off} from what it is computed exactly")
    return sorted(found)


def _apart(one: Tensor, exact: Tensor) -> float:
    """By how much an element is too far from the exact one; 0: none is. A sum rounds by the size of its terms."""
    if not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float((one != exact.to(one.dtype)).sum())
    allowed = 8 * torch.finfo(one.dtype).eps * float(exact.abs().max().clamp(min=1))
    far = (one.to(exact.dtype) - exact).abs().max()
    return 0.0 if far <= allowed else float(far)


def compare(folder: Path, number: int, of: int, most: int) -> list[str]:
    made = []
    settings: dict[str, dict[str, str]] = {"ours": KERNELS, "plain": {}}
    for name, chosen in settings.items():
        bare = {key: value for key, value in os.environ.items() if key not in KERNELS}
        into = folder / name
        subprocess.run(
            [sys.executable, __file__, str(number), str(of), str(most), str(into)],
            env={**bare, **chosen, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            check=True,
            timeout=1200,
        )
        made.append(torch.load(into))
    return wrong(*made)


@pytest.mark.host
def test_some_operators_have_right_values_by_our_settings(tmp_path: Path) -> None:
    assert compare(tmp_path, 0, 24, 1) == []


@pytest.mark.host
@pytest.mark.wide
@pytest.mark.timeout(1800)
def test_all_operators_have_right_values_by_our_settings(tmp_path: Path) -> None:
    assert compare(tmp_path, 0, 1, 4) == []


if __name__ == "__main__":
    from streamrace.device import processor

    processor.settle()
    torch.save(computed(*(int(one) for one in sys.argv[1:4])), sys.argv[4])
