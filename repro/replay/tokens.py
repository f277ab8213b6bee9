"""A timing as a short text that can be handed around: ``python -m repro replay TOKEN``.

A token is comma-separated::

    t1,hpz,fix=none,x4:link:nccl%20hpz,jitter:20:7,0/1.1/forward/model.norm.weight/copy_/1+64us

* ``t1``: the version of this form,
* the scenario's name, then the options in which the run differs from it, ``key=value``,
* the deviations from the recorded timing, in their order:

  * ``rank/step.micro-batch/phase/parameter/kernel/occurrence`` and ``+64us``: this operation takes 64 us longer;
    ``@+64us``: it starts 64 us later. Units are ns, us, ms and s,
  * ``x4:what``: all of ``stream:...``, ``kernel:...``, ``link:...``, ``rank:1``, ``host`` or ``host:1`` takes
    4 times as long,
  * ``jitter:20:7``: every kernel and collective takes up to 20 % longer, drawn from seed 7.

All but letters, digits and ``_ . : -`` (in the value of an option also ``/``) is percent-encoded in names and
values, so neither a comma within a name nor a shell misleads: of all characters a token can hold, sh, bash and
zsh give none a meaning where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote_to_bytes

from repro.replay.deviations import Delay, Deviation, Jitter, Stretch
from repro.replay.names import OperationName

VERSION = 1
EXAMPLE = "t1,hpz,fix=none,0/1.1/forward/model.norm.weight/copy_/1+64us"

LONGEST = 10_000  # characters
MOST_DEVIATIONS = 64
MOST_NS = 10**15
MOST_FACTOR = 10**6
MOST_PERCENT = 10**4
_MOST_SEED = 10**15
_MOST_COUNT = 10**9  # of ranks, steps, micro-batches, occurrences

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # longest first
_SIGNS: dict[Literal["late", "long"], str] = {"long": "+", "late": "@+"}
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.:-]")
_SCENARIO = re.compile(r"[a-z0-9-]+")
_KEY = re.compile(r"[a-z_]+")
_WHAT = re.compile(r"(?:stream|kernel|link):.*|rank:[0-9]+|host(?::[0-9]+)?", re.DOTALL)
_DELAY = re.compile(
    r"([0-9]+)/([0-9]+)\.([0-9]+)/([^/]*)/([^/]*)/([^/]*)/([0-9]+)(\+|@\+)([0-9]+)(ns|us|ms|s)", re.DOTALL
)
_STRETCH = re.compile(r"x([0-9]+):(.*)", re.DOTALL)
_JITTER = re.compile(r"jitter:([0-9]+):([0-9]+)")


class TokenError(Exception):
    """Not a token. One sentence: what is wrong, at which part, and what a token looks like."""


class _Wrong(Exception):
    """What is wrong with a part, as the end of a sentence that begins with the part."""


@dataclass(frozen=True)
class Token:
    """A scenario, the options in which the run differs from it, as text, and the deviations from its timing.

    Raises :class:`TokenError` when made of what no token can say, so that every token can be read again.
    """

    scenario: str
    options: Mapping[str, str] = field(hash=False)
    deviations: tuple[Deviation, ...]

    def __post_init__(self) -> None:
        try:
            _check_scenario(self.scenario)
            for key in self.options:
                _check_key(key)
            _check_counts(self.deviations)
        except _Wrong as wrong:
            raise _error("this token", wrong) from None
        for deviation in self.deviations:
            try:
                _check(deviation)
            except _Wrong as wrong:
                raise _error(_shown(_written(deviation)), wrong) from None
        if len(str(self)) > LONGEST:
            raise _error("this token", _Wrong(f"has more than {LONGEST} characters"))

    def __str__(self) -> str:
        options = [f"{key}={_encoded(value, also='/')}" for key, value in sorted(self.options.items())]
        return ",".join([f"t{VERSION}", self.scenario, *options, *map(_written, self.deviations)])

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read a token, white space around it left out. Raises :class:`TokenError` and nothing else."""
        text = text.strip()
        if len(text) > LONGEST:
            raise _error("this text", _Wrong(f"has {len(text)} characters, and a token at most {LONGEST}"))
        version, *parts = text.split(",")
        if version != f"t{VERSION}":
            known = re.fullmatch(r"t[0-9]+", version)
            what = "is of another version" if known else "does not begin with the version of a token"
            raise _error(_shown(text), _Wrong(f"{what}: this release reads t{VERSION}"))
        if not parts:
            raise _error(_shown(text), _Wrong("names no scenario"))
        options: dict[str, str] = {}
        deviations: list[Deviation] = []
        for place, part in enumerate(parts, 2):
            try:
                if place == 2:
                    _check_scenario(part)
                elif "=" in part:
                    key, _, value = part.partition("=")
                    _check_key(key)
                    if key in options:
                        raise _Wrong("gives an option that stands there already")
                    options[key] = _decoded(value, also="/")
                else:
                    deviations.append(_read(part))
                    _check(deviations[-1])
                    _check_counts(deviations)
            except _Wrong as wrong:
                raise _error(f"part {place} of the token, {_shown(part)},", wrong) from None
        return cls(parts[0], options, tuple(deviations))


