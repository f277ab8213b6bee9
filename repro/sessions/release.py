"""Runs under other releases of packages: re-executes this process with them, or starts another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from streamrace import checkout
from streamrace.device.extras import installed
from streamrace.device.packages import environment_of, names, running
from streamrace.device.packages.names import Package, PackageError
from streamrace.device.torches.releases import not_tried
from streamrace.frameworks.deepspeed.releases import KNOWN, PINNED, ReleaseError
from streamrace.process.lifetime import command, module

_PROGRAMS = checkout.PACKAGE / "scenarios" / "catalogue"
_PACKAGES = ("streamrace", "torch", "deepspeed", "transformers")
_PACKAGE = re.compile(r'"([A-Za-z0-9._-]+==[^"]+)"')


def versions() -> dict[str, str]:
    """Return the versions in use, by package."""
    return installed(*_PACKAGES)


def become(packages: Sequence[str]) -> None:
    """Restart with ``packages`` (``NAME==VERSION``) and the same arguments. Returns if they are active already.

    Raises :class:`streamrace.device.packages.names.PackageError`.
    """
    requested = names.several(packages)
    lacking = [package for package in requested if not package.is_(names.installed(package.name))]
    if not lacking:
        return
    if loaded := [package for package in lacking if str(package) in running()]:
        first = loaded[0]
        raise PackageError(
            f"{first.title} was put at the front of the import path, but Python finds {first.name} "
            f"{names.installed(first.name)} before it: run in another folder, or take that one out of the import path"
        )
    environment = environment_of(packages, tell=_tell)
    sys.stdout.flush()
    os.execve(sys.executable, module("streamrace", *sys.argv[1:]), environment)


def with_deepspeed(values: Mapping[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    """Return the options of a scenario or a job, with the DeepSpeed among ``packages`` unless they name one.

    Another release runs as released, unless --fix is given: a scenario's own fix is for the pinned release. Raises
    :class:`PackageError`.
    """
    from streamrace.frameworks.deepspeed.fixes import Fix  # needs torch, and 'check' loads the device first

    requested = [package.version for package in names.several(packages) if package.name == "deepspeed"]
    release = values.get("deepspeed") or next(iter(requested), None)
    as_released = {"fix": str(Fix.STREAM_SYNC)} if release not in (None, PINNED) and not values.get("fix") else {}
    return {**values, "deepspeed": release, **as_released}


def aside(release: str, arguments: Sequence[str]) -> None:
    """Run ``streamrace`` with ``arguments`` under a release of DeepSpeed, in another process, and wait for its end.

    Raises :class:`streamrace.device.packages.names.PackageError` if it cannot be installed, and
    :class:`streamrace.frameworks.deepspeed.releases.ReleaseError` if the command fails.
    """
    environment = environment_of([f"deepspeed=={release}"], tell=_tell)
    done = subprocess.run(command(module("streamrace", *arguments)), env=environment)
    if done.returncode:
        raise ReleaseError(f"DeepSpeed {release}: the command ended with {done.returncode}; see what it said above")


def ran_with(packages: Sequence[str]) -> dict[str, str]:
    """Return the packages that replace the environment's, and the requested ones, by ``NAME==VERSION``.

    Each has a note: tried, not tried, beside (required by another package).
    """
    requested = [str(package) for package in names.several(packages)]
    return {package: "tried" if _tried(names.parse(package)) else "not tried" for package in requested} | {
        package: "beside" for package in running() if package not in requested
    }


def _tried(package: Package) -> bool:
    """Check whether the release is the environment's own, or was run with the scenarios or a catalogue entry."""
    if str(package) not in running() or (package.name == "deepspeed" and package.version in KNOWN):
        return True
    if package.name == "torch":
        return not not_tried(package.version)
    # Parse the text: with replaced releases, the catalogue's reader may not be importable.
    heads = (path.read_text(encoding="utf-8").partition("\n# ///\n")[0] for path in _PROGRAMS.glob("*/*.py"))
    return any(package.is_said(word) for head in heads for word in _PACKAGE.findall(head))


def _tell(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # all ranks of a launcher make the same request
        print(f"streamrace: {sentence}", file=sys.stderr, flush=True)
