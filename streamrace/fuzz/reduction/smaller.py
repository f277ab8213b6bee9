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
    gone: set[ast.stmt] = set()
    cuts: list[Cut] = []
    for statement, names in unused_imports(text.tree):
        if len(names) == len(statement.names):
            gone.add(statement)
        else:
            cuts += [_item(text, statement.names, statement.names.index(one)) for one in names]
    if cuts:
        return [text.cut(cuts)]
    return [text.without(gone)] if gone else []


def fewer_rounds(text: Text) -> list[str]:
    """Return texts with ``range(4)`` as ``range(2)`` and as ``range(1)``; the last is to be tried first."""
    found = []
    for node in ast.walk(text.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
            continue
        if len(node.args) == 1 and isinstance(count := node.args[0], ast.Constant) and type(count.value) is int:
            cut = text.begin(count), text.end(count)
            numbers = sorted({count.value // 2, 3, 2, 1} & {*range(1, count.value)}, reverse=True)
            found += [text.cut([Cut(*cut, str(number).encode())]) for number in numbers]
    return found


def fewer_items(text: Text) -> list[str]:
    """Return texts without one item of a dictionary, list or set, or one keyword argument (of ``Sequential``: any)."""
    found = []
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Dict):
            found += [text.cut([_entry(text, node, at)]) for at in range(len(node.values))]
        elif isinstance(node, (ast.List, ast.Set)) and len(node.elts) > 1:
            found += [text.cut([_item(text, node.elts, at)]) for at in range(len(node.elts))]
        elif isinstance(node, ast.Call):
            arguments: list[_Part] = sorted([*node.args, *node.keywords], key=text.begin)
            for at, one in enumerate(arguments):
                if isinstance(one, ast.keyword) or _sequence(node):
                    found.append(text.cut([_item(text, arguments, at)]))
    return found


def unwrapped(text: Text) -> list[str]:
    """Return texts in which the body of a ``with``, ``if``, ``try`` or loop of one round replaces the statement."""
    found = []
    for _, node in text.statements:
        if not isinstance(node, _WRAPPERS) or (isinstance(node, ast.For) and not _once(node)):
            continue
        bodies = [node.body] if not isinstance(node, ast.If) else [body for body in (node.body, node.orelse) if body]
        for body in bodies:
            made = _dedented(text, node, body)
            if made is not None:
                found.append(made)
    return found


def _sequence(call: ast.Call) -> bool:
    """Check for ``nn.Sequential(a, b, c)``: its arguments are a list."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "Sequential" and len(call.args) > 1


def _once(loop: ast.For) -> bool:
    """Check for a loop of one round that does not use its number."""
    call = loop.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
        return False
    if not (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 1):
        return False
    inner = [node for one in loop.body for node in ast.walk(one)]
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
    return _of_list(text, begins, [text.end(one) for one in node.values], at)


def _item(text: Text, parts: Sequence[_Part], at: int) -> Cut:
    begins = [_begin(text, one) for one in parts]
    return _of_list(text, begins, [text.end(one) for one in parts], at)


def _begin(text: Text, one: _Part) -> int:
    if isinstance(one, ast.keyword) and one.arg is None:
        return text.raw.rindex(b"**", 0, text.begin(one.value))
    return text.begin(one)


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
    here = text.raw.rfind(b"\n", 0, begin) + 1
    deeper, indent = text.raw[line:first], text.raw[here:begin]
    if deeper.strip() or indent.strip() or not deeper.startswith(indent):
        return None
    lines = text.raw[line : _with_comment(text, text.end(body[-1]))].split(b"\n")
    moved = [indent + one.removeprefix(deeper) if one.startswith(deeper) else one for one in lines]
    made = text.cut([Cut(here, _with_comment(text, end), b"\n".join(moved))])
    try:
        again = Text(made)
    except (SyntaxError, ValueError):
        return None
    there = {ast.dump(one) for _, one in again.statements}
    return made if all(ast.dump(one) in there for one in body) else None


def _with_comment(text: Text, end: int) -> int:
    """Return the end of the comment on the same line, or ``end`` without one."""
    line = text.raw.find(b"\n", end)
    line = len(text.raw) if line < 0 else line
    return line if text.raw[end:line].strip().startswith(b"#") else end
