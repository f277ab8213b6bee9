"""The words that sentences of every floor share: counts with their noun, lists, places in source, kernels' names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePath

from streamrace.trace.records import Frame

CAPTURED = " (captured)"
"""Marks the function of a frame that belongs to the capture of a CUDA graph, not to its replay."""


def is_captured(frame: Frame) -> bool:
    """Check whether the frame belongs to the capture of a CUDA graph."""
    return frame.function.endswith(CAPTURED)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``number`` with its noun: "1 race", "1,234 launches". ``plural``: if it is not the noun with an s."""
    return f"{number:,} {plural_of(number, noun, plural)}"


def plural_of(number: int, noun: str, plural: str = "") -> str:
    """Return the noun, or verb, as it stands beside ``number``, without the number."""
    return noun if number == 1 else plural or f"{noun}s"


def times(number: int) -> str:
    """Return how often something happened: "once", "1,234 times"."""
    return "once" if number == 1 else f"{number:,} times"


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "13th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def few(names: Iterable[object], most: int) -> str:
    """Return the first ``most`` of the names and the number of the others: "0, 1 and 14 more"."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most:,} more" if len(texts) > most else "")


def every(names: Iterable[object], last: str = "and") -> str:
    """Return all names as a list within a sentence: "a, b and c"."""
    texts = [str(name) for name in names]
    return f" {last} ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def near(word: str, names: Iterable[str]) -> str:
    """Return an aside with the name close to a mistyped ``word``: " (did you mean 'check'?)"; empty if none is."""
    close = get_close_matches(word, [*names], 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def capital(text: str) -> str:
    """Return ``text`` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def cut(name: str, longest: int) -> str:
    """Return ``name``, without its middle if it has more than ``longest`` characters."""
    return name if len(name) <= longest else f"{name[: longest // 2]}…{name[-longest // 2 :]}"


def duration(ns: int) -> str:
    """Return a time with its unit, to four digits: "64 us", "1.5 ms"."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"


def differing(value: float, other: float) -> tuple[str, str]:
    """Format two numbers with at least six digits, and as many as distinguish the two."""
    for digits in range(6, 17):
        texts = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1] or value == other:
            return texts
    return repr(value), repr(other)


def becomes(before: float, now: float) -> str:
    """Return how a number changes: "0.41 becomes nan", "6.39563 becomes 6.39601: the 5th digit"."""
    first, second = differing(before, now)
    text = f"{first} becomes {second}"
    if before == now or not (math.isfinite(before) and math.isfinite(now)):
        return text
    digit = -math.floor(math.log10(abs(before - now) / max(abs(before), abs(now))))
    return f"{text}: the {ordinal(digit)} digit" if digit > 2 else text


def operator(kernel: str) -> str:
    """Return a kernel's name without its namespace: "copy_"."""
    return kernel.rpartition("::")[2]


def frame(place: Frame, *, path: bool = False) -> str:
    """Return a place in source: "partition_parameters.py:1946 _partition_param_sec". ``path``: with the file's path."""
    return f"{line(place.file, place.line, path=path)} {place.function}"


def line(file: str, number: int, *, path: bool = False) -> str:
    """Return a line of source: "partition_parameters.py:1946". ``path``: with the file's path."""
    return f"{file if path else PurePath(file).name}:{number}"
