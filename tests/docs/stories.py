"""Runs what a page shows: it writes the page's files, runs its commands in order and compares what they print.

A comment above a fence says what the fence is: ``<!-- train.py -->`` a file, ``<!-- run -->`` commands, a line each
(``<!-- run, exit status 1 -->``), ``<!-- it prints -->`` the standard output of the command above. ``...`` stands for
lines that are left out. With ``STREAMRACE_REWRITE=1`` the page is written anew instead, from what the commands print.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm import ROOT, shell, with_simulated_gpu

ACTIVATED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the environment, as pages have it
REWRITE = bool(os.environ.get("STREAMRACE_REWRITE"))
_FENCE = re.compile(r"<!-- (?P<mark>[^\n]+) -->\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_RUN = re.compile(r"run(?:, exit status (?P<status>\d+))?")
_PRINTS = "it prints"


def _activated() -> dict[str, str]:
    return {**shell(), "PYTHONPATH": str(ROOT), "PATH": ACTIVATED}


@dataclass
class Story:
    """A page that is being followed in ``folder``; ``warm``: the commands of the tool are forks (tests/warm.py).

    ``variables``: of the shell; ``printed``: the lines that each command printed.
    """

    page: Path
    folder: Path
    warm: bool = True
    variables: Mapping[str, str] = field(default_factory=_activated)
    printed: dict[str, list[str]] = field(default_factory=dict)

    def lines_until_the_cure(self) -> int:
        """Count the lines of the first verdict until its cure is shown."""
        (first, *_) = self.printed.values()
        (head, *_) = (at for at, line in enumerate(first) if "verdict: " in line)
        (cure, *_) = (at for at, line in enumerate(first) if line.startswith(("│   Cure: ", "Cure of race")))
        return cure + 1 - head

    def follow(self) -> None:
        """Do what the page shows, from top to bottom."""
        printed: list[str] = []
        parts, at = [], 0
        text = self.page.read_text(encoding="utf-8")
        for fence in _FENCE.finditer(text):
            shown = fence["text"]
            if re.fullmatch(r"[\w/]+\.\w+", fence["mark"]):
                file = self.folder / fence["mark"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(shown, encoding="utf-8")
            elif run := _RUN.fullmatch(fence["mark"]):
                for command in shown.splitlines():
                    printed = self._run(command, int(run["status"] or 0))
            elif fence["mark"] == _PRINTS and REWRITE:
                parts += [text[at : fence.start("text")], "\n".join([*anew(shown, printed), ""])]
                at = fence.end("text")
            elif fence["mark"] == _PRINTS:
                same(shown, printed, [*self.printed][-1])
        if REWRITE:
            self.page.write_text("".join([*parts, text[at:]]), encoding="utf-8")

    def _run(self, command: str, status: int) -> list[str]:
        environment = {**self.variables, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
        words = shlex.split(command, comments=True)
        if words[0] == "streamrace" and self.warm:
            done = with_simulated_gpu().run("-m", *words, folder=self.folder, environment=environment)
        else:
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=500
            )
        assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
        self.printed[command] = [line.rstrip() for line in done.stdout.splitlines()]
        return self.printed[command]


def _parts(shown: str) -> list[list[str]]:
    """Return the lines of a fence between those that are ``...``."""
    lines = [line.rstrip() for line in shown.rstrip("\n").split("\n")]
    text = "\n".join(lines)
    return [part.split("\n") for part in re.split(r"\n?^\.\.\.$\n?", text, flags=re.MULTILINE) if part]


def same(shown: str, printed: Sequence[str], what: str, *, end: bool = False) -> None:
    """Compare what is shown with what is ``printed``; ``end``: its beginning is left out without a ``...``."""
    at, parts = 0, _parts(shown)
    for part in parts:
        found = next((i for i in range(at, len(printed)) if list(printed[i : i + len(part)]) == part), None)
        assert found is not None, "\n".join(["the page shows:", *part, f"{what} prints:", *printed])
        at = found + len(part)
    if not re.search(r"^\.\.\.$", shown, re.MULTILINE):
        assert at == len(printed), "\n".join([f"{what} prints more:", *printed[at:]])
        assert end or len(parts[0]) == len(printed), "\n".join([f"{what} prints before that:", *printed])


def anew(shown: str, printed: Sequence[str]) -> list[str]:
    """Return the fence with what is printed now; of each part its first and last line are looked for."""
    lines: list[str] = []
    at = 0
    if not re.search(r"^\.\.\.$", shown, re.MULTILINE) or not _parts(shown):
        return list(printed)
    for part in _parts(shown):
        begin = next((i for i in range(at, len(printed)) if printed[i] == part[0]), at)
        last = next((i for i in range(begin, len(printed)) if printed[i] == part[-1]), len(printed) - 1)
        lines += ["..."] * (begin > at) + list(printed[begin : last + 1])
        at = last + 1
    return lines + ["..."] * (at < len(printed))
