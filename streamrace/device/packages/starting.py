"""Checks whether a release is what a program imports, and explains what it lacked if an import ended the program.

An old release may need something that today's environment does not have. The exception that ends the program names it:
it is reported as one sentence, after the traceback and in the verdict.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from streamrace.device import packages

_said: Path | None = None  # file for the explanations of this process and its forks
_ATTRIBUTE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def hidden(path: Sequence[str], places: Mapping[str, Path] | None = None) -> str:
    """Return a sentence about a release that the program would not import; empty if there is none.

    ``path``: the import path, in order. ``places``: folders of releases by ``NAME==VERSION``; None: those with which
    this process runs. A program next to a checkout of the package imports the checkout.
    """
    for package, place in (packages.running() if places is None else places).items():
        for module in _modules(place):
            for entry in path:
                if Path(entry or ".").absolute() == place:
                    break
                if any((Path(entry) / name).is_file() for name in (f"{module}/__init__.py", f"{module}.py")):
                    return (
                        f"the program would import {module} from {Path(entry).absolute()}, and not {package}: move the "
                        "program to a folder of its own, or take that folder out of the import path"
                    )
    return ""


def note_in(file: Path) -> None:
    """Set the file to which :func:`explain` writes, in this process and in its forks."""
    global _said
    _said = file


def noted(file: Path) -> str:
    """Return the explanation that the first failing process wrote to ``file``; empty if there is none."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def explain(error: BaseException) -> None:
    """Print to standard error what a release lacked, if this ended the program. To be called after the traceback."""
    if not (places := packages.running()):
        return
    sentence = next((text for text in (_lacked(cause, places) for cause in _causes(error)) if text), "")
    if sentence:
        print(f"streamrace: {sentence}", file=sys.stderr, flush=True)
        if _said is not None:
            with suppress(OSError), _said.open("x", encoding="utf-8") as file:
                file.write(sentence + "\n")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return the chain of causes, the first one first: an ImportError in an ``except`` is the release's fallback."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return reversed(chain)


def _lacked(error: BaseException, places: Mapping[str, Path]) -> str:
    """Return a sentence for an error in a release: what it lacked, or that its import failed; empty for others."""
    missing = _what(error)
    trace, at, importing = error.__traceback__, ("", ""), False
    while trace is not None:
        code = trace.tb_frame.f_code
        for package, place in places.items():
            if Path(code.co_filename).is_relative_to(place):
                importing |= code.co_name == "<module>"
                at = package.replace("==", " "), f"{code.co_filename[len(str(place)) + 1 :]}:{trace.tb_lineno}"
        trace = trace.tb_next
    release, line = at
    if release and missing is not None:
        return f"{release} asks for {missing[0]} ({line}), and it is not here: {missing[1]}, or take another release"
    if release and importing:
        text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        return (
            f"{release} cannot be imported here ({line}, {text}): something that it uses may be newer than it; name an "
            "older one with --package NAME==VERSION, or take another release"
        )
    return ""


def _what(error: BaseException) -> tuple[str, str] | None:
    """Return what was missing, and how to get it; None for errors of another kind."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        if top in sys.modules:
            return f"the module {error.name}", f"add --package {top}==VERSION of a release of {top} that has it"
        return f"the module {error.name}", f"add --package NAME==VERSION of the package that has {top}"
    if isinstance(error, ImportError) and (match := _NAME.search(str(error))):
        name, module = match.groups()
    elif isinstance(error, AttributeError) and (match := _ATTRIBUTE.search(str(error))):
        module, name = match.groups()
    else:
        return None
    top = module.partition(".")[0]
    return f"{module}.{name}", f"add --package {top}==VERSION of a release of {top} that has it"


def _modules(place: Path) -> list[str]:
    """Return the names of the modules that can be imported from a folder of packages."""
    return sorted(
        entry.name.removesuffix(".py")
        for entry in place.iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").is_file()
    )
