"""Reports which parts of this project are installed, and what to install when a package is missing.

Most commands need packages of an extra (``pip install 'streamrace[reports]'``), so that users who only watch a
training need to install neither DeepSpeed nor plotting.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of

from streamrace import checkout
from streamrace.trace import wording

PROJECT = "streamrace"


def version() -> str:
    """Return this project's version; a checkout that was never installed has none."""
    try:
        return version_of(PROJECT)
    except PackageNotFoundError:
        return "unknown (not installed)"


def outside() -> str | None:
    """Return the sentence for a checkout run by a Python for which it is not installed; None if it is installed."""
    try:
        version_of(PROJECT)
    except PackageNotFoundError:
        environment = (checkout.root() or checkout.IMPORTED_FROM) / ".venv" / "bin"
        place = os.path.relpath(environment)
        setup = "" if (environment / "python").exists() else "run 'make setup', then "
        return (
            f"this Python ({platform.python_version()}) lacks packages that the project needs: {setup}activate its "
            f"environment ('. {place}/activate'), or write {place}/python instead of python"
        )
    return None


def elsewhere() -> str | None:
    """Return the sentence for systems that cannot have a simulated GPU; None on Linux."""
    if sys.platform == "linux":
        return None
    return (
        f"the simulated GPU runs on Linux, and this is {platform.system()}: use a Linux machine, a virtual one or a "
        "container (on Windows: WSL)"
    )


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of the installed ones among ``packages``."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version_of(name)
        except PackageNotFoundError:
            continue
    return versions


def missing() -> dict[str, list[str]]:
    """Return the missing packages of each extra: an empty list for a complete one. Empty if not installed at all."""
    return {
        extra: sorted(name for name in names if not installed(name).keys() - {"python"})
        for extra, names in _brought().items()
        if extra
    }


def lacking(error: ModuleNotFoundError, command: str, extras: str) -> str | None:
    """Return the sentence for ``error``: ``command`` needs ``extras`` (with commas) and the module's extra.

    None if no extra of this project contains the module: something else is broken then, and its traceback says more.
    """
    module = (error.name or "").partition(".")[0]
    bringing = [extra for extra, names in _brought().items() if module.lower() in names]
    if not bringing:
        return None
    needed = [extra for extra in extras.split(",") if extra]
    if bringing[0] and not set(needed) & set(
        bringing
    ):  # a page of a study, for example, whose subject needs another extra
        needed.append(bringing[0])
    words = f"{wording.plural_of(len(needed), 'extra')} {wording.every(needed)}"
    return f"{command} needs the {words}: pip install '{PROJECT}[{','.join(needed)}]' (there is no {module} here)"


def _brought() -> dict[str, set[str]]:
    """Return the import names of the packages of each extra; for our packages these equal the package names.

    In the order of pyproject.toml: an extra follows those that it includes. Under "": packages always installed.
    """
    try:
        listed = requires(PROJECT) or []
    except PackageNotFoundError:
        listed = []
    brought: dict[str, set[str]] = {}
    for requirement in listed:
        match = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?[^;]*(?:;.*extra == ['\"](\w+)['\"])?", requirement)
        if match is None:
            continue
        name, included, extra = match.groups(default="")
        names = brought.setdefault(extra, set())
        if included:
            names |= set().union(*(brought.get(other, set()) for other in included.split(",")))
        else:
            names.add(name.lower().replace("-", "_"))
    return brought
