"""Finds the program's lines behind code that torch generates: from a graph (``torch.fx``), or by inductor."""

from __future__ import annotations

import functools
import re
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # by the file name of their code
_names: dict[str, str] = {}


@dataclass(frozen=True)
class _Module:
    """A module that inductor generated: the first line of each part, and torch's text of its node's stack."""

    lines: Sequence[int]
    stacks: Sequence[str]
    backward: bool

    def stack(self, line: int) -> str:
        part = bisect_right(self.lines, line) - 1
        return self.stacks[part] if part >= 0 else ""


_modules: dict[str, _Module] = {}


def remember() -> None:
    """Remember each graph of which torch generates code from now on."""
    from torch.fx.graph_module import GraphModule

    graphs: Any = GraphModule
    plain = graphs.recompile

    @functools.wraps(plain)
    def recompile(self: Any) -> Any:
        python_code = plain(self)
        _graphs[type(self).forward.__code__.co_filename] = self
        return python_code

    graphs.recompile = recompile


def remember_module(path: str, parts: Sequence[tuple[int, str | None]], *, backward: bool) -> None:
    """Remember a module that inductor generated: the first line of each part with the stack of its node."""
    _modules[path] = _Module([line for line, _ in parts], [stack or "" for _, stack in parts], backward)


def name(path: str, stable: str) -> None:
    """Give a file of generated code a name that is the same in each run."""
    _names[path] = stable


def named(path: str) -> str:
    """Return the name of a file of generated code; empty for other files."""
    return _names.get(path, "")


def traced(path: str) -> bool:
    """Check whether ``path`` stands for generated code that tells from where it was traced."""
    if path in _modules:
        return True
    graph = _graphs.get(path)
    return graph is not None and any(node.stack_trace for node in graph.graph.nodes)


def source(code: CodeType, line: int) -> list[tuple[str, int, str]]:
    """Return the places in the program from which torch traced a line of generated code: file, line, function.

    The innermost is first, and marked if the graph is of a backward pass. Empty if the line has none.
    """
    module = _modules.get(code.co_filename)
    if module is not None:
        stack, backward = module.stack(line), module.backward
    else:
        graph = _graphs[code.co_filename]
        nodes = list(graph.graph.nodes)
        number = (getattr(graph, "_lineno_map", None) or {}).get(line - code.co_firstlineno)
        stack = nodes[number].stack_trace or "" if number is not None else ""
        backward = any(node.op == "placeholder" and node.name.startswith("tangents") for node in nodes)
    places = [(file, int(at), function) for file, at, function in reversed(_FRAME.findall(stack))]
    if places and backward:
        places[0] = (*places[0][:2], f"{places[0][2]} (backward)")
    return places
