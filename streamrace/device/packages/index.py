"""Queries the package index through pip, and explains pip's failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from streamrace.device.packages.names import Package, PackageError
from streamrace.process import lifetime

_LIST_S = 120
_RETRIES = "1"  # pip's default of five takes a minute without a network


def pip(
    words: Sequence[str], *, seconds: float, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pip in this environment, as configured by the user.

    Variables that mislead a build are removed: another release, or an accelerator that needs Intel's package. Raise
    :class:`subprocess.TimeoutExpired`, OSError.
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DS_ACCELERATOR")}
    command = [sys.executable, "-m", "pip", *words, "--no-input", "--disable-pip-version-check"]
    environment = {"PIP_RETRIES": _RETRIES, **clean, **(more or {})}
    return subprocess.run(
        lifetime.command(command), capture_output=True, text=True, timeout=seconds, check=False, env=environment
    )


def releases(name: str) -> list[str]:
    """Return all final releases of a package for this Python, oldest first. Raise :class:`PackageError`."""
    try:
        listing = pip(["index", "versions", "--quiet", name], seconds=_LIST_S)
        listed = re.search(r"^Available versions: (.*)$", listing.stdout, re.MULTILINE)
        if not listed:  # some versions of pip print nothing with --quiet
            listing = pip(["index", "versions", name], seconds=_LIST_S)
            listed = re.search(r"^Available versions: (.*)$", listing.stdout, re.MULTILINE)
    except subprocess.TimeoutExpired:
        raise PackageError(f"the package index did not list the releases of {name} within {_LIST_S} s") from None
    if listing.returncode or not listed:
        raise PackageError(f"the releases of {name} cannot be listed: {reason(listing.stderr, Package(name, ''))}")
    return [str(version) for version in final(listed[1].split(","))]


def final(texts: Iterable[str]) -> list[Version]:
    """Return the versions that are neither pre-releases nor development releases, oldest first."""
    versions = set()
    for text in texts:
        try:
            version = Version(text.strip())
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            versions.add(version)
    return sorted(versions)


def reason(stderr: str, package: Package) -> str:
    """Return why pip failed, from its standard error, as the end of a sentence."""
    listed = re.search(r"from versions: ([^)]*)\)", stderr)
    available = final(listed[1].split(",")) if listed else []
    if listed and available:
        return f"this release does not exist; {nearest(package.version, available)}"
    if re.search(r"Retrying \(|NewConnectionError|Name or service not known|Temporary failure", stderr):
        return "the package index cannot be reached"
    python = (
        re.search(rf"[ ;:]{re.escape(package.version)} Requires-Python ([^;\n]*)", stderr) if package.version else None
    )
    if python:
        return f"it needs another Python ({python[1].strip()})"
    if listed or "No matching distribution found" in stderr:
        return f"the package index has no {package.name}"
    if "No module named pip" in stderr:
        return "this environment has no pip (python -m ensurepip)"
    if is_broken(stderr):
        raised = re.findall(r"^ *(\w+(?:Error|Exception|Exit): .*)$", stderr, re.MULTILINE)
        return f"its build ends with {raised[-1].rstrip('.')}" if raised else "it does not build here"
    errors = [line.strip() for line in stderr.splitlines() if "ERROR" in line or "error" in line]
    return errors[-1] if errors else "pip does not say why"


def is_broken(stderr: str) -> bool:
    """Check whether pip's standard error is about a failed build, and not about an index."""
    return "subprocess-exited-with-error" in stderr or "Could not build wheels" in stderr or "Failed to build" in stderr


def nearest(version: str, available: Sequence[Version]) -> str:
    """Return the versions in ``available`` that are next to ``version``, as the end of a sentence."""
    if not version:
        return f"the newest is {available[-1]}"
    target = Version(version)
    below = [other for other in available if other < target][-1:]
    above = [other for other in available if other > target][:1]
    names = " and ".join(str(other) for other in (*below, *above))
    return f"the nearest {'are' if below and above else 'is'} {names}"
