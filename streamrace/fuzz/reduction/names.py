"""Finds names of a program that are unbound once a part of it is removed, and the statements to remove with them.

Works on the text alone, without scopes: it only chooses candidates for a trial, and the trial decides.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator

_ALWAYS = frozenset(dir(builtins)) | {"__file__", "__builtins__", "__annotations__"}


def with_users(tree: ast.Module, removed: Collection[ast.stmt]) -> set[ast.stmt]:
    """Return ``removed`` and all statements that use names which only these bind."""
    gone = set(removed)
    if any(alias.name == "*" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names):
        return gone
    unknown = {name for _, name in _uses(tree, set())} - _bound(tree, set()) - _ALWAYS
    while True:
        bound = _bound(tree, gone) | _ALWAYS | unknown
        users = {statement for statement, name in _uses(tree, gone) if name not in bound}
        if not users:
            return gone
        gone |= users


def unused_imports(tree: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, list[ast.alias]]]:
    """Return the imports with those of their names that nothing uses."""
    used = {name for _, name in _uses(tree, set())}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [one for one in node.names if one.name != "*" and _name(one) not in used]
            if names:
                found.append((node, names))
    return found


def _name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _nodes(tree: ast.AST, gone: Collection[ast.stmt], within: ast.stmt | None) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield all remaining nodes, each with the innermost statement that contains it."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            if child in gone:
                continue
            inner: ast.stmt | None = child
        else:
            inner = within
        if inner is not None:
            yield inner, child
        yield from _nodes(child, gone, inner)


def _uses(tree: ast.Module, gone: Collection[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    for statement, node in _nodes(tree, gone, None):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield statement, node.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield statement, node.target.id


def _bound(tree: ast.Module, gone: Collection[ast.stmt]) -> set[str]:
    found: set[str] = set()
    augmented = {id(one.target) for _, one in _nodes(tree, gone, None) if isinstance(one, ast.AugAssign)}
    for _, node in _nodes(tree, gone, None):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in augmented:
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(_name(node))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found
