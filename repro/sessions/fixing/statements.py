"""Finds the statement of a frame, and whether lines may be inserted before or after it.

A line is inserted only where it is certain to be executed as often as the statement: not after a ``return``, and not
into a line that holds two statements. The head of a loop or a ``with`` is also executed at each iteration, or at the
end: it stands for the whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from streamrace.device import overlay
from streamrace.trace import wording
from streamrace.trace.records import Frame

_LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NO_FUNCTIONS = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_SWITCHES = ("stream", "StreamContext")


@dataclass(frozen=True)
class Module:
    """A source file. ``name``: as in frames. ``ended``: its last line ends with a newline."""

    name: str
    path: Path
    lines: Sequence[str]
    tree: ast.Module
    ended: bool

    @cached_property
    def names(self) -> frozenset[str]:
        """Return every name in the module."""
        return frozenset(
            node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Name, ast.arg, ast.Attribute))
        )

    @cached_property
    def globals(self) -> frozenset[str]:
        """Return the names bound at the top level."""
        bound: set[str] = set()
        for node in _of_scope(self.tree):
            if isinstance(node, (*_Function, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                bound.update(each.asname or each.name.partition(".")[0] for each in node.names)
        return frozenset(bound)

    @cached_property
    def torch(self) -> tuple[str, int] | None:
        """Return the top level's name for torch, and the line after the imports there; None without such an import."""
        for at, node in enumerate(self.tree.body):
            for each in node.names if isinstance(node, ast.Import) else ():
                if each.name == "torch" or (each.name.startswith("torch.") and each.asname is None):
                    rest = takewhile(lambda other: isinstance(other, (ast.Import, ast.ImportFrom)), self.tree.body[at:])
                    last = [*rest][-1]
                    return each.asname or "torch", (last.end_lineno or last.lineno) + 1
        return None

    @property
    def top(self) -> int:
        """Return the line for a further import: after the first imports."""
        body = [*self.tree.body]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            del body[0]  # skip the docstring
        imports = [*takewhile(lambda node: isinstance(node, (ast.Import, ast.ImportFrom)), body)]
        if imports:
            return (imports[-1].end_lineno or imports[-1].lineno) + 1
        return body[0].lineno if body else len(self.lines) + 1


@dataclass(frozen=True)
class Switch:
    """A ``with`` that makes ``stream``, an expression of names, the current stream in its body."""

    stream: str
    block: SourceBlock


@dataclass(frozen=True)
class SourceBlock:
    """Whole lines ``first`` to ``last`` of a file. ``front``, ``behind``: a line may be inserted there."""

    first: int
    last: int
    indent: str
    front: bool
    behind: bool


