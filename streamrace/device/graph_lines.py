"""Finds the program's lines behind code that torch generates from a graph (``torch.fx``)."""

from __future__ import annotations

import functools
import re
import weakref
from types import CodeType
from typing import Any

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # by the file name of their code


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


def traced(path: str) -> bool:
    """Check whether ``path`` stands for generated code whose graph tells from where it was traced."""
    graph = _graphs.get(path)
    return graph is not None and any(node.stack_trace for node in graph.graph.nodes)


def source(code: CodeType, line: int) -> list[tuple[str, int, str]]:
    """Return the places in the program from which torch traced a line of generated code: file, line, function.

    The innermost is first, and marked if the graph is of a backward pass. Empty if the line has none.
    """
    graph = _graphs[code.co_filename]
    nodes = list(graph.graph.nodes)
    number = (getattr(graph, "_lineno_map", None) or {}).get(line - code.co_firstlineno)
    if number is None:
        return []
    places = [(file, int(at), name) for file, at, name in reversed(_FRAME.findall(nodes[number].stack_trace or ""))]
    if places and any(node.op == "placeholder" and node.name.startswith("tangents") for node in nodes):
        places[0] = (*places[0][:2], f"{places[0][2]} (backward)")
    return places
