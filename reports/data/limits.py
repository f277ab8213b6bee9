"""Describes limits of a library that a small model does not meet, or that were scaled to it."""

from __future__ import annotations

from pathlib import Path

from pydantic import FiniteFloat

from streamrace.reports.data.schema import JsonPart
from streamrace.trace import wording

_MOST = 64  # engines that are described


class KeptLimits(JsonPart):
    """Limits of one engine of a library, by their names in its configuration. ``parameters``: elements of the model.

    ``never_met``: limits that this model stays below; ``scaled``: those that were scaled to it, before and after.
    """

    library: str
    parameters: int
    never_met: dict[str, FiniteFloat]
    scaled: dict[str, tuple[FiniteFloat, FiniteFloat]]

    def sentences(self) -> list[str]:
        """Return what a model of this size did not show, and how to see it, without full stops."""
        size, said = f"the model of {self.parameters:,} parameters", []
        if self.never_met:
            names = wording.every([f"{name} ({value:,.12g})" for name, value in self.never_met.items()])
            remedy = "check a larger model, or" if self.scaled else "add --scale-limits, or check"
            said.append(
                f"Not seen at this size: {size} stays below limits of {self.library} that a large one meets: {names}. "
                f"To see what the library does beyond them, {remedy} the full size with --dry"
            )
        if self.scaled:
            changes = [f"{name} from {before:,.12g} to {after:,.6g}" for name, (before, after) in self.scaled.items()]
            said.append(f"Limits of {self.library} are scaled to {size} (--scale-limits): {wording.every(changes)}")
        return said


def noted(file: Path) -> list[KeptLimits]:
    """Return the limits that the ranks wrote to ``file`` (:mod:`streamrace.device.limits`), each engine once."""
    return [*{kept.model_dump_json(): kept for kept in KeptLimits.read_lines(file)}.values()][:_MOST]