def _error(subject: str, wrong: _Wrong) -> TokenError:
    return TokenError(f"{subject} {wrong}; a token looks like {EXAMPLE}")


def _shown(part: str) -> str:
    return ascii(part if len(part) <= 80 else f"{part[:77]}...")


def _check_scenario(name: str) -> None:
    if not _SCENARIO.fullmatch(name):
        raise _Wrong("does not name a scenario: that takes small letters, digits and '-'")


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise _Wrong(f"has {_shown(key)} for an option's name: that takes small letters and '_'")


def _check_counts(deviations: list[Deviation] | tuple[Deviation, ...]) -> None:
    if len(deviations) > MOST_DEVIATIONS:
        raise _Wrong(f"goes beyond the {MOST_DEVIATIONS} deviations that a token holds at most")
    if sum(isinstance(one, Jitter) for one in deviations) > 1:
        raise _Wrong("gives a second jitter, and a timing has one")


def _check(deviation: Deviation) -> None:
    match deviation:
        case Delay(operation, _, ns):
            _within("a delay", ns, 1, MOST_NS, "ns")
            _within("a rank", operation.rank, 0, _MOST_COUNT)
            _within("a step", operation.step, 0, _MOST_COUNT)
            _within("a micro-batch", operation.micro_batch, 0, _MOST_COUNT)
            _within("an occurrence", operation.occurrence, 1, _MOST_COUNT)
        case Stretch(what, factor):
            _within("a factor", factor, 2, MOST_FACTOR)
            if not _WHAT.fullmatch(what):
                raise _Wrong("stretches none of stream:..., kernel:..., link:..., rank:1, host and host:1")
        case Jitter(percent, seed):
            _within("a jitter", percent, 1, MOST_PERCENT, "%")
            _within("a seed", seed, 0, _MOST_SEED)


def _within(what: str, number: int, least: int, most: int, unit: str = "") -> None:
    if not least <= number <= most:
        raise _Wrong(f"is out of bounds: {what} is from {least} to {most} {unit}".rstrip())


def _written(deviation: Deviation) -> str:
    match deviation:
        case Stretch(what, factor):
            return f"x{factor}:{_encoded(what)}"
        case Jitter(percent, seed):
            return f"jitter:{percent}:{seed}"
        case Delay(one, how, ns):
            names = "/".join(_encoded(name) for name in (one.phase, one.parameter, one.kernel))
            unit, size = next((unit, size) for unit, size in _UNITS.items() if ns % size == 0)
            return f"{one.rank}/{one.step}.{one.micro_batch}/{names}/{one.occurrence}{_SIGNS[how]}{ns // size}{unit}"


def _read(part: str) -> Deviation:
    if found := _STRETCH.fullmatch(part):
        return Stretch(_decoded(found[2]), _number(found[1]))
    if found := _JITTER.fullmatch(part):
        return Jitter(_number(found[1]), _number(found[2]))
    if found := _DELAY.fullmatch(part):
        rank, step, micro_batch, phase, parameter, kernel, occurrence, sign, count, unit = found.groups()
        operation = OperationName(
            _number(rank),
            _number(step),
            _number(micro_batch),
            _decoded(phase),
            _decoded(parameter),
            _decoded(kernel),
            _number(occurrence),
        )
        return Delay(operation, "long" if sign == _SIGNS["long"] else "late", _number(count) * _UNITS[unit])
    raise _Wrong(
        "is neither an option (fix=none) nor a deviation (x4:stream:compute, jitter:20:7 or "
        "rank/step.micro-batch/phase/parameter/kernel/occurrence and +64us or @+64us)"
    )


def _number(digits: str) -> int:
    if len(digits) > 18:  # Python reads digits in quadratic time, and refuses very many
        raise _Wrong("has a number of more than 18 digits")
    return int(digits)


def _encoded(name: str, also: str = "") -> str:
    def encode(found: re.Match[str]) -> str:
        # Python's text can hold halves of characters that UTF-8 cannot: "surrogatepass" brings those through too.
        character = found[0]
        return (
            character if character in also else "".join(f"%{b:02X}" for b in character.encode("utf-8", "surrogatepass"))
        )

    return _NOT_PLAIN.sub(encode, name)


def _decoded(text: str, also: str = "") -> str:
    bare = re.sub(r"%[0-9A-Fa-f]{2}", "", text)
    if odd := next((found[0] for found in _NOT_PLAIN.finditer(bare) if found[0] not in also), ""):
        instead = "'%25' where no code follows" if odd == "%" else repr(_encoded(odd))
        raise _Wrong(f"has {odd!a}, which a token writes as {instead}")
    try:
        return unquote_to_bytes(text).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise _Wrong("has percent codes that are not UTF-8") from None
