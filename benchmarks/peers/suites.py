"""Reads the list of the peers' tests (``benchmarks/peers.toml``), and brings their sources."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

UNTOLD = re.compile("no end after|more than .* memory|a process ended")
"""What is said of a test that told nothing itself."""
Build = Literal["simulated", "real"]
LIST = Path(__file__).resolve().parents[1] / "peers.toml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """The tests of a peer: an archive with its checksum, or a commit of a git repository.

    ``folder``: of the tests, in it. ``plugin``: of this package. ``options``: of pytest.
    """

    name: str
    archive: str = ""
    sha256: str = ""
    repository: str = ""
    commit: str = ""
    folder: str
    plugin: str
    options: list[str] = []


class Suite(_Strict):
    """Test files that run in one start, on ``ranks`` ranks of ``gpus`` devices each.

    ``real_build``: torch's CUDA build can run them over the fake CUDA libraries, in one process.
    """

    name: str
    source: str
    files: list[str]
    ranks: int = 1
    gpus: int = 1
    real_build: bool = False


class Reason(_Strict):
    """Why tests do not pass: ``tests``, regular expressions of their names; ``error``, one of their errors.

    Without ``error`` it is no reason for a hang, nor for the end of a process, nor for too much memory. ``build``: on
    which it holds, the simulated GPU, torch's CUDA build over fake libraries, or both.
    """

    why: str
    tests: list[str] = [""]
    error: str = ""
    build: Literal["simulated", "real", "both"] = "simulated"

    def of(self, test: str, error: str, build: Build = "simulated") -> bool:
        """Return whether this is the reason for a test on this build."""
        if self.build not in (build, "both"):
            return False
        told = re.search(self.error, error) if self.error else not UNTOLD.match(error)
        return bool(told) and any(re.search(one, test) for one in self.tests)


class List(_Strict):
    """The whole list."""

    source: list[Source]
    suite: list[Suite]
    reason: list[Reason]


def read() -> List:
    """Return the list. Raise ValidationError if it is wrong."""
    return List.model_validate(tomllib.loads(LIST.read_text(encoding="utf-8")))


def bring(source: Source, into: Path) -> Path:
    """Return the folder of a source's tests, after downloading it below ``into`` if necessary.

    Raise OSError or CalledProcessError if it cannot be had, ValueError if it is not what the list says.
    """
    place = into / source.name
    if not place.exists():
        into.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=into))
        try:
            if source.archive:
                _unpack(source, part)
            else:
                _clone(source, part)
            part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return place / source.folder


def _unpack(source: Source, into: Path) -> None:
    with urllib.request.urlopen(source.archive, timeout=60) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != source.sha256:
        raise ValueError(f"{source.archive} is not the file of peers.toml: it has another SHA-256")
    archive = into / "archive"
    archive.write_bytes(content)
    with tarfile.open(archive) as tar:
        tar.extractall(into, [one for one in tar if one.name.startswith(f"{source.folder}/")], filter="data")
    archive.unlink()


def _clone(source: Source, into: Path) -> None:
    git = ["git", "-C", str(into)]
    few = ["--quiet", "--filter=blob:none", "--no-checkout", "--sparse"]
    subprocess.run(["git", "clone", *few, source.repository, str(into)], check=True)
    subprocess.run([*git, "sparse-checkout", "set", source.folder], check=True)
    subprocess.run([*git, "checkout", "--quiet", source.commit], check=True)
