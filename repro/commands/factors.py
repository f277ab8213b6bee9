"""``PATTERN=FACTOR`` on the command line: what a timing makes slower."""

from __future__ import annotations

from collections.abc import Iterable


def factors(texts: Iterable[str], example: str) -> dict[str, float]:
    """The factors by pattern. Raises ValueError with a sentence, in which ``example`` shows how it is done."""
    found: dict[str, float] = {}
    for text in texts:
        pattern, equals, factor = text.rpartition("=")
        try:
            found[pattern] = float(factor)
        except ValueError:
            equals = ""
        if not equals or not pattern:
            raise ValueError(f"--slow takes PATTERN=FACTOR, for example {example}, not '{text}'")
    return found
