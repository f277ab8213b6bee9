"""Writes and reads a timing as a short text that can be passed on: ``streamrace replay TOKEN``.

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

Names and values are encoded as in :mod:`streamrace.device.tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamrace.device import tokens
from streamrace.device.tokens import MOST_COUNT, MOST_NS, TokenError, Wrong, decoded, encoded, number, shown, within
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.names import OperationName

EXAMPLE = "t1,hpz,fix=none,0/1.1/forward/model.norm.weight/copy_/1+64us"

_SCENARIO = re.compile(r"[a-z0-9-]+")
_KEY = re.compile(r"[a-z_]+")
_WHAT = re.compile(r"(?:stream|kernel|link):.*|rank:[0-9]+|host(?::[0-9]+)?", re.DOTALL)
_DELAY = re.compile(rf"([0-9]+)/([0-9]+)\.([0-9]+)/([^/]*)/([^/]*)/([^/]*)/([0-9]+){tokens.LENGTH}", re.DOTALL)


@dataclass(frozen=True)
class Token:
    """A scenario, the options in which the run differs from it, as text, and the deviations from its timing.

    Raises :class:`TokenError` for values that no token can express, so that every token can be read again.
    """

    scenario: str
    options: Mapping[str, str] = field(hash=False)
    deviations: tuple[Deviation, ...]

    def __post_init__(self) -> None:
        try:
            _check_scenario(self.scenario)
            for key in self.options:
                _check_key(key)
            tokens.check_counts([*self.deviations])
        except Wrong as wrong:
            raise _error("this token", wrong) from None
        for deviation in self.deviations:
            try:
                _check(deviation)
            except Wrong as wrong:
                raise _error(shown(_written(deviation)), wrong) from None
        if len(str(self)) > tokens.LONGEST:
            raise _error("this token", Wrong(f"has more than {tokens.LONGEST} characters"))

    def __str__(self) -> str:
        options = [f"{key}={encoded(value, also='/')}" for key, value in sorted(self.options.items())]
        return ",".join([f"t{tokens.VERSION}", self.scenario, *options, *map(_written, self.deviations)])

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse a token, ignoring surrounding white space. Raises :class:`TokenError` and nothing else."""
        text = text.strip()
        try:
            parts = tokens.parts_of(text)
        except Wrong as wrong:
            raise _error("this text" if len(text) > tokens.LONGEST else shown(text), wrong) from None
        if not parts:
            raise _error(shown(text), Wrong("names no scenario"))
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
                        raise Wrong("gives an option a second time")
                    options[key] = decoded(value, also="/")
                else:
                    deviations.append(_read(part))
                    _check(deviations[-1])
                    tokens.check_counts([*deviations])
            except Wrong as wrong:
                raise _error(f"part {place} of the token, {shown(part)},", wrong) from None
        return cls(parts[0], options, tuple(deviations))


def _error(subject: str, wrong: Wrong) -> TokenError:
    return tokens.error(subject, wrong, EXAMPLE)


def _check_scenario(name: str) -> None:
    if not _SCENARIO.fullmatch(name):
        raise Wrong("does not name a scenario: that takes small letters, digits and '-'")


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise Wrong(f"has {shown(key)} for an option's name: that takes small letters and '_'")


def _check(deviation: Deviation) -> None:
    match deviation:
        case OperationDelay(operation, _, ns):
            within("a delay", ns, 1, MOST_NS, "ns")
            within("a rank", operation.rank, 0, MOST_COUNT)
            within("a step", operation.step, 0, MOST_COUNT)
            within("a micro-batch", operation.micro_batch, 0, MOST_COUNT)
            within("an occurrence", operation.occurrence, 1, MOST_COUNT)
        case Stretch() | Jitter():
            tokens.check_common(deviation)
            if isinstance(deviation, Stretch) and not _WHAT.fullmatch(deviation.what):
                raise Wrong("stretches none of stream:..., kernel:..., link:..., rank:1, host and host:1")


def _written(deviation: Deviation) -> str:
    match deviation:
        case Stretch() | Jitter():
            return tokens.written_common(deviation)
        case OperationDelay(one, how, ns):
            names = "/".join(encoded(name) for name in (one.phase, one.parameter, one.kernel))
            return f"{one.rank}/{one.step}.{one.micro_batch}/{names}/{one.occurrence}{tokens.written_length(how, ns)}"


def _read(part: str) -> Deviation:
    if (common := tokens.read_common(part)) is not None:
        return common
    if match := _DELAY.fullmatch(part):
        rank, step, micro_batch, phase, parameter, kernel, occurrence, sign, count, unit = match.groups()
        operation = OperationName(
            number(rank),
            number(step),
            number(micro_batch),
            decoded(phase),
            decoded(parameter),
            decoded(kernel),
            number(occurrence),
        )
        return OperationDelay(operation, *tokens.read_length(sign, count, unit))
    raise Wrong(
        "is neither an option (fix=none) nor a deviation (x4:stream:compute, jitter:20:7 or "
        "rank/step.micro-batch/phase/parameter/kernel/occurrence and +64us or @+64us)"
    )
