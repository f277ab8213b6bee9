"""Defines the options of a test under fuzzed timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamrace.device.hardware import ProfileError, load_profile
from streamrace.device.options import GPUS, MOST_GPUS
from streamrace.fuzz.testing.bodies import Problem

_MOST_RANKS = 64


@dataclass(frozen=True)
class Options:
    """The options of a test.

    ``examples``: timings drawn at random; ``ranks``: processes with ``torch.distributed``; ``profile``: hardware
    (default: the simulated GPU's own costs); ``benign``: whether a race that changes no value fails; ``seed``: of the
    timings, and of torch, random and numpy before each run; ``uninitialised``: whether a value that nobody wrote fails;
    ``gpus``: devices of each process.
    """

    examples: int = 50
    ranks: int = 1
    profile: str = ""
    benign: str = "fail"
    seed: int = 0
    uninitialised: str = "fail"
    gpus: int = GPUS

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """Check the given options, and return them. Raises :class:`Problem`."""
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise Problem(f"stream_race has no option {name!r}: there is {', '.join(names)}")
        options = cls(**values)
        for name, least, most in (
            *(("examples", 1, 10**6), ("ranks", 1, _MOST_RANKS)),
            *(("seed", 0, 10**15), ("gpus", 1, MOST_GPUS)),
        ):
            value = getattr(options, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise Problem(f"stream_race: {name} is a number from {least} to {most}, not {value!r}")
        for name in ("benign", "uninitialised"):
            if (setting := getattr(options, name)) not in ("fail", "allow"):
                raise Problem(f"stream_race: {name} is 'fail' or 'allow', not {setting!r}")
        if not isinstance(options.profile, str):
            raise Problem(f"stream_race: profile is the name of a hardware profile, not {options.profile!r}")
        try:
            _ = options.profile and load_profile(options.profile)
        except ProfileError as error:
            raise Problem(f"stream_race: {error}") from None
        return options
