"""Finds a program's expressions for blocks of memory at a line, by an inserted line (:mod:`streamrace.device.overlay`).

``streamrace fix`` uses this to find the name of a tensor that needs a ``record_stream``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_MOST = 64  # tensors of a list that are examined

Named = Mapping[str, tuple[bool, Sequence[int]]]
"""By expression: whether it is a list of tensors, and the numbers of their blocks."""


def line(file: Path, expressions: Sequence[str]) -> str:
    """Return the line that writes into ``file`` which blocks these expressions and all local names refer to."""
    entries = ", ".join(f"{expression!r}: lambda: {expression}" for expression in expressions)
    return f"__import__('streamrace.device.naming', fromlist=['tell']).tell({str(file)!r}, {{{entries}}}, locals())"


def tell(file: str, expressions: Mapping[str, Callable[[], object]], names: Mapping[str, object]) -> None:
    """Append a line of JSON: the rank, and its :data:`Named`."""
    named: dict[str, tuple[bool, list[int]]] = {}
    for name in (*expressions, *filter(str.isidentifier, names)):
        with suppress(Exception):  # an expression that raises anything does not name a tensor
            _look(name, expressions[name]() if name in expressions else names[name], named)
    with open(file, "a", encoding="utf-8") as output:
        output.write(json.dumps([int(os.environ.get("RANK", "0")), named]) + "\n")


def _look(name: str, value: Any, named: dict[str, tuple[bool, list[int]]]) -> None:
    import torch

    from streamrace.device.work import place

    listed = isinstance(value, (list, tuple))
    items = list(value[:_MOST]) if listed else [value]
    if items and all(isinstance(item, torch.Tensor) and item.is_cuda for item in items):
        named[name] = listed, [place(item)[0] for item in items]


def read(file: Path) -> list[tuple[int, Named]]:
    """Return the lines of ``file``: each rank with its :data:`Named`."""
    try:
        return [(rank, named) for rank, named in map(json.loads, file.read_text(encoding="utf-8").splitlines())]
    except OSError:
        return []
