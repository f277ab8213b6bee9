"""Formats times, commands and the claim of a clean verdict in the same words for all reports."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from streamrace.trace.wording import duration


def plain_text(text: str) -> str:
    """Return ``text`` with lone surrogates as their codes, as files have it (:mod:`streamrace.trace.untrusted`)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def closeness(slack_ns: int) -> str:
    """Return the distance in time of a race's two accesses; below zero: in the wrong order."""
    if slack_ns < 0:
        return f"reversed by up to {duration(-slack_ns)}"
    return f"closest: {duration(slack_ns)} apart"


def clean(claim: str, unexercised: Sequence[str]) -> str:
    """Return a clean verdict's sentence, which never claims what did not happen.

    ``claim``: without a full stop; ``unexercised``: features that were on and never used.
    """
    if unexercised:
        return f"Clean for the part that ran: {claim}, but not everything was exercised."
    return f"Clean: {claim}."


def not_exercised(sentences: Sequence[str]) -> str:
    """Return the sentence about features that were never used, for reports that list them nowhere else."""
    return f"Not exercised, so nothing is known of it: {'; '.join(sentences)}."


def more(rows: int, file: str) -> str:
    """Return the note below a table that was cut; empty if it is complete."""
    return f"And {rows:,} more: see {file}." if rows > 0 else ""


def timing(token: str) -> str:
    """Describe the timing of a race's witness. Only deviations have a "/" or ":" and no "="."""
    deviates = any("=" not in part and {*"/:"} & {*part} for part in token.split(","))
    return "in another timing" if deviates else "in the timing as recorded"


def replays(token: str) -> str:
    """Return the command that executes a timing again, for the environment's own shell."""
    return f"streamrace replay {token}"


def reports_on(*folders: Path) -> str:
    """Return the command that builds the page of a run's folder, or of several."""
    return f"streamrace report {shlex.join(map(str, folders))}"


def typed(command: str) -> str:
    """Return ``command`` as it runs in the shell in which it is printed.

    A command that begins with ``streamrace`` or ``python`` is one of this environment. Its bare name runs only if the
    environment is activated; if not (``make`` does not activate it), the name is replaced by its path from here.
    """
    name, _, rest = command.partition(" ")
    return f"{_command_of(name)} {rest}" if name in ("streamrace", "python") else command


def _command_of(name: str) -> str:
    python = Path(sys.executable)  # not resolved: an environment's is a link to its base
    ours = python.with_name(name)
    if name != "python" and not ours.exists():  # the package is on the import path, but not installed
        return f"{_command_of('python')} -m {name}"
    path = shutil.which(name)
    if path and Path(path).parent.resolve() == python.parent.resolve():
        return name
    below = os.path.relpath(ours)
    return shlex.quote(str(ours) if below.startswith(os.pardir) else below)
