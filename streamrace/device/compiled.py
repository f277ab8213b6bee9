"""Runs what a program compiles with ``torch.compile``: as it is written, or as the graphs that AOTAutograd makes of it.

Inductor's kernels would be for a GPU that does not exist. Eagerly, which is the default, the program's own operators
run one by one, and the program gets one warning. With ``aot_eager`` torch traces the program, AOTAutograd makes graphs
of its forward and backward pass, with what these recompute and with functional collectives and their waits, and
the operators of these graphs run one by one. A backend that is a function of the program's own is then called as it is.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from streamrace import checkout
from streamrace.device import graph_lines
from streamrace.device.options import AOT_EAGER, EAGER

_OWN = "own"  # a backend that is a function of the program's own
_CALLED = "called"  # torch.compile was, with aot_eager
_SENTENCES = {
    EAGER: "What torch.compile compiles ran eagerly, operator by operator: this says nothing of what a compiler moves, "
    "recomputes or fuses, or of CUDA graphs. --compile aot_eager runs the graphs that AOTAutograd makes of it",
    AOT_EAGER: "What torch.compile compiles ran as graphs of AOTAutograd, operator by operator (--compile aot_eager): "
    "this says nothing of what inductor moves or fuses, or of CUDA graphs",
    _OWN: "Graphs of torch.compile ran as the program's own backend returned them (--compile aot_eager)",
    _CALLED: "torch.compile made no graph, so what it compiles ran eagerly, operator by operator (--compile aot_eager)",
}


@dataclass
class _Setting:
    """The settings of this process and its forks. ``file``: gets the ways in which compiled functions ran."""

    file: Path | None = None
    backend: str = EAGER


_setting = _Setting()


def use(backend: str) -> None:
    """Set the way in which compiled functions run, in this process and in its forks."""
    _setting.backend = backend


def note_in(file: Path) -> None:
    """Set the file that gets the ways in which compiled functions ran, in this process and in its forks."""
    _setting.file = file


def sentence(file: Path) -> str:
    """Return what the ways in ``file`` mean for a verdict, without a full stop; empty if nothing was compiled."""
    with suppress(OSError):
        ways = set(file.read_text(encoding="utf-8", errors="replace").split())
        return ". ".join(text for way, text in _SENTENCES.items() if way in ways and (way != _CALLED or len(ways) == 1))
    return ""


def install() -> None:
    """Replace ``torch.compile``."""
    import torch

    plain: Any = torch.compile

    @functools.wraps(plain)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda module: compile(module, **options)
        eagerly = _setting.backend == EAGER
        module = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
        if isinstance(module, torch.nn.Module) or not _called_by_library():
            _note(EAGER if eagerly else _CALLED)
        if not eagerly:
            return plain(model, **_graphs_of(options))
        _warn()
        if module is not model:
            return model
        torch.compiler.set_stance("force_eager")
        options = {name: value for name, value in options.items() if name not in ("mode", "options")}
        return plain(model, **options | {"backend": "eager"})  # a module around the other, as its state's names show

    torch_: Any = torch
    torch_.compile = compile


def _graphs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of torch.compile with a backend whose graphs can run here, without options of other backends."""
    if callable(options.get("backend")):
        _note(_OWN)
        return options
    return {name: value for name, value in options.items() if name not in ("mode", "options")} | {"backend": _aot_eager}


def _aot_eager(graph: Any, inputs: Sequence[Any], **_: Any) -> Any:
    from torch._dynamo.backends.registry import lookup_backend

    _note(AOT_EAGER)
    backend: Any = lookup_backend(AOT_EAGER)
    return backend(graph, inputs)


def _called_by_library() -> bool:
    """Check whether an installed library compiles, such as DeepSpeed functions that nobody may call."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return checkout.installed(frame.f_code.co_filename)


def _note(way: str) -> None:
    if _setting.file is not None:
        with suppress(OSError), _setting.file.open("a", encoding="utf-8") as file:
            file.write(f"{way}\n")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "streamrace: torch.compile runs eagerly here, operator by operator: there is no GPU to make kernels for. "
        "What is judged is the program without fusion and without CUDA graphs.",
        stacklevel=3,
    )


# -- in modules of torch that are imported later, see streamrace.device.imports ----------------------------------


def compiler(module: ModuleType) -> None:
    """Change ``torch._dynamo.eval_frame``: what is passed to inductor there runs as above.

    The hook that waits for the first call of a module ends before torch traces it, as it would break the graph.
    """
    import torch

    frames: Any = module
    plain = frames.optimize

    @functools.wraps(plain)
    def optimize(backend: Any = "inductor", *arguments: Any, **how: Any) -> Any:
        if backend == "inductor" and _setting.backend == AOT_EAGER:
            backend = _aot_eager
        elif backend == "inductor":
            _warn()
            how["disable"] = True
        return plain(backend, *arguments, **how)

    frames.optimize = optimize
    graph_lines.remember()
    for place, name in ((frames, "_callback_from_stance"), (torch.nn.modules.module, "_has_any_global_hook")):
        if hasattr(place, name):
            setattr(place, name, _in_first_pass(getattr(place, name)))


def _in_first_pass(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that torch calls as a compiled function or module is called."""
    from streamrace.device import first_pass

    @functools.wraps(plain)
    def call(*callback: Any) -> Any:
        if not any(one is None or one is False for one in callback):  # else torch traces nothing, as in a disabled part
            first_pass.begin()
        return plain(*callback)

    return call


def trace_rules(module: ModuleType) -> None:
    """Keep ``torch._dynamo.trace_rules`` from tracing the device's replacements of torch's C functions."""
    rules: Any = module
    rules.add("streamrace.device")
