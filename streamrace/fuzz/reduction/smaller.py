"""Proposes smaller texts of a program other than by removing whole statements: the candidates for a trial."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from streamrace.fuzz.reduction.names import unused_imports
from streamrace.fuzz.reduction.text import Cut, Text

_Part = ast.expr | ast.keyword | ast.alias
_WRAPPERS = (ast.With, ast.AsyncWith, ast.If, ast.For, ast.Try)


def without_unused_imports(text: Text) -> list[str]:
    """Return at most one text: without the imports, or names in imports, that nothing uses."""
    unused: set[ast.stmt] = set()
    cuts: list[Cut] = []
    for statement, names in unused_imports(text.tree):
        if len(names) == len(statement.names):
            unused.add(statement)
        else:
            cuts += [_item(text, statement.names, statement.names.index(alias)) for alias in names]
    if cuts:
        return [text.cut(cuts)]
    return [text.without(unused)] if unused else []


def fewer_rounds(text: Text) -> list[str]:
    """Return texts with ``range(4)`` as ``range(2)`` and as ``range(1)``; the last is to be tried first."""
    texts = []
    for node in ast.walk(text.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
            continue
        if len(node.args) == 1 and isinstance(count := node.args[0], ast.Constant) and type(count.value) is int:
            cut = text.begin(count), text.end(count)
            numbers = sorted({count.value // 2, 3, 2, 1} & {*range(1, count.value)}, reverse=True)
            texts += [text.cut([Cut(*cut, str(number).encode())]) for number in numbers]
    return texts


def fewer_items(text: Text) -> list[str]:
    """Return texts without one item of a dictionary, list or set, or one keyword argument (of ``Sequential``: any)."""
    texts = []
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Dict):
            texts += [text.cut([_entry(text, node, at)]) for at in range(len(node.values))]
        elif isinstance(node, (ast.List, ast.Set)) and len(node.elts) > 1:
            texts += [text.cut([_item(text, node.elts, at)]) for at in range(len(node.elts))]
        elif isinstance(node, ast.Call):
            arguments: list[_Part] = sorted([*node.args, *node.keywords], key=text.begin)
            for at, argument in enumerate(arguments):
                if isinstance(argument, ast.keyword) or _sequence(node):
                    texts.append(text.cut([_item(text, arguments, at)]))
    return texts


def unwrapped(text: Text) -> list[str]:
    """Return texts in which the body of a ``with``, ``if``, ``try`` or loop of one round replaces the statement."""
    texts = []
    for _, node in text.statements:
        if not isinstance(node, _WRAPPERS) or (isinstance(node, ast.For) and not _single_round(node)):
            continue
        bodies = [node.body] if not isinstance(node, ast.If) else [body for body in (node.body, node.orelse) if body]
        for body in bodies:
            shorter = _dedented(text, node, body)
            if shorter is not None:
                texts.append(shorter)
    return texts


def _sequence(call: ast.Call) -> bool:
    """Check for ``nn.Sequential(a, b, c)``: its arguments are a list."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "Sequential" and len(call.args) > 1


def _single_round(loop: ast.For) -> bool:
    """Check for a loop of one round that does not use its number."""
    call = loop.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
        return False
    if not (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 1):
        return False
    inner = [node for statement in loop.body for node in ast.walk(statement)]
    names = {loop.target.id} if isinstance(loop.target, ast.Name) else set()
    if any(isinstance(node, (ast.Break, ast.Continue)) for node in inner):
        return False
    return bool(names) and not any(isinstance(node, ast.Name) and node.id in names for node in inner)


def _entry(text: Text, node: ast.Dict, at: int) -> Cut:
    """Cut a key with its value."""
    begins = [
        text.raw.rindex(b"**", 0, text.begin(value)) if key is None else text.begin(key)
        for key, value in zip(node.keys, node.values, strict=True)
    ]
    return _of_list(text, begins, [text.end(value) for value in node.values], at)


def _item(text: Text, parts: Sequence[_Part], at: int) -> Cut:
    begins = [_begin(text, part) for part in parts]
    return _of_list(text, begins, [text.end(part) for part in parts], at)


def _begin(text: Text, part: _Part) -> int:
    if isinstance(part, ast.keyword) and part.arg is None:
        return text.raw.rindex(b"**", 0, text.begin(part.value))
    return text.begin(part)


def _of_list(text: Text, begins: Sequence[int], ends: Sequence[int], at: int) -> Cut:
    """Cut one of several comma-separated parts, with its comma."""
    if at + 1 < len(begins):
        return Cut(begins[at], begins[at + 1])
    if at:
        return Cut(ends[at - 1], ends[at])
    comma = text.raw[ends[0] :].lstrip()[:1] == b","
    return Cut(begins[0], text.raw.index(b",", ends[0]) + 1 if comma else ends[0])


def _dedented(text: Text, outer: ast.stmt, body: Sequence[ast.stmt]) -> str | None:
    """Return the text with the body moved out; None if it shares a line, or moving it changes its meaning."""
    begin, end = text.begin(outer), text.end(outer)
    first = text.begin(body[0])
    line = text.raw.rfind(b"\n", 0, first) + 1
    line_begin = text.raw.rfind(b"\n", 0, begin) + 1
    deeper, indent = text.raw[line:first], text.raw[line_begin:begin]
    if deeper.strip() or indent.strip() or not deeper.startswith(indent):
        return None
    lines = text.raw[line : _with_comment(text, text.end(body[-1]))].split(b"\n")
    moved = [indent + line.removeprefix(deeper) if line.startswith(deeper) else line for line in lines]
    shorter = text.cut([Cut(line_begin, _with_comment(text, end), b"\n".join(moved))])
    try:
        again = Text(shorter)
    except (SyntaxError, ValueError):
        return None
    dumps = {ast.dump(statement) for _, statement in again.statements}
    return shorter if all(ast.dump(statement) in dumps for statement in body) else None


def _with_comment(text: Text, end: int) -> int:
    """Return the end of the comment on the same line, or ``end`` without one."""
    line = text.raw.find(b"\n", end)
    line = len(text.raw) if line < 0 else line
    return line if text.raw[end:line].strip().startswith(b"#") else end
