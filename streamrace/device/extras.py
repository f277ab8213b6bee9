"""What of this project is installed, and what to install where a package is missing.

Most of what the command line does needs packages that come with an extra (``pip install 'streamrace[reports]'``), so
that who watches a training installs no DeepSpeed and no plotting.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of

from streamrace import checkout

PROJECT = "streamrace"


def version() -> str:
    """This project's version. In a checkout that nobody installed there is none."""
    try:
        return version_of(PROJECT)
    except PackageNotFoundError:
        return "unknown (not installed)"


def outside() -> str | None:
    """The sentence for who starts a checkout by a Python that it is not installed for; None where it is installed."""
    try:
        version_of(PROJECT)
    except PackageNotFoundError:
        environment = (checkout.root() or checkout.IMPORTED_FROM) / ".venv" / "bin"
        place = os.path.relpath(environment)
        made = "" if (environment / "python").exists() else "run 'make setup', then "
        return (
            f"this Python ({platform.python_version()}) has not what the project needs: {made}activate its "
            f"environment ('. {place}/activate'), or write {place}/python instead of python"
        )
    return None


def elsewhere() -> str | None:
    """The sentence for systems on which there can be no simulated GPU; None on Linux."""
    if sys.platform == "linux":
        return None
    return (
        f"the simulated GPU runs on Linux, and this is {platform.system()}: use a Linux machine, a virtual one or a "
        "container (on Windows: WSL)"
    )


def installed(*packages: str) -> dict[str, str]:
    """The versions of Python and of those ``packages`` that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            continue
    return found


def missing() -> dict[str, list[str]]:
    """What each extra brings and is not installed: an empty list for one that is whole. None where nothing is."""
    return {
        extra: sorted(name for name in names if not installed(name).keys() - {"python"})
        for extra, names in _brought().items()
        if extra
    }


def lacking(error: ModuleNotFoundError, what: str, extras: str) -> str | None:
    """The sentence for ``error``: ``what`` (a command) needs ``extras`` (with commas), and the one that has the module.

    None where the module is of none of our extras: then something else is broken, and its traceback says more.
    """
    module = (error.name or "").partition(".")[0]
    bringing = [extra for extra, names in _brought().items() if module.lower() in names]
    if not bringing:
        return None
    needed = [extra for extra in extras.split(",") if extra]
    if bringing[0] and not set(needed) & set(
        bringing
    ):  # a page of a study, for example: what it tells of is of the other extra
        needed.append(bringing[0])
    words = f"extra{'s' if len(needed) > 1 else ''} {' and '.join(needed)}"
    return f"{what} needs the {words}: pip install '{PROJECT}[{','.join(needed)}]' (there is no {module} here)"


def _brought() -> dict[str, set[str]]:
    """What each extra installs, by the names under which it is imported: for our packages, these are the same.

    As they stand in pyproject.toml: an extra comes behind those that it includes. Under "": what is always installed.
    """
    try:
        listed = requires(PROJECT) or []
    except PackageNotFoundError:
        listed = []
    brought: dict[str, set[str]] = {}
    for one in listed:
        found = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?[^;]*(?:;.*extra == ['\"](\w+)['\"])?", one)
        if found is None:
            continue
        name, included, extra = found.groups(default="")
        names = brought.setdefault(extra, set())
        if included:
            names |= set().union(*(brought.get(other, set()) for other in included.split(",")))
        else:
            names.add(name.lower().replace("-", "_"))
    return brought
