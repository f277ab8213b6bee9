"""torch's wheel alone, without the packages that it asks for, as pip is configured to find it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from streamrace.compiling import BuildError
from streamrace.process import lifetime

WANTED = "STREAMRACE_CPU_TORCH"
"""What pip is to download: a wheel's path, or options and a requirement."""
_DOWNLOAD_S = 3600
_UNREACHED = re.compile(r"Retrying \(|NewConnectionError|Name or service not known|Temporary failure")


def run(
    words: Sequence[str], *, more: dict[str, str] | None = None, stdout: int | None = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """pip, with what the user has configured it to be; its standard error is read, and its output where not given on.

    Raises :class:`streamrace.compiling.BuildError` where there is none, or where it takes over an hour.
    """
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = lifetime.command([*_pip(), *words, "--no-input", "--disable-pip-version-check"])
    try:
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=_DOWNLOAD_S,
                              check=False, env={**clean, **(more or {})})  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BuildError(f"pip {words[0]} took over {_DOWNLOAD_S} s") from None


def _pip() -> list[str]:
    """An environment that uv made has no pip; the one that Python brings for its ensurepip runs from its wheel."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = sorted((Path(os.__file__).parent / "ensurepip" / "_bundled").glob("pip-*.whl"))
    if not bundled:
        raise BuildError("this environment has no pip, which fetches torch's CPU build: python -m ensurepip")
    return [sys.executable, f"{bundled[-1]}/pip"]


def has_cpu_build(version: str) -> bool:
    """Does an index or a folder that pip is configured for have a CPU build of its own?"""
    listed = run(["index", "versions", "torch", "--retries", "1"])  # by pages of the index: nothing is downloaded
    return re.search(rf"[ (]{re.escape(version)}\+cpu[,)\s]", listed.stdout or "") is not None


def download(version: str, folder: Path, tell: Callable[[str], None], wanted: Sequence[str] = ()) -> Path:
    """The wheel of torch ``version``, in ``folder``. ``wanted``: what pip is to take instead.

    Raises :class:`streamrace.compiling.BuildError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not wanted:
        wanted = [f"torch=={version}{'+cpu' if has_cpu_build(version) else ''}"]
        tell(f"torch {version}: downloading its wheel, {_expected(wanted[0])}")
    shown = sys.stderr.isatty()  # then pip tells the size, and shows how far it is
    words = ["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "-d", str(folder), *wanted]
    begun = time.monotonic()
    large = {"TMPDIR": str(folder.parent)}  # where there is room for it afterwards
    done = run(words if shown else [*words, "-q"], more=large, stdout=2 if shown else subprocess.PIPE)
    found = sorted(folder.glob("torch-*.whl"))
    if done.returncode or not found:
        raise BuildError(f"torch {version} cannot be had: {_why(version, wanted, done.stderr)}")
    tell(f"torch {version}: {found[0].stat().st_size / 1e6:,.0f} MB in {time.monotonic() - begun:.0f} s; "
         "half a minute now until it is a CPU build that was tried")  # fmt: skip
    return found[0]


def _expected(wanted: str) -> str:
    if wanted.endswith("+cpu"):
        return "a CPU build (some 200 MB)"
    return "without NVIDIA's libraries, of which a CPU build is made (500 to 900 MB)"


def _why(version: str, wanted: Sequence[str], said: str) -> str:
    instead = (
        f"set {WANTED} to the path of a wheel of it, or to pip's options for the index that has it "
        f"(--index-url ADDRESS torch=={version})"
    )
    if _UNREACHED.search(said):
        return f"the package index cannot be reached; {instead}"
    if wanted[0].startswith("torch==") and "No matching distribution" in said:
        return (
            f"pip finds no release {version} for this Python (is it a nightly, or built from source?): {instead}, or "
            "use an environment with a released torch"
        )
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR")]
    return f"{(errors or ['pip gave no wheel of torch'])[0].rstrip('.')}; {instead}"
