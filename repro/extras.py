"""What of this project is installed, and what to install where a package is missing.

Most of what the command line does needs packages that come with an extra (``pip install 'stream-races[reports]'``), so
that who watches a training installs no DeepSpeed and no plotting.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of

PROJECT = "stream-races"


def version() -> str:
    """This project's version. In a checkout that nobody installed there is none."""
    try:
        return version_of(PROJECT)
    except PackageNotFoundError:
        return "unknown (not installed)"


def lacking(error: ModuleNotFoundError, what: str, extras: str) -> str | None:
    """The sentence for ``error``: ``what`` (a command) needs ``extras`` (with commas).

    None where the module is of none of our extras: then something else is broken, and its traceback says more.
    """
    module = (error.name or "").partition(".")[0]
    if module.lower() not in _optional():
        return None
    plural = "s" if "," in extras else ""
    named = extras.replace(",", " and ")
    return f"{what} needs the extra{plural} {named}: pip install '{PROJECT}[{extras}]' (there is no {module} here)"


def _optional() -> set[str]:
    """What the extras install, by the names under which it is imported: for our packages, these are the same."""
    try:
        listed = requires(PROJECT) or []
    except PackageNotFoundError:
        return set()
    names = [re.match(r"[A-Za-z0-9._-]+", one) for one in listed]
    return {name[0].lower().replace("-", "_") for name in names if name}
