"""Installs torch's CPU build into this environment: ``python -m streamrace.device.torches --constraint FILE``.

The first step of ``make setup``, in an environment that has only pip. ``FILE`` (requirements.txt) pins the version.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from streamrace.compiling import BuildError
from streamrace.device import torches
from streamrace.device.build import has_cuda, torch_folder
from streamrace.device.torches import pip, wheels

_USAGE = "usage: python -m streamrace.device.torches --constraint FILE"


def main(arguments: list[str]) -> None:
    """Install the build unless it is installed already. Raise :class:`streamrace.compiling.BuildError`."""
    if len(arguments) != 2 or arguments[0] != "--constraint":
        raise SystemExit(_USAGE)
    pins = Path(arguments[1])
    pinned = re.search(r"^torch==(\S+)$", pins.read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None:
        raise BuildError(f"{pins} does not say which version of torch: torch==VERSION")
    version = pinned[1]
    if _is_there(version):
        return
    _clean()
    if pip.has_cpu_build(version):
        _tell(f"torch {version}: pip has a CPU build, which is installed as it is")
        _install(pins, f"torch=={version}+cpu")
        return
    built = torches.tree(version, _tell, before=lambda built: _install(pins, *wheels.requirements(built)))
    _tell(f"torch {version}: installing its CPU build from {built}")
    _install(pins, *wheels.requirements(built))
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        wheel = wheels.pack(built, Path(folder))
        _install(pins, "--no-index", "--no-deps", "--find-links", folder, f"torch=={wheel.name.split('-')[1]}")


def _is_there(version: str) -> bool:
    try:
        return version_of("torch").partition("+")[0] == version and not has_cuda(torch_folder())
    except (PackageNotFoundError, BuildError):
        return False


def _clean() -> None:
    """Uninstall torch: pip would accept a CUDA build of the same version, and keep it."""
    try:
        version_of("torch")
    except PackageNotFoundError:
        return
    pip.run(["uninstall", "-q", "-y", "torch"])


def _install(pins: Path, *requirements: str) -> None:
    if not requirements:
        return
    result = pip.run(["install", "-q", "--constraint", str(pins), *requirements])
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise BuildError(f"pip cannot install {requirements[-1]}: {(errors or ['it does not say why'])[-1]}")


def _tell(sentence: str) -> None:
    print(f"setup: {sentence}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BuildError as problem:
        raise SystemExit(f"setup: {problem}") from None
