"""``device``: a script on the simulated GPU, without a verdict. Its options are those of its launcher."""

from __future__ import annotations


def run(arguments: list[str], launched: str | None = None) -> int:
    """Run it in this process; gives its exit status. ``launched``: what a launcher adds to the script's arguments."""
    from streamrace.device.__main__ import run as start

    return start([*arguments, *([launched] if launched else [])])
