"""The page of what is refused, made from the product's own sources: each sentence, and what to do instead.

A refusal is a call of ``refusal(subject, instead)`` (``streamrace/device/refusals.py``) or of a function that passes it
on, or a sentence with "cannot be simulated", in Python or C++. What a sentence fills in at run time is shown as "…".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

PRODUCT = Path(__file__).resolve().parents[1] / "streamrace"
_CALLS = ("refusal", "refuse", "_refuse")
_SENTENCE = re.compile(
    r"^(?:streamrace: )?(?P<subject>.+?)(?: is a library.*? and|, which)? cannot "
    r"(?:be simulated|run on a simulated GPU|share the simulated GPU's memory with other libraries, whose kernels do "
    r"not run on it)"
    r"(?P<rest>.*)$",
    re.DOTALL,
)
_LITERAL = r'"((?:[^"\\\n]|\\.)*)"'
_JOINED = re.compile(rf"{_LITERAL}(?:[^\"();]*?(?:\([^()\";]*\)[^\"();]*?)*{_LITERAL})*")


class Refusal(NamedTuple):
    """A subject that is refused, what to do instead, and the source files that refuse it."""

    subject: str
    instead: str
    files: tuple[str, ...]


def page() -> Iterator[str]:
    """Yield the page as Markdown."""
    functions, libraries, calls = of_functions(), of_libraries(), of_calls()
    yield "# What is refused\n"
    yield (
        "What the simulated GPU cannot follow is refused where the program asks for it, by name and with an "
        "alternative. `check` never calls a program that ended by a refusal clean. This page is made of the code: "
        f"{len(functions)} functions of torch, {len(libraries)} libraries of CUDA kernels, and {len(calls)} other "
        "sentences. A part that a sentence fills in is shown as “…”. What is simulated with a difference is listed in "
        "[differences from hardware](departures.md), and what a dry run refuses in [dry runs](dry.md).\n"
    )
    yield "## Calls\n\n| refused | what to do | source |\n|---|---|---|"
    yield from (f"| {_cell(one.subject)} | {_cell(one.instead)} | {_files(one.files)} |" for one in calls)
    yield "\n## Libraries of CUDA kernels\n"
    yield "A library that is not in this list is refused in the same way if a part of it is linked with CUDA's.\n"
    yield "| library | what to do |\n|---|---|"
    yield from (f"| `{name}` | {_cell(instead)} |" for name, instead in sorted(libraries.items()))
    yield "\n## Functions of torch\n"
    yield "| refused | what to do | functions of `torch._C` |\n|---|---|---|"
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, sentence in functions.items():
        grouped.setdefault(sentence, []).append(f"`{name}`")
    yield from (
        f"| {_cell(subject)} | {_cell(instead)} | {', '.join(names)} |" for (subject, instead), names in grouped.items()
    )


def of_functions() -> dict[str, tuple[str, str]]:
    """Return the refused functions of ``torch._C``, each with its subject and alternative."""
    from streamrace.device.refusals import FUNCTIONS

    return FUNCTIONS


def of_libraries() -> dict[str, str]:
    """Return the libraries that are refused by name, each with the alternative."""
    from streamrace.device.imports import INSTEAD

    return INSTEAD


def of_calls() -> list[Refusal]:
    """Return the other refusals in the product's sources, in the order of the files."""
    functions = set(of_functions().values())
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(PRODUCT.rglob("*")):
        if file.suffix in (".py", ".cpp", ".h"):
            text = file.read_text(encoding="utf-8")
            sentences = _of_python(ast.parse(text)) if file.suffix == ".py" else _of_cpp(text)
            for sentence in dict.fromkeys(sentences):
                found.setdefault(sentence, []).append(file.relative_to(PRODUCT.parent).as_posix())
    return [Refusal(*sentence, tuple(files)) for sentence, files in found.items() if sentence not in functions]


def _of_python(module: ast.Module) -> Iterator[tuple[str, str]]:
    names = {
        name: value for node in ast.walk(module) if isinstance(node, ast.Assign) for name, value in _assigned(node)
    }
    prose = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}  # docstrings
    parts = {id(part) for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    passed_on = next((_text(call.args[1], names) for call in ast.walk(module) if _passes_on(call)), "")
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _name(node.func) in _CALLS:
            texts = [_text(given, names) for given in _unpacked(node.args, names)]
            if re.search(r"\w{3}", texts[0] if texts else ""):  # else it passes on what another one refuses
                yield texts[0].removesuffix(", which"), "; ".join(texts[1:]) or passed_on
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in prose | parts:
            yield from _sentence(_text(node, names))


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.AST]]:
    for target in node.targets:
        match target, node.value:
            case ast.Name(id=name), value:
                yield name, value
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                yield from ((_name(one), value) for one, value in zip(targets, values, strict=False))


def _unpacked(arguments: list[ast.expr], names: dict[str, Any]) -> list[ast.expr]:
    match arguments:
        case [ast.Starred(value=ast.Name(id=name))] if isinstance(names.get(name), ast.Tuple):
            return names[name].elts  # type: ignore[no-any-return]
    return arguments


def _passes_on(node: ast.AST) -> TypeGuard[ast.Call]:
    """Tell whether the call refuses a subject that its function was given, with an alternative of its own."""
    return isinstance(node, ast.Call) and _name(node.func) == "refusal" and ast.unparse(node.args[0]) == "subject"


def _of_cpp(text: str) -> Iterator[tuple[str, str]]:
    code = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    for joined in _JOINED.finditer(code):
        yield from _sentence("".join(_pieces(joined[0])))


def _pieces(code: str) -> Iterator[str]:
    """Yield the literals of C++ code, and "…" for a value between two."""
    end = 0
    for literal in re.finditer(_LITERAL, code):
        if end and code[end : literal.start()].strip():
            yield "…"
        yield literal[1].replace('\\"', '"')
        end = literal.end()


def _sentence(text: str) -> Iterator[tuple[str, str]]:
    found = _SENTENCE.match(text)
    if found and re.search(r"\w{3}", found["subject"]):
        yield re.sub("^ ", "… ", found["subject"]), found["rest"].lstrip(":, ")


def _text(node: ast.AST, names: dict[str, Any]) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value, names) for value in values)
        case ast.FormattedValue(value=ast.Name() as value):
            return _text(value, names)
        case ast.Name(id=name) if name in names:
            return _text(names[name], {})
        case ast.Call(func=ast.Attribute(attr="get"), args=[_, default]):  # of a mapping, for a name it lacks
            return _text(default, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
    return "…"


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _files(files: tuple[str, ...]) -> str:
    return ", ".join(f"`{file.removeprefix('streamrace/')}`" for file in files)


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;").replace("*", "&#42;")
