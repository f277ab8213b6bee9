"""Computes functions of NVIDIA's libdevice, which Triton's interpreter lacks: its own return None.

Values are torch's for float64, rounded to the type of the result. The library's own differ in the last bits (CUDA C++
Programming Guide, "Mathematical Functions").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from streamrace.device.refusals import refusal
from streamrace.device.triton.memory import Array

_special: Any = torch.special


def _round_away(x: torch.Tensor) -> torch.Tensor:
    """Round as C does, halves away from zero."""
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def _exponent(x: torch.Tensor) -> torch.Tensor:
    """Return the exponents of values as C's ilogb does, with CUDA's numbers for 0, infinity and NaN."""
    special = torch.where(x.isinf(), 2**31 - 1, -(2**31))
    return torch.where(x.isfinite() & (x != 0), torch.frexp(x).exponent.to(torch.int64) - 1, special)


_SAME = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf", "isnan", "lgamma", "log", "log10", "log1p",
    "log2", "nextafter", "pow", "rsqrt", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME},
    "abs": torch.abs,
    "add_rn": torch.add,
    "cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "cospi": lambda x: torch.cos(torch.pi * torch.fmod(x, 2)),
    "cyl_bessel_i0": torch.i0,
    "cyl_bessel_i1": _special.i1,
    "div_rn": torch.div,
    "erfcx": _special.erfcx,
    "exp10": lambda x: torch.pow(10.0, x),
    "fabs": torch.abs,
    "fast_cos": torch.cos,
    "fast_exp": torch.exp,
    "fast_exp10": lambda x: torch.pow(10.0, x),
    "fast_fdivide": torch.div,
    "fast_log": torch.log,
    "fast_log10": torch.log10,
    "fast_log2": torch.log2,
    "fast_pow": torch.pow,
    "fast_sin": torch.sin,
    "fast_tan": torch.tan,
    "fast_tanh": torch.tanh,
    "fdim": lambda x, y: torch.clamp(x - y, min=0),
    "finitef": torch.isfinite,
    "fma": lambda x, y, z: x * y + z,
    "fma_rn": lambda x, y, z: x * y + z,
    "ilogb": _exponent,
    "isfinited": torch.isfinite,
    "j0": _special.bessel_j0,
    "j1": _special.bessel_j1,
    **{f"{kind}2{to}_{rounding}": function
       for kind in ("float", "double") for to in ("int", "uint", "ll", "ull")
       for rounding, function in (("rn", torch.round), ("rz", torch.trunc), ("rd", torch.floor), ("ru", torch.ceil))},
    "ldexp": torch.ldexp,
    "llround": _round_away,
    "mul_rn": torch.mul,
    "nearbyint": torch.round,
    "normcdf": _special.ndtr,
    "normcdfinv": _special.ndtri,
    "rcbrt": lambda x: torch.sign(x) * torch.abs(x) ** (-1 / 3),
    "rcp_rn": torch.reciprocal,
    "rhypot": lambda x, y: 1 / torch.hypot(x, y),
    "rint": torch.round,
    "llrint": torch.round,
    "round": _round_away,
    "rsqrt_rn": torch.rsqrt,
    "remainder": lambda x, y: x - y * torch.round(x / y),
    "scalbn": torch.ldexp,
    "saturatef": lambda x: torch.clamp(x, 0, 1),
    "sqrt_rn": torch.sqrt,
    "sub_rn": torch.sub,
    "sinpi": lambda x: torch.sin(torch.pi * torch.fmod(x, 2)),
    "tgamma": lambda x: torch.where(x > 0, torch.exp(torch.lgamma(x)), torch.nan),
    "y0": _special.bessel_y0,
    "y1": _special.bessel_y1,
}  # fmt: skip


def compute(symbol: str, arguments: Sequence[Array]) -> Array:
    """Return the values of the function that libdevice calls ``symbol``. Raise RuntimeError if it has none here."""
    function = next((_FUNCTIONS[name] for name in _names(symbol) if name in _FUNCTIONS), None)
    if function is None:
        refuse = refusal(f"libdevice's function '{symbol.removeprefix('__nv_')}'", "Triton's interpreter lacks it")
        refuse()
    if function is torch.nextafter:  # the next value is another one in each type
        return np.nextafter(*arguments)
    given = [torch.from_numpy(np.array(one, np.float64)) for one in np.broadcast_arrays(*arguments)]
    return np.asarray(function(*given).numpy())


def _names(symbol: str) -> Iterator[str]:
    """Yield the names that a symbol may stand for: its letters for types may come first or last (dsqrt_rn, sqrtf)."""
    name = symbol.removeprefix("__nv_")
    yield name
    yield re.sub(r"[fd]$|(?<=fma)f(?=_)", "", name)
    yield re.sub(r"^[fd](?=\w+_r[nzdu]$)", "", name)
