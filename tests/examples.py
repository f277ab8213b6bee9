"""How many examples a randomised test draws, and whether they are the same ones each time.

Four profiles of Hypothesis, chosen by ``--hypothesis-profile``:

* ``dev``: a fifth, while one writes. The same ones each time.
* ``ci``: as many as the test says, the same ones each time: a change is taken or refused by what it does, not by luck.
  What ``make test`` and ``make test-all`` run.
* ``mutants``: twice as many, and the first failure is enough: what fails is not made small, which takes minutes.
* ``nightly``: twenty times as many, other ones each time. ``make test-nightly`` draws a seed and prints it; the same
  seed gives the same examples.

Many tests run in processes other than pytest's: what was chosen is in their environment.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import Phase, core, settings

_TIMES = {"dev": 0.2, "ci": 1.0, "mutants": 2.0, "nightly": 20.0}
DEFAULT = "dev"
_CHOSEN, _SEED = "STREAMRACE_EXAMPLES", "STREAMRACE_SEED"


def _register() -> None:
    """Make the profiles known. No deadline: how long an example takes depends on what else the machine does."""
    for name in _TIMES:
        again = name != "nightly"
        database = None if again else settings().database
        more = {"phases": (Phase.explicit, Phase.generate), "report_multiple_bugs": False} if name == "mutants" else {}
        settings.register_profile(name, deadline=None, derandomize=again, database=database, print_blob=True, **more)
    settings.load_profile(os.environ.get(_CHOSEN, DEFAULT))


def choose(profile: str | None, seed: str | None) -> None:
    """For the processes that this one starts: as Hypothesis' own plugin does in this one."""
    os.environ[_CHOSEN] = profile or DEFAULT
    if seed is not None:
        os.environ[_SEED] = seed


def seed() -> int | None:
    """The nightly run's, from which its examples are drawn; None where they are the same ones each time."""
    return int(os.environ[_SEED]) if os.environ.get(_CHOSEN) == "nightly" and _SEED in os.environ else None


def examples(count: int, **more: Any) -> settings:
    """``count`` examples in profile ``ci``. ``more``: :class:`hypothesis.settings`'."""
    return settings(max_examples=max(5, round(count * _TIMES.get(settings.get_current_profile_name(), 1.0))), **more)


_register()
if seed() is not None:
    core.global_force_seed = seed()
