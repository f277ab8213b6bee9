"""Downloads torch's wheel alone, without its requirements, through pip as the user has configured it."""

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
"""Environment variable that names what pip must download: a wheel's path, or options and a requirement."""
_DOWNLOAD_S = 3600
_UNREACHED = re.compile(r"Retrying \(|NewConnectionError|Name or service not known|Temporary failure")


def run(
    words: Sequence[str], *, more: dict[str, str] | None = None, stdout: int | None = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run pip as the user has configured it. Captures its standard error, and its output unless ``stdout`` is given.

    Raise :class:`streamrace.compiling.BuildError` if there is no pip, or if it takes over an hour.
    """
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = lifetime.command([*_pip(), *words, "--no-input", "--disable-pip-version-check"])
    try:
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=_DOWNLOAD_S,
                              check=False, env={**clean, **(more or {})})  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BuildError(f"pip {words[0]} took over {_DOWNLOAD_S} s") from None


def _pip() -> list[str]:
    """Return the command for pip. An environment created by uv has none: Python's bundled wheel of pip runs instead."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    bundled = sorted((Path(os.__file__).parent / "ensurepip" / "_bundled").glob("pip-*.whl"))
    if not bundled:
        raise BuildError("this environment has no pip, which fetches torch's CPU build: python -m ensurepip")
    return [sys.executable, f"{bundled[-1]}/pip"]


def has_cpu_build(version: str) -> bool:
    """Check whether an index or folder configured for pip has a CPU build of its own."""
    listed = run(["index", "versions", "torch", "--retries", "1"])  # reads only index pages: nothing is downloaded
    return re.search(rf"[ (]{re.escape(version)}\+cpu[,)\s]", listed.stdout or "") is not None


def download(version: str, folder: Path, tell: Callable[[str], None], wanted: Sequence[str] = ()) -> Path:
    """Download the wheel of torch ``version`` into ``folder``. ``wanted``: requirements that pip downloads instead.

    Raise :class:`streamrace.compiling.BuildError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not wanted:
        wanted = [f"torch=={version}{'+cpu' if has_cpu_build(version) else ''}"]
        tell(f"torch {version}: downloading its wheel, {_expected(wanted[0])}")
    shown = sys.stderr.isatty()  # pip then prints the size and its progress
    words = ["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "-d", str(folder), *wanted]
    begun = time.monotonic()
    large = {"TMPDIR": str(folder.parent)}  # the final disk, which has room for the wheel
    result = run(words if shown else [*words, "-q"], more=large, stdout=2 if shown else subprocess.PIPE)
    wheels = sorted(folder.glob("torch-*.whl"))
    if result.returncode or not wheels:
        raise BuildError(f"torch {version} cannot be had: {_why(version, wanted, result.stderr)}")
    tell(f"torch {version}: {wheels[0].stat().st_size / 1e6:,.0f} MB in {time.monotonic() - begun:.0f} s; "
         "making and testing its CPU build takes half a minute")  # fmt: skip
    return wheels[0]


def _expected(requirement: str) -> str:
    if requirement.endswith("+cpu"):
        return "a CPU build (some 200 MB)"
    return "without NVIDIA's libraries, of which a CPU build is made (500 to 900 MB)"


def _why(version: str, wanted: Sequence[str], stderr: str) -> str:
    instead = (
        f"set {WANTED} to the path of a wheel of it, or to pip's options for the index that has it "
        f"(--index-url ADDRESS torch=={version})"
    )
    if _UNREACHED.search(stderr):
        return f"the package index cannot be reached; {instead}"
    if wanted[0].startswith("torch==") and "No matching distribution" in stderr:
        return (
            f"pip finds no release {version} for this Python (is it a nightly, or built from source?): {instead}, or "
            "use an environment with a released torch"
        )
    if "conflicting dependencies" in stderr:  # of a single package without its dependencies
        return "a constraint of pip's configuration excludes it: lift it ('pip config list' names its file)"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR")]
    return f"{(errors or ['pip gave no wheel of torch'])[0].rstrip('.')}; {instead}"
