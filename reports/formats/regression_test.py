"""Writes a race as a self-contained test for pytest: the text of its file (``streamrace emit-test``).

Names and texts are untrusted: they appear in literals only, with unprintable characters as escape codes.
"""

from __future__ import annotations

import ast
import base64
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from streamrace.detectors import Hang, MayHang, Race
from streamrace.detectors import wording as of_accesses
from streamrace.detectors.order.races import Side
from streamrace.detectors.places import meant
from streamrace.reports.text.race import harm
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_WIDTH = 100
_LONGEST = 90  # characters of a test's name
_LISTED = 5  # files in a sentence
_MEMORY = ("freed", "reused")
_ASSERTS = (
    "It asserts that the program has no race in any timing, between the two functions or elsewhere (a fix may move "
    "it): that is by happens-before, for the branches that the program takes. It also asserts that the program reads "
    "the same values in the timing below as in the plain one. If a fix moves the work that this timing delays, the "
    "first still holds, and a warning says that nothing was delayed."
)


@dataclass(frozen=True, kw_only=True)
class EmittedProgram:
    """The program of a test. ``program``: its text; ``name``: its file's; ``modules``: texts of its modules, by file
    name.

    ``about``: the program's docstring. ``data``: contents of the files that it opens, by path; None: too large, so the
    file lies beside the test's. ``elsewhere``: paths of files that it opens and the test does not bring. ``releases``:
    with which it fails. ``needed``: modules of the user's own that are not in the file. ``lines``: count of all lines
    before and after the reduction; ``whole``: nothing more can be left out, as so many ``trials`` showed.
    """

    program: str
    name: str
    ranks: int | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, bytes | None] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()
    arguments: Sequence[str] = ()
    about: str = ""
    releases: Mapping[str, str] = field(default_factory=dict)
    needed: Sequence[str] = ()
    lines: tuple[int, int] = (0, 0)
    whole: bool = True
    trials: int = 0


@dataclass(frozen=True, kw_only=True)
class EmittedTest(EmittedProgram):
    """The contents of a test of a race. ``between``: the two places; ``beside``: those of the program's other races.

    ``timing`` and ``reference``: of the witness. ``harm``: harmful, benign or not confirmed; ``says``: the evidence.
    """

    race: Race
    between: tuple[str, str]
    timing: str
    reference: str
    harm: str
    says: str
    beside: Sequence[tuple[str, str]] = ()

    @property
    def function(self) -> str:
        return name_of(self)


@dataclass(frozen=True, kw_only=True)
class EmittedHangTest(EmittedProgram):
    """The contents of a test of a ``hang``, or of an order that may hang."""

    hang: Hang | MayHang
    function = "test_no_rank_waits_for_ever"


def text(test: EmittedTest) -> str:
    """Return the text of the test's file."""
    own = [_between(test.between), f"timing={_quoted(test.timing)}"]
    own += [f"reference={_quoted(test.reference)}"] if test.reference != "t1" else []
    own += [_pairs(test.beside)] if test.beside else []
    return _file(test, test.function, "check_program", own, _docstring(test))


def text_of_hang(test: EmittedHangTest) -> str:
    """Return the text of the file of a test of a hang."""
    word = "Hangs" if isinstance(test.hang, Hang) else "May hang"
    parts = [
        "All ranks of a group make the same calls in the same order.",
        inspect.cleandoc(test.about),
        _filled(f"{word}{_with_releases(test)}: {test.hang.sentence()}."),
        _filled(
            "It asserts that no rank waits for ever, and that the program would come to its end if each GPU ran its "
            "collectives one at a time, in the order in which they were issued."
        ),
        *_brings(test),
    ]  # fmt: skip
    docstring = visible("\n\n".join(part for part in parts if part)) + "\n"
    return _file(test, test.function, "check_collectives", [], docstring)


def _file(test: EmittedProgram, function: str, check: str, own: Sequence[str], docstring: str) -> str:
    """Return the text of a file with one test, which calls ``check`` with the program and ``own`` arguments."""
    constants = {"PROGRAM": literal(test.program)}
    modules, files = [], []

    def constant(stem: str, other: str, value: str) -> str:
        name = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_").upper() or other
        name = name if name not in constants and not name[0].isdigit() else other
        constants[name] = value
        return name

    for at, (file, inner) in enumerate(test.modules.items(), 1):
        modules.append(f"{_quoted(file)}: {constant(PurePath(file).stem, f'MODULE_{at}', literal(inner))}")
    for at, (file, data) in enumerate(test.data.items(), 1):
        beside = f"Path(__file__).parent / {_quoted(file)}"
        files.append(f"{_quoted(file)}: {beside if data is None else constant(file, f'FILE_{at}', coded(data))}")
    arguments = ["PROGRAM", f"name={_quoted(test.name)}"]
    arguments += [f"modules={{{', '.join(modules)}}}"] if modules else []
    arguments += ["files={\n" + "".join(f"            {file},\n" for file in files) + "        }"] if files else []
    arguments += [f"arguments=[{', '.join(map(_quoted, test.arguments))}]"] if test.arguments else []
    arguments += [f"ranks={test.ranks}"] if test.ranks is not None else []
    arguments += own
    imports = {"from base64 import b64decode" for value in constants.values() if value.startswith("b64decode")}
    imports |= {"from pathlib import Path" for data in test.data.values() if data is None}
    lines = [
        literal(docstring),
        "",
        *([*sorted(imports), ""] if imports else []),
        f"from streamrace import {check}",
        "",
        *(f"{name} = {value}\n" for name, value in constants.items()),
        "",
        f"def {function}():",
        f"    {check}(",
        *(f"        {argument}," for argument in arguments),
        "    )",
    ]
    return "\n".join(lines) + "\n"


