"""Lets a program state what a tensor must be, and classifies a wrong one: stale, wrong bounds, wrong arithmetic.

For bugs with the symptom of a race that are none: every access is ordered, and the values are wrong all the same. The
kind is found from the values alone:

* *stale*: the wrong elements hold an earlier version of themselves;
* *wrong arithmetic* by a factor: all elements that should not be zero are off by the same factor;
* *wrong bounds*: whole stretches are wrong and others right, or the shape differs;
* *wrong arithmetic*: anything else.

A program calls :func:`answer`, also on a real GPU. Under ``streamrace check`` the answers go into the verdict.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from streamrace.trace.untrusted import Unreadable, contents, json_of, visible

Kind = Literal["right", "stale", "bounds", "arithmetic"]
KINDS: tuple[Kind, ...] = ("right", "stale", "bounds", "arithmetic")

FOLDER = "STREAMRACE_ANSWERS"
"""The environment variable that names the folder for the answers. ``streamrace check`` sets it."""

_STRETCH = 4  # elements: fewer, wrong or right, may be chance and are no stretch
_ROUNDING = 2**-7  # the rounding of bfloat16, of both values
_LONGEST = 1000  # characters of a sentence that is read back
_MOST = 10_000  # answers of a rank


@dataclass(frozen=True)
class Answer:
    """The result for one tensor on one rank. ``says``: a sentence without a full stop."""

    name: str
    rank: int
    kind: Kind
    says: str


def answer(name: str, got: Any, want: Any, earlier: Sequence[Any] = (), *, atol: float = 0.0) -> Kind:
    """State that tensor ``got`` must be ``want``, and return the kind of error, or "right".

    ``earlier``: its earlier versions, the latest first. ``atol``: by how much an element may be off; 0, unless
    ``want`` was computed in another order. Tensors may be of any shape, type and device; they are read on the host,
    so call it when the work is done (``torch.cuda.synchronize()``), as reading orders later work.
    """
    rank = int(os.environ.get("RANK", "0"))
    shapes = tuple(tuple(tensor.shape) for tensor in (got, want))
    if shapes[0] != shapes[1]:
        kind: Kind = "bounds"
        says = f"its shape is {shapes[0]}, not {shapes[1]}"
    else:
        kind, says = judge(_flat(got), _flat(want), [_flat(version) for version in earlier], atol=atol)
    record = Answer(visible(str(name), lines=False), rank, kind, says)
    if folder := os.environ.get(FOLDER):
        with (Path(folder) / f"{rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
    # In one write: print would write the line's end separately, perhaps after another rank's line.
    sys.stderr.write(f"rank {rank}: {record.name} is {kind if kind != 'arithmetic' else 'wrong'}: {says}\n")
    return kind


def judge(
    got: Sequence[float], want: Sequence[float], earlier: Sequence[Sequence[float]] = (), *, atol: float = 0.0
) -> tuple[Kind, str]:
    """Return the kind, and a sentence. All arguments are flat; an earlier version of another length is left out."""
    wrong = [not _same(a, b, atol) for a, b in zip(got, want, strict=True)]
    count, total = sum(wrong), len(wrong)
    if not count:
        return "right", f"all {total} elements are what they must be"
    first = wrong.index(True)
    summary = f"{count} of {total} elements are wrong, the first ({first}) is {got[first]:g} instead of {want[first]:g}"
    for age, version in enumerate(earlier, 1):
        if len(version) == total and all(
            _same(a, c, atol) for a, c, bad in zip(got, version, wrong, strict=True) if bad
        ):
            older = "the version before" if age == 1 else f"the version {age} before"
            return "stale", f"{summary}: they hold {older}"
    if factor := _factor(got, want, atol):
        return "arithmetic", f"{summary}: all are off by the factor {factor:.6g}"
    stretches = [(at, at + length) for bad, at, length in _runs(wrong) if bad]
    # Elements that are zero and should be do not show where the rest went wrong.
    informative = [bad for bad, value in zip(wrong, want, strict=True) if bad or value != 0]
    rights = sum(not bad for bad, _, _ in _runs(informative))
    if rights and (
        len(stretches) == 1
        or (count >= _STRETCH * len(stretches) and len(informative) - count >= _STRETCH * rights)  # none by chance
    ):
        shown = ", ".join(f"[{begin}, {end})" for begin, end in stretches[:3])
        return "bounds", f"{summary}: {shown}{' and more' if len(stretches) > 3 else ''} of them, and no others"
    return "arithmetic", summary


def read(folder: Path) -> list[Answer]:
    """Return all answers that ranks left in ``folder``, by rank. Raises OSError, :class:`Unreadable`."""
    answers: list[Answer] = []
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: (len(path.name), path.name)):
        lines = contents(path).split(b"\n")[:-1]  # the last one is empty, or was cut off
        for line in lines[:_MOST]:
            value = json_of(line)
            if not isinstance(value, dict) or value.get("kind") not in KINDS:
                raise Unreadable("it does not have the form of a program's answers")
            texts = {key: visible(str(value.get(key, "")), lines=False)[:_LONGEST] for key in ("name", "says")}
            rank = value.get("rank")
            answers.append(Answer(rank=rank if isinstance(rank, int) else 0, kind=value["kind"], **texts))
    return answers


def _flat(tensor: Any) -> list[float]:
    values: list[float] = tensor.detach().double().cpu().flatten().tolist()
    return values


def _same(a: float, b: float, atol: float) -> bool:
    return a == b or abs(a - b) <= atol or (math.isnan(a) and math.isnan(b))


def _factor(got: Sequence[float], want: Sequence[float], atol: float) -> float:
    """Return the factor by which all of ``got`` that should not be zero is off; 0: by none, or by several."""
    pairs = [(a, b) for a, b in zip(got, want, strict=True) if b != 0 or a != 0]
    if len(pairs) < 2 or any(b == 0 or a == 0 or not math.isfinite(a) for a, b in pairs):
        return 0.0
    # The largest element is the most precise: its rounding weighs least.
    a, b = max(pairs, key=lambda pair: abs(pair[1]))
    factor = a / b
    if abs(factor - 1) <= 4 * _ROUNDING:
        return 0.0
    return factor if all(abs(x - y * factor) <= _ROUNDING * abs(x) + atol for x, y in pairs) else 0.0


def _runs(flags: Sequence[bool]) -> list[tuple[bool, int, int]]:
    """Return the stretches of equal flags: flag, start, length."""
    runs, at = [], 0
    for flag, members in itertools.groupby(flags):
        length = sum(1 for _ in members)
        runs.append((flag, at, length))
        at += length
    return runs
