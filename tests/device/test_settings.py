"""What is set so that all processors give the same bits makes no value wrong, in any operator of torch's samples.

Each is run with our settings (:data:`streamrace.device.processor.KERNELS`) and, in a process of its own, with torch's.
That process is given the bytes of the first one's samples, since the settings also decide how ``uniform_`` and
``normal_`` round. Integers are equal, floating point numbers as close as torch's own tests ask. Products and
convolutions, whose kernels the settings choose, are compared with exact ones instead: in float64, and in int64 as
integers wrap. So are ill-conditioned results that are not as close.
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
from samples import Raised, apart, forward, name_of, operators, samples, seed
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
# Their results may be off by more than torch's tests ask, with any kernels. Then they have to be as close to the exact
# ones as with torch's settings, or as rounding the arguments explains.
_ILL_CONDITIONED = {
    "linalg.cond",  # whose own condition number it is
    "linalg.pinv.hermitian",  # rounding the argument moves the gradient by six roundings
    "matrix_exp",  # of a matrix of norm 39: it squares four times, and errors double each time
    "nn.functional.layer_norm",  # of one number: its gradient is 0, as a difference that eps ** -0.5 multiplies
    "nn.functional.normalize",  # of one number, in bfloat16: its gradient is 0, as a difference of large numbers
}
_EXACT = " exactly"
_ROUNDED = " with rounded arguments"
_GIVEN = " given"

Results = dict[str, list[Tensor]]


def computed(number: int, of: int, most: int, given: Results) -> Results:
    chosen = [op for op in operators() if zlib.crc32(name_of(op).encode()) % of == number and op.name not in _NO_VALUES]
    made: Results = {}
    chosen = [op for op in chosen if op.name not in _ONE_OF_SEVERAL]
    for op, results in apart(lambda op: results_of(op, most, given), chosen):
        assert results is not None, f"{name_of(op)}: died"
        made.update(results)
    return made


def results_of(op: Any, most: int, given: Results) -> Results:
    made = {}
    for dtype in DTYPES:
        for sample in samples(op, dtype, most=most) if dtype in op.dtypes else ():
            memory = [torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage()) for one in sample.tensors()]
            for one, other in zip(memory, given.get(str(sample) + _GIVEN, memory), strict=True):
                one.copy_(other)
            made[str(sample) + _GIVEN] = [one.clone() for one in memory]
            leaves = pytree.tree_leaves(forward(sample, "cpu"))
            if not any(isinstance(one, Raised) for one in leaves):
                made[str(sample)] = [plain(one) for one in leaves if isinstance(one, Tensor)]
            if str(sample) in made and {op.name, name_of(op)} & (_PRODUCTS | _ILL_CONDITIONED):
                made[str(sample) + _EXACT] = exactly(sample)
            if str(sample) in made and name_of(op) in _ILL_CONDITIONED:
                made[str(sample) + _ROUNDED] = exactly(sample, rounding=torch.finfo(dtype).eps)
    return made


def exactly(sample: Any, *, rounding: float = 0.0) -> list[Tensor]:
    """The results by numbers that are wide enough for all of them. ``rounding``: each argument is off by up to that."""
    seed()

    def wide(one: Any) -> Any:
        if not isinstance(one, Tensor) or one.dtype == torch.bool:
            return one
        kinds = {True: torch.complex128, False: torch.float64 if one.is_floating_point() else torch.int64}
        made = one.detach().to(kinds[one.is_complex()])
        if rounding:
            made = made * (1 + rounding * (2 * torch.rand(one.shape, dtype=torch.float64) - 1))
        return made.requires_grad_(one.requires_grad)

    wider = copy.copy(sample)
    wider.arguments, wider.keywords = pytree.tree_map(wide, (sample.arguments, sample.keywords))
    return [plain(one) for one in pytree.tree_leaves(forward(wider, "cpu")) if isinstance(one, Tensor)]


def plain(one: Tensor) -> Tensor:
    return one.detach().resolve_conj().resolve_neg().to_dense().clone()


def wrong(ours: Results, plainly: Results) -> list[str]:
    found = [f"{name}: only with one of the settings" for name in ours.keys() ^ plainly.keys()]
    both = ours.keys() & plainly.keys()
    beside_exact = {name for name in both if name + _EXACT in ours and name + _ROUNDED not in ours}
    for name in both - beside_exact:
        for one, other in zip(ours[name], plainly[name], strict=True):
            try:
                torch.testing.assert_close(one, other, equal_nan=True)
            except AssertionError as error:
                if name + _ROUNDED in ours:
                    beside_exact.add(name)
                else:
                    found.append(f"{name}: {error}")
    for name in beside_exact:
        exact = ours[name + _EXACT]
        rounded, theirs = (ours[name + _ROUNDED], plainly[name]) if name + _ROUNDED in ours else (exact, exact)
        for one, their, *wide in zip(ours[name], theirs, exact, rounded, strict=True):
            if not (off := _apart(one, *wide)) <= _apart(their, *wide):  # nor is NaN
                found.append(f"{name} is up to {off} from what it is computed exactly")
    return sorted(found)


def _apart(one: Tensor, exact: Tensor, rounded: Tensor) -> float:
    """By how much an element is too far from the exact one; 0: none is. A sum rounds by the size of its terms.

    Eight roundings, or two of the narrow types, whose kernels add in float32; each of the result or of the arguments.
    """
    if not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float((one != exact.to(one.dtype)).sum())
    of_result = torch.finfo(one.dtype).eps * float(exact.abs().max().clamp(min=1))
    allowed = (2 if one.itemsize == 2 else 8) * max(of_result, float((rounded - exact).abs().max()))
    far = (one.to(exact.dtype) - exact).abs().max()
    return 0.0 if far <= allowed else float(far)


def compare(folder: Path, number: int, of: int, most: int) -> list[str]:
    made: list[Path] = []
    settings: dict[str, dict[str, str]] = {"ours": KERNELS, "plain": {}}
    for name, chosen in settings.items():
        bare = {key: value for key, value in os.environ.items() if key not in KERNELS}
        into = folder / name
        subprocess.run(
            [sys.executable, __file__, str(number), str(of), str(most), str(into), *map(str, made)],
            env={**bare, **chosen, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            check=True,
            timeout=1200,
        )
        made.append(into)
    return wrong(*map(torch.load, made))


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
    earlier: Results = torch.load(sys.argv[5]) if sys.argv[5:] else {}
    number, of, most = map(int, sys.argv[1:4])
    torch.save(computed(number, of, most, earlier), sys.argv[4])
