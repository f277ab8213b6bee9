"""Runs mutants in copies of the checkout, one for each job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from mutants.listed import ROOT, Mutant

Outcome = Literal["noticed", "survived", "broken"]
_LONG_S = 900.0
_FAILED, _NOTHING_RAN = 1, 5


class Bench:
    """A copy of the checkout. Compiled files stay, so that only a mutant's own change is compiled again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._passed: set[tuple[object, ...]] = set()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)  # links to folders too
        if (ROOT / "build").is_dir():
            shutil.copytree(
                ROOT / "build", folder / "build", ignore=shutil.ignore_patterns("bdist*", "lib", "references")
            )

    def passes(self, mutant: Mutant) -> bool:
        """Check whether the mutant's tests pass without the mutant: otherwise their failure proves nothing."""
        key = (mutant.tests, mutant.environment)
        if key not in self._passed:
            if self._run(mutant) != 0:
                return False
            self._passed.add(key)
        return True

    def trial(self, mutant: Mutant) -> Outcome:
        """Put the mutant in, run its tests, take it out."""
        path = self.folder / mutant.file
        original = path.read_bytes()
        path.write_bytes(original.replace(mutant.old.encode(), mutant.new.encode()))
        try:
            status = self._run(mutant)
        finally:
            path.write_bytes(original)
        if status == 0:
            return "survived"
        ended = status is not None and status >= 0  # not by a signal, as by an access outside of memory
        return "broken" if ended and status != _FAILED else "noticed"

    def _run(self, mutant: Mutant) -> int | None:
        """Return pytest's exit status; None where it did not end in time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--hypothesis-profile=mutants", "-p", "no:cacheprovider"]
        environment = {**os.environ, **dict(mutant.environment), "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # two writes within a second have the same time stamp
        try:
            return subprocess.run(
                [*command, *mutant.tests], cwd=self.folder, env=environment, capture_output=True, timeout=_LONG_S
            ).returncode
        except subprocess.TimeoutExpired:
            return None
