"""What a program calls its memory at a line: told by a line that is put there (:mod:`streamrace.device.overlay`).

``streamrace fix`` asks so for the name of a tensor that a ``record_stream`` would have to be called on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_MOST = 64  # tensors of a list

Named = Mapping[str, tuple[bool, Sequence[int]]]
"""By expression: is it a list of tensors, and the numbers of their blocks."""


def line(file: Path, expressions: Sequence[str]) -> str:
    """The line that tells, into ``file``, which memory these expressions and all local names have."""
    asked = ", ".join(f"{one!r}: lambda: {one}" for one in expressions)
    return f"__import__('streamrace.device.naming').naming.tell({str(file)!r}, {{{asked}}}, locals())"


def tell(file: str, asked: Mapping[str, Callable[[], object]], names: Mapping[str, object]) -> None:
    """Append a line of JSON: the rank, and what is :data:`Named`."""
    found: dict[str, tuple[bool, list[int]]] = {}
    for name in (*asked, *filter(str.isidentifier, names)):
        with suppress(Exception):  # whatever an expression raises here, it is no name of a tensor
            _look(name, asked[name]() if name in asked else names[name], found)
    with open(file, "a", encoding="utf-8") as told:
        told.write(json.dumps([int(os.environ.get("RANK", "0")), found]) + "\n")


def _look(name: str, value: Any, found: dict[str, tuple[bool, list[int]]]) -> None:
    import torch

    from streamrace.device.work import place

    listed = isinstance(value, (list, tuple))
    ones = list(value[:_MOST]) if listed else [value]
    if ones and all(isinstance(one, torch.Tensor) and one.is_cuda for one in ones):
        found[name] = listed, [place(one)[0] for one in ones]


def told(file: Path) -> list[tuple[int, Named]]:
    """What was told there, by rank, line by line."""
    try:
        return [(rank, named) for rank, named in map(json.loads, file.read_text(encoding="utf-8").splitlines())]
    except OSError:
        return []
