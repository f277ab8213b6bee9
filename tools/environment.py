"""``python tools/environment.py COMMAND FOLDER``: checks whether this checkout made the virtual environment in FOLDER.

A set-up leaves a stamp in the environment: the checkout, as the project is installed there in place, and a hash of the
files that determine what is installed. Contents are compared and no times: a checkout that only touches its files
installs nothing again, and an environment that somebody else made, or that is a link to one, is never changed.

``ready``: exit status 0, the environment is up to date; 1, the set-up has to run; 2, the environment is not ours to
change, and a sentence on standard error says what to do. ``begin`` marks the environment as ours before anything is
installed, so that a set-up that was interrupted goes on; ``done`` writes the hash of the installed files; ``ours``
checks whether the environment may be removed.
"""

from __future__ import annotations

import hashlib
import os
import sys

_ROOT = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SAID_BY = ("requirements.txt", "requirements-dev.txt", "pyproject.toml")
_STAMP = ".ready"
_BEGUN = "begun"


def wanted() -> str:
    """Return a hash of the files that determine what this checkout's set-up installs."""
    content = hashlib.sha256()
    for name in _SAID_BY:
        with open(os.path.join(_ROOT, name), "rb") as file:
            text = file.read()
        content.update(f"{name} {len(text)} ".encode() + text)
    return content.hexdigest()


def stamp(folder: str) -> tuple[str, str] | None:
    """Read the last set-up's stamp in ``folder``: a hash, and its checkout; None without a stamp.

    Stamps were empty before: an empty one in a folder of this checkout is of this checkout.
    """
    try:
        with open(os.path.join(folder, _STAMP), encoding="utf-8", errors="surrogateescape") as file:
            first, _, place = file.read().strip().partition(" ")
    except OSError:
        return None
    if not first and os.path.realpath(folder).startswith(os.path.join(_ROOT, "")):
        return _BEGUN, _ROOT
    return (first, place) if place else None


def foreign(folder: str) -> str | None:
    """Return why ``folder`` is not to be changed, as a sentence with what to do; None where it is ours, or missing."""
    what_to_do = "nothing is changed there: run make VENV=FOLDER, for an environment in another folder, or remove"
    left = stamp(folder)
    if os.path.islink(folder):
        return f"{folder} is a link to {os.path.realpath(folder)}; {what_to_do} the link"
    if not os.path.lexists(folder):
        return None
    if not os.path.isdir(folder):
        return f"{folder} is a file; {what_to_do} it"
    if left is None and os.listdir(folder):
        return f"{folder} was not made by this set-up; {what_to_do} it"
    if left is not None and left[1] != _ROOT and os.path.exists(os.path.join(left[1], "pyproject.toml")):
        return f"{folder} is the environment of the checkout {left[1]}; {what_to_do} it"
    return None


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    if len(arguments) != 2 or arguments[0] not in ("ready", "begin", "done", "ours"):
        print("usage: python tools/environment.py ready|begin|done|ours FOLDER", file=sys.stderr)
        return 2
    command, folder = arguments
    if command == "ready" and stamp(folder) == (wanted(), _ROOT):
        return 0
    problem = foreign(folder)
    if problem is not None:
        print(f"Error: {problem}.", file=sys.stderr)
        return 2
    if command in ("ready", "ours"):
        return int(command == "ready")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, _STAMP), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{_BEGUN if command == 'begin' else wanted()} {_ROOT}\n")
    except OSError as error:
        print(f"Error: cannot write {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
