"""Parses and writes the common parts of all timings' tokens: versions, names, numbers, stretches and jitter.

Two kinds of tokens use them: tokens of a recorded run (:mod:`streamrace.replay.tokens`), which name operations by their
role in training, and tokens of a program on the simulated GPU (:mod:`streamrace.device.timing`), which name operations
by stream and kernel.

All characters but letters, digits and ``_ . : -`` (in the value of an option also ``/``) are percent-encoded in names
and values, so that commas in names and shells cause no misreading: sh, bash and zsh give none of the characters in a
token a meaning where it occurs.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote_to_bytes

VERSION = 1
LONGEST = 10_000  # characters
MOST_DEVIATIONS = 64
MOST_NS = 10**15
MOST_FACTOR = 10**6
MOST_PERCENT = 10**4
MOST_COUNT = 10**9  # of ranks, steps, micro-batches, occurrences
_MOST_SEED = 10**15

How = Literal["late", "long"]
SIGNS: dict[How, str] = {"long": "+", "late": "@+"}
LENGTH = r"(\+|@\+)([0-9]+)(ns|us|ms|s)"  # of a delay, as a regular expression with three groups
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # longest first
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.:-]")
_STRETCH = re.compile(r"x([0-9]+):(.*)", re.DOTALL)
_JITTER = re.compile(r"jitter:([0-9]+):([0-9]+)")


class TokenError(Exception):
    """An invalid token. One sentence: what is wrong, at which part, and an example of a token."""


class Wrong(Exception):
    """An error in a part, as the end of a sentence that begins with the part."""


class Stretch(NamedTuple):
    """All work of ``what`` takes ``factor`` (2 or more) times as long.

    ``what``: ``stream:compute``, ``kernel:aten::copy_``, ``link:nccl hpz``, ``rank:1``, ``host``, ``host:2``.
    """

    what: str
    factor: int


class Jitter(NamedTuple):
    """Every kernel and collective is stretched by up to ``percent`` (1 or more), drawn from ``seed``."""

    percent: int
    seed: int


def error(subject: str, wrong: Wrong, example: str) -> TokenError:
    return TokenError(f"{subject} {wrong}; a token looks like {example}")


def shown(part: str) -> str:
    """Quote a part for a sentence, shortened."""
    return ascii(part if len(part) <= 80 else f"{part[:77]}...")


def parts_of(text: str) -> list[str]:
    """Return the parts after the version. Raise :class:`Wrong`."""
    if len(text) > LONGEST:
        raise Wrong(f"has {len(text)} characters, and a token at most {LONGEST}")
    version, *parts = text.split(",")
    if version != f"t{VERSION}":
        is_token = re.fullmatch(r"t[0-9]+", version)
        problem = "is of another version" if is_token else "does not begin with the version of a token"
        raise Wrong(f"{problem}: this release reads t{VERSION}")
    return parts


def read_common(part: str) -> Stretch | Jitter | None:
    """Parse a stretch or a jitter; return None for other parts. Raise :class:`Wrong`."""
    if match := _STRETCH.fullmatch(part):
        return Stretch(decoded(match[2]), number(match[1]))
    if match := _JITTER.fullmatch(part):
        return Jitter(number(match[1]), number(match[2]))
    return None


def written_common(deviation: Stretch | Jitter) -> str:
    if isinstance(deviation, Stretch):
        return f"x{deviation.factor}:{encoded(deviation.what)}"
    return f"jitter:{deviation.percent}:{deviation.seed}"


def check_common(deviation: Stretch | Jitter) -> None:
    """Check that the numbers are within bounds. Raise :class:`Wrong`."""
    if isinstance(deviation, Stretch):
        within("a factor", deviation.factor, 2, MOST_FACTOR)
    else:
        within("a jitter", deviation.percent, 1, MOST_PERCENT, "%")
        within("a seed", deviation.seed, 0, _MOST_SEED)


def check_counts(deviations: list[object]) -> None:
    """Raise :class:`Wrong` for more deviations than a token holds."""
    if len(deviations) > MOST_DEVIATIONS:
        raise Wrong(f"goes beyond the {MOST_DEVIATIONS} deviations that a token holds at most")
    if sum(isinstance(deviation, Jitter) for deviation in deviations) > 1:
        raise Wrong("has a second jitter, and a timing takes one")


def within(quantity: str, value: int, least: int, most: int, unit: str = "") -> None:
    if not least <= value <= most:
        raise Wrong(f"is out of bounds: {quantity} is from {least} to {most} {unit}".rstrip())


def written_length(how: How, ns: int) -> str:
    """Write a delay in the longest unit that gives a whole number."""
    unit, size = next((unit, size) for unit, size in _UNITS.items() if ns % size == 0)
    return f"{SIGNS[how]}{ns // size}{unit}"


def read_length(sign: str, count: str, unit: str) -> tuple[How, int]:
    """Parse the groups of :data:`LENGTH`. Raise :class:`Wrong`."""
    return "long" if sign == SIGNS["long"] else "late", number(count) * _UNITS[unit]


def number(digits: str) -> int:
    if len(digits) > 18:  # Python reads digits in quadratic time, and refuses very many
        raise Wrong("has a number of more than 18 digits")
    return int(digits)


def encoded(name: str, also: str = "") -> str:
    def encode(match: re.Match[str]) -> str:
        # Python's text can hold lone surrogates, which UTF-8 cannot encode: "surrogatepass" preserves them.
        character = match[0]
        return (
            character if character in also else "".join(f"%{b:02X}" for b in character.encode("utf-8", "surrogatepass"))
        )

    return _NOT_PLAIN.sub(encode, name)


def decoded(text: str, also: str = "") -> str:
    bare = re.sub(r"%[0-9A-Fa-f]{2}", "", text)
    if odd := next((match[0] for match in _NOT_PLAIN.finditer(bare) if match[0] not in also), ""):
        instead = "'%25' where no code follows" if odd == "%" else repr(encoded(odd))
        raise Wrong(f"has {odd!a}, which a token writes as {instead}")
    try:
        return unquote_to_bytes(text).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Wrong("has percent codes that are not UTF-8") from None


def rounded(ns: int) -> int:
    """Round up to a power of two of microseconds: short in a token, and tolerant of small differences."""
    us = 1
    while us * _UNITS["us"] < ns:
        us *= 2
    return us * _UNITS["us"]
