"""How many examples a randomised test draws, and whether they are the same ones each time.

Three profiles of Hypothesis, chosen by ``--hypothesis-profile``:

* ``dev``: a fifth, while one writes. The same ones each time.
* ``ci``: as many as the test says, the same ones each time: a change is taken or refused by what it does, not by luck.
  What ``make test`` and ``make test-all`` run.
* ``nightly``: twenty times as many, other ones each time. ``make test-nightly`` draws a seed and prints it; the same
  seed gives the same examples.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_TIMES = {"dev": 0.2, "ci": 1.0, "nightly": 20.0}
DEFAULT = "dev"


def register() -> None:
    """Make the profiles known. No deadline: how long an example takes depends on what else the machine does."""
    for name in _TIMES:
        again = name != "nightly"
        database = None if again else settings().database
        settings.register_profile(name, deadline=None, derandomize=again, database=database, print_blob=True)
    settings.load_profile(DEFAULT)


def examples(count: int, **more: Any) -> settings:
    """``count`` examples in profile ``ci``, and in a process without any. ``more``: :class:`hypothesis.settings`'."""
    return settings(max_examples=max(5, round(count * _TIMES.get(settings.get_current_profile_name(), 1.0))), **more)
