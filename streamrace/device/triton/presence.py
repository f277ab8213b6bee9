"""Checks whether Triton is installed, in a version whose interpreter can run its kernels here."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator
from typing import Any

EXTRA = "pip install 'streamrace[triton]'"
LEAST = (3, 7)
"""The oldest release whose interpreter has what :mod:`.builder` changes."""
_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch_triton")
_named: Any = importlib.metadata.Distribution.from_name


def is_of(name: str) -> bool:
    """Check whether ``name`` is Triton's package or a module of it."""
    return name.partition(".")[0] == "triton"


def is_distribution(name: str) -> bool:
    """Check whether this is the name of a distribution that contains Triton."""
    return name in _DISTRIBUTIONS


def usable() -> bool:
    """Check whether kernels can run by Triton's interpreter. The import path may change, so nothing is remembered."""
    version = next(_versions(), None)
    return version is not None and _numbers(version) >= LEAST


def advice() -> str:
    """Return what to do so that kernels run, without a full stop."""
    version = next(_versions(), None)
    least = ".".join(map(str, LEAST))
    if version is not None and _numbers(version) < LEAST:
        return (
            f"Triton {version} is installed, and they run here by the interpreter of Triton {least} or newer ({EXTRA})"
        )
    return f"install Triton, whose interpreter runs them here ({EXTRA})"


def interpret() -> None:
    """Have Triton, which is imported next, interpret its kernels: it decides this where one is defined."""
    os.environ["TRITON_INTERPRET"] = "1"


def _versions() -> Iterator[str]:
    for name in _DISTRIBUTIONS:
        try:
            yield _named(name).version
        except importlib.metadata.PackageNotFoundError:
            continue


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