@dataclass(frozen=True)
class Statement(SourceBlock):
    """The statement of a frame. ``switches``: around it in its function, innermost first. ``node``: its syntax tree.

    ``inner``: switches of the statement itself, if it is a ``with``. ``outer``: further calls lie between it and the
    work of the access.
    """

    frame: Frame
    module: Module
    node: ast.stmt
    scope: _Scope
    switches: tuple[Switch, ...]
    inner: tuple[Switch, ...] = ()
    outer: bool = False

    @property
    def other_stream(self) -> bool:
        """Return whether the work of the statement may have another current stream than the lines around it."""
        return self.outer or any(isinstance(node, (ast.With, ast.AsyncWith)) for node in _within(self.node))

    @property
    def function(self) -> str:
        return self.frame.function

    @property
    def owner(self) -> str:
        """Return the class that defines the method, as frames name it; empty if there is none."""
        owner = self.function.rpartition(".")[0]
        return "" if owner.endswith("<locals>") else owner

    def may_say(self, expression: str, origin: Statement) -> bool:
        """Check whether ``expression``, of names at ``origin``, has the same meaning next to this statement."""
        name = expression.partition(".")[0]
        if self.module.path != origin.module.path:
            return False
        if self.function == origin.function and self.scope is origin.scope:
            return name in self.parameters or name in self.assigned_before(self.first) or name in self.module.globals
        if name in ("self", "cls"):
            return bool(self.owner) and self.owner == origin.owner and name in self.parameters
        shadowed = self.local | origin.local
        return name in self.module.globals and name not in shadowed

    @cached_property
    def parameters(self) -> frozenset[str]:
        if not isinstance(self.scope, _Function):
            return frozenset()
        arguments = self.scope.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return frozenset(argument.arg for argument in (*named, *filter(None, (arguments.vararg, arguments.kwarg))))

    @cached_property
    def local(self) -> frozenset[str]:
        if not isinstance(self.scope, _Function):
            return frozenset()
        return self.parameters | self.assigned_before(1 << 30)

    def assigned_before(self, line: int) -> frozenset[str]:
        """Return the names of this function that are assigned before this line."""
        return frozenset(
            node.id
            for node in _of_scope(self.scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line
        )

    def always_before(self, other: Statement) -> bool:
        """Check whether this statement is always executed before ``other``, in the same call."""
        if self.scope is not other.scope or self.module.path != other.module.path:
            return False
        for body in _bodies(self.scope):
            if self.node in body:
                behind = body[body.index(self.node) + 1 :]
                return any(statement is other.node or other.node in ast.walk(statement) for statement in behind)
        return False

    def tensors(self) -> list[str]:
        """List expressions in the statement that may be tensors: receivers of method calls first, then arguments."""
        texts: dict[str, None] = {}
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Attribute) and _plain(call.func.value):
                texts[ast.unparse(call.func.value)] = None
        for call in calls:
            for argument in (*call.args, *(each.value for each in call.keywords)):
                inner = argument.value if isinstance(argument, ast.Starred) else argument
                if _plain(inner):
                    texts[ast.unparse(inner)] = None
        targets = self.node.targets if isinstance(self.node, ast.Assign) else [getattr(self.node, "target", None)]
        for target in targets:
            if target is not None and _plain(target):
                texts[ast.unparse(target)] = None
        modules = {
            each.asname or each.name
            for node in ast.walk(self.module.tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for each in node.names
        }
        return [text for text in texts if text.partition(".")[0] not in modules and text not in ("self", "cls")]


def read(name: str, path: Path) -> Module | None:
    """Return the parsed file; None if it cannot be read as Python."""
    try:
        lines = overlay.lines_of(path)
        ended = path.read_bytes().endswith(b"\n")
        return Module(name, path, lines, ast.parse("\n".join(lines) + "\n"), ended)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def is_own(frame: Frame) -> bool:
    """Check whether the frame is of a function with statements, not of a lambda or a comprehension."""
    return _name(frame) not in _NO_FUNCTIONS


def _name(frame: Frame) -> str:
    return frame.function.removesuffix(wording.CAPTURED).rpartition(".")[2]


def find(frame: Frame, module: Module) -> Statement | None:
    """Return the innermost statement at the frame's line; None if it cannot be determined."""
    name = _name(frame)
    if not is_own(frame) or not 1 <= frame.line <= len(module.lines):
        return None
    scope: _Scope = module.tree
    for func in ast.walk(module.tree):  # outer functions come first
        if isinstance(func, _Function) and func.lineno <= frame.line <= (func.end_lineno or func.lineno):
            scope = func
    if name != ("<module>" if scope is module.tree else getattr(scope, "name", "")):
        return None
    body: list[ast.stmt] = scope.body
    switches: list[Switch] = []
    parent: ast.AST = scope
    while True:
        node = next((stmt for stmt in body if stmt.lineno <= frame.line <= (stmt.end_lineno or stmt.lineno)), None)
        if node is None:
            return None
        inner = next((suite for suite in _own_bodies(node) if _holds(suite, frame.line)), None)
        if inner is None:
            break
        if isinstance(node, (ast.With, ast.AsyncWith)):
            block = _block(node, parent, module)
            switches = [*(Switch(stream, block) for stream in reversed(_streams(node, scope))), *switches]
        parent, body = node, inner
    if isinstance(node, (*_Function, ast.ClassDef)):
        return None
    block = _block(node, parent, module)
    behind = block.behind and not isinstance(node, ast.If)
    streams = _streams(node, scope) if isinstance(node, (ast.With, ast.AsyncWith)) else []
    own = tuple(Switch(stream, block) for stream in reversed(streams))
    span = (block.first, block.last, block.indent, block.front, behind)
    return Statement(*span, frame, module, node, scope, tuple(switches), own)


def _block(node: ast.stmt, parent: ast.AST, module: Module) -> SourceBlock:
    last = node.end_lineno or node.lineno
    head, tail = _bytes(module, node.lineno)[: node.col_offset], _bytes(module, last)[node.end_col_offset or 0 :]
    alone = not head.strip() and (not tail.strip() or tail.strip().startswith(b"#"))
    elif_ = (
        isinstance(node, ast.If) and isinstance(parent, ast.If) and _bytes(module, node.lineno).lstrip()[:4] == b"elif"
    )
    leaves = any(isinstance(child, _LEAVE) for child in _within(node))
    indent = head.decode("utf-8") if alone else ""
    return SourceBlock(node.lineno, last, indent, alone and not elif_, alone and not leaves)


def _bytes(module: Module, line: int) -> bytes:
    return module.lines[line - 1].encode("utf-8")


def _plain(node: ast.expr) -> bool:
    """Check for a name, or attributes and items (constant or named) of a name."""
    if isinstance(node, ast.Attribute):
        return _plain(node.value)
    if isinstance(node, ast.Subscript):
        return _plain(node.value) and isinstance(node.slice, (ast.Constant, ast.Name))
    return isinstance(node, ast.Name)


def _streams(node: ast.With | ast.AsyncWith, scope: _Scope) -> list[str]:
    """Return the streams that the ``with`` makes current: expressions of names, empty for other expressions."""
    expressions = []
    for item in node.items:
        switches = [item.context_expr]
        if isinstance(item.context_expr, ast.Name):  # assigned before, or a nullcontext: all values must agree
            name = item.context_expr.id
            switches = [
                stmt.value
                for stmt in _of_scope(scope)
                if isinstance(stmt, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in stmt.targets)
            ]
        streams = {stream for stream in map(_stream, switches) if stream is not None}
        if streams:
            expressions.append(streams.pop() if len(streams) == 1 else "")
    return expressions


def _stream(call: ast.expr) -> str | None:
    """Return the stream of ``torch.cuda.stream(STREAM)``; None for other expressions."""
    if not (isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords):
        return None
    func, of = call.func, call.args[0]
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name not in _SWITCHES:
        return None
    return ast.unparse(of) if isinstance(of, (ast.Name, ast.Attribute)) and _plain(of) else ""


def _own_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(node, _Function):
        return
    for field in ("body", "orelse", "finalbody"):
        if body := getattr(node, field, None):
            yield body
    for clause in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield clause.body


def _bodies(scope: _Scope) -> Iterator[list[ast.stmt]]:
    waiting = [scope.body]
    for body in waiting:
        yield body
        for statement in body:
            waiting.extend(_own_bodies(statement))  # the list grows during the loop


def _holds(body: Sequence[ast.stmt], line: int) -> bool:
    return any(statement.lineno <= line <= (statement.end_lineno or statement.lineno) for statement in body)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and its descendants, without nested functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_Function, ast.Lambda, ast.ClassDef)):
            yield from _within(child)


def _of_scope(scope: _Scope) -> Iterator[ast.AST]:
    for statement in scope.body:
        if isinstance(statement, (*_Function, ast.ClassDef)):
            yield statement
        else:
            yield from _within(statement)
