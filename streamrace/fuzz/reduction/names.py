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
    all_removed = set(removed)
    if any(alias.name == "*" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names):
        return all_removed
    unknown = {name for _, name in _uses(tree, set())} - _bound(tree, set()) - _ALWAYS
    while True:
        bound = _bound(tree, all_removed) | _ALWAYS | unknown
        users = {statement for statement, name in _uses(tree, all_removed) if name not in bound}
        if not users:
            return all_removed
        all_removed |= users


def unused_imports(tree: ast.Module) -> list[tuple[ast.Import | ast.ImportFrom, list[ast.alias]]]:
    """Return the imports with those of their names that nothing uses."""
    used = {name for _, name in _uses(tree, set())}
    unused = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias for alias in node.names if alias.name != "*" and _name(alias) not in used]
            if names:
                unused.append((node, names))
    return unused


def _name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _nodes(tree: ast.AST, removed: Collection[ast.stmt], within: ast.stmt | None) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield all remaining nodes, each with the innermost statement that contains it."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            if child in removed:
                continue
            inner: ast.stmt | None = child
        else:
            inner = within
        if inner is not None:
            yield inner, child
        yield from _nodes(child, removed, inner)


def _uses(tree: ast.Module, removed: Collection[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    for statement, node in _nodes(tree, removed, None):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield statement, node.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield statement, node.target.id


def _bound(tree: ast.Module, removed: Collection[ast.stmt]) -> set[str]:
    names: set[str] = set()
    augmented = {id(node.target) for _, node in _nodes(tree, removed, None) if isinstance(node, ast.AugAssign)}
    for _, node in _nodes(tree, removed, None):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in augmented:
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(_name(node))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names
