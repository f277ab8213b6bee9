"""Implements ``device``: runs a script on the simulated GPU, without a verdict, with the options of its launcher."""

from __future__ import annotations


def run(arguments: list[str], launched: str | None = None) -> int:
    """Run the script in this process; return its exit status. ``launched``: a launcher's extra argument."""
    from streamrace.device.__main__ import run as start

    return start([*arguments, *([launched] if launched else [])])