def name_of(test: EmittedTest) -> str:
    """Return the test's name: the fact that holds once the race is fixed."""
    first, second = (_short(side, test.name) for side in (test.race.first, test.race.second))
    fact = f"{first} keeps its memory" if test.race.kind in _MEMORY else f"{second} waits for {first}"
    name = re.sub(r"[\W_]+", "_", fact, flags=re.ASCII).strip("_")
    return f"test_{name[:_LONGEST].rstrip('_')}"


def literal(inner: str) -> str:
    """Return the text as a multi-line literal, as a person would write it."""
    coded = visible(inner.replace("\\", "\\\\")).replace('"""', '\\"\\"\\"')
    if coded.endswith('"'):
        coded = f'{coded[:-1]}\\"'
    quoted = f'"""{coded}"""' if not coded.startswith(("\n", '"')) else f'"""\\\n{coded}"""'
    if inner.startswith(("import ", "from ")):
        quoted = f'"""\\\n{coded}"""'
    try:
        same = ast.literal_eval(quoted) == inner
    except (SyntaxError, ValueError):
        same = False
    return quoted if same else ascii(inner)


def coded(data: bytes) -> str:
    """Return the expression of a file's contents: a literal of its text, or a call that decodes its bytes."""
    with suppress(UnicodeDecodeError):
        if b"\0" not in data:
            return literal(data.decode())
    return f'b64decode(\n    """\n{base64.encodebytes(data).decode()}"""\n)'


def _docstring(test: EmittedTest) -> str:
    race = test.race
    first, second = (_short(side, test.name) for side in (race.first, race.second))
    if race.kind in _MEMORY:
        head = f"The memory of the {first} is not to be used again before that is done."
    else:
        head = f"The {second} has to wait for the {first}."
    shown = [
        f"Fails{_with_releases(test)}:",
        "",
        *_line("first", race.first),
        *_line("second", race.second),
    ]
    parts = [
        head,
        inspect.cleandoc(test.about),
        "\n".join(shown),
        _filled(f"{race.missing_wait}. {harm(test.harm, test.says)}"),
        _filled(_ASSERTS),
    ]
    if all(place.rpartition(":")[0] in (test.name, *test.modules) for place in test.between):
        parts.append("Both functions lie in this file: if they are wrong, mend them here.")
    if test.beside:
        parts.append("The program has other races, which this test ignores: `beside` names them.")
    parts += _brings(test)
    return visible("\n\n".join(part for part in parts if part)) + "\n"


def _with_releases(test: EmittedProgram) -> str:
    releases = ", ".join(f"{name} {version}" for name, version in test.releases.items())
    return f" with {releases}" if releases else ""


def _brings(test: EmittedProgram) -> Iterator[str]:
    """Yield what the test needs beside its file, and how it was made."""
    if test.needed:
        yield _filled(f"Beside this file it imports {', '.join(test.needed)}: pytest has to find that.")
    if beside := [file for file, data in test.data.items() if data is None]:
        yield _filled(f"It opens {wording.few(beside, _LISTED)}: copy that into the folder of this file.")
    if test.elsewhere:
        yield _filled(f"It opens {wording.few(test.elsewhere, _LISTED)}: that has to be there.")
    yield _filled(_made(test))


def _made(test: EmittedProgram) -> str:
    where = f"{test.ranks} processes with a simulated GPU each" if (test.ranks or 1) > 1 else "a simulated GPU"
    before, after = test.lines
    shows = "that hang" if isinstance(test, EmittedHangTest) else "that show the race"
    left = f" The program is what is left of {before} lines, {after}, {shows}" if after < before else ""
    remark = f"{left}{'' if test.whole else '; it may still have some that are not needed'}." if left else ""
    return f"Runs on {where}: pip install pytest 'streamrace[watch]'.{remark}"


def _short(side: Side, program: str) -> str:
    """Return an access in short: ``all_gather in _dist_allgather_fn``."""
    operation = "free" if side.access == "free" else wording.operator(side.kernel)
    frame = meant(side.stack)
    if frame is None:
        return operation
    function = frame.function.partition(" ")[0].rpartition(".")[2]
    if function == "<module>":
        function = PurePath(frame.file).stem if PurePath(frame.file).name != program else "the program"
    return f"{operation} in {function.strip('<>')}"


def _line(word: str, side: Side) -> list[str]:
    frame = meant(side.stack)
    return [f"    {line}" for line in of_accesses.listed(word, side, [frame] if frame else [])]


def _filled(sentences: str) -> str:
    begun = wording.capital(sentences)
    return textwrap.fill(begun, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    lines = [f"            ({', '.join(map(_quoted, pair))}),\n" for pair in pairs]
    return f"beside=[\n{''.join(lines)}        ]"


def _between(places: Sequence[str]) -> str:
    quoted = [*map(_quoted, places)]
    line = f"between=({', '.join(quoted)})"
    if len(line) + 9 <= _WIDTH:
        return line
    return "between=(\n" + "".join(f"            {place},\n" for place in quoted) + "        )"


def _quoted(inner: str) -> str:
    """Return the literal as a formatter writes it: in double quotes, unless the text has some."""
    plain = inner.isascii() and inner.isprintable() and '"' not in inner and "\\" not in inner
    return f'"{inner}"' if plain else ascii(inner)
