"""Lists the versions of torch that were run on the simulated GPU. ``docs/concepts/versions.md`` has the details."""

from __future__ import annotations

import os
import re
import sys

OLDEST, NEWEST = (2, 5), (2, 15)
"""Oldest and newest release; all releases between them were tried."""
_TOLD = "STREAMRACE_NOT_TRIED"


def not_tried(version: str) -> str:
    """Return the warning for a version of torch that was not tried; empty for all others."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST and ".dev" not in version:
        return ""
    tried = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
    return (
        f"torch {version} was not tried on the simulated GPU ({tried} were): its behaviour there is unknown, "
        "and it may end with an error"
    )


def tell(version: str) -> None:
    """Print the warning to standard error, once for this process and those that it starts."""
    if (sentence := not_tried(version)) and os.environ.get(_TOLD) != version:
        os.environ[_TOLD] = version
        print(f"streamrace: {sentence}", file=sys.stderr, flush=True)
