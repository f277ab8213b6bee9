"""Runs what a program compiles with ``torch.compile``: as it is written, as graphs, or as the code of inductor.

Eagerly, which is the default and the fastest, the program's own operators run one by one, and the program gets one
warning. With ``aot_eager`` torch traces the program, AOTAutograd makes graphs of its forward and backward pass, with
what these recompute and with functional collectives and their waits, and the operators of these graphs run one by one;
with ``aot_eager_decomp_partition`` those into which inductor decomposes them. With ``inductor`` these graphs become the
code that would run on a GPU (:mod:`streamrace.device.inductor`). Except eagerly, another backend that the program names
or passes as a function is then called as it is.
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
from streamrace.device.options import AOT_DECOMPOSED, AOT_EAGER, EAGER, INDUCTOR
from streamrace.device.scripts import WrongUse
from streamrace.device.triton import presence

_FLEXIBLE = "_flex_attention_hop_wrapper"  # of torch/nn/attention/flex_attention.py
_OWN = "own"  # a backend of the program's own
_CALLED = "called"  # torch.compile was, and not eagerly
_SENTENCES = {
    EAGER: "What torch.compile compiles ran eagerly, operator by operator: this says nothing of what a compiler moves, "
    f"recomputes or fuses, or of CUDA graphs. --compile {AOT_EAGER} runs the graphs that AOTAutograd makes of it, "
    f"--compile {INDUCTOR} what inductor generates from them",
    AOT_EAGER: "What torch.compile compiles ran as graphs of AOTAutograd, operator by operator (--compile "
    f"{AOT_EAGER}): this says nothing of what inductor moves or fuses, or of CUDA graphs",
    AOT_DECOMPOSED: "What torch.compile compiles ran as graphs of AOTAutograd, decomposed and operator by operator "
    f"(--compile {AOT_DECOMPOSED}): this says nothing of what inductor moves or fuses, or of CUDA graphs",
    INDUCTOR: "What torch.compile compiles ran as the code that inductor generates (--compile "
    f"{INDUCTOR}), each kernel in its first configuration. Its values differ from those without a compiler by rounding",
    _OWN: "Graphs of torch.compile ran as the program's own backend returned them (--compile)",
    _CALLED: "torch.compile made no graph, so what it compiles ran eagerly, operator by operator",
}


@dataclass
class _Setting:
    """The settings of this process and its forks. ``file``: gets the ways in which compiled functions ran."""

    file: Path | None = None
    backend: str = EAGER


_setting = _Setting()


def use(backend: str) -> None:
    """Set the way in which compiled functions run, in this process and in its forks. Raise :class:`WrongUse`."""
    if backend == INDUCTOR and not presence.usable():
        raise WrongUse(f"--compile {INDUCTOR} generates Triton kernels: {presence.advice()}, or say {AOT_EAGER}")
    if backend == INDUCTOR:
        presence.interpret()  # inductor asks for it each time it generates one
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
            note(EAGER if eagerly else _CALLED)
        if not eagerly:
            return plain(model, **_graphs_of(options))
        if getattr(model, "__name__", "") == _FLEXIBLE:
            return _traced(plain(model, **options))
        _warn()
        if module is not model:
            return model
        torch.compiler.set_stance("force_eager")
        options = {name: value for name, value in options.items() if name not in ("mode", "options")}
        return plain(model, **options | {"backend": "eager"})  # a module around the other, as its state's names show

    torch_: Any = torch
    torch_.compile = compile
    torch_._C._conv_determine_backend_memory_format = functools.partial(
        _layout_of_convolution, torch_._C._conv_determine_backend_memory_format
    )


def _layout_of_convolution(plain: Callable[..., Any], image: Any, weight: Any, backend: Any) -> Any:
    """Return the layout that a traced convolution has: on CUDA as cuDNN has it, which torch lacks in a CPU build.

    Source: cudnn_conv_suggest_memory_format (aten/src/ATen/native/ConvUtils.h).
    """
    import torch
    from torch._prims_common import suggest_memory_format

    if image.device.type != "cuda":
        return plain(image, weight, backend)
    last = torch.channels_last if weight.dim() < 5 else torch.channels_last_3d
    return last if last in map(suggest_memory_format, (image, weight)) else torch.contiguous_format


def _traced(model: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what torch itself has to trace, so that gradients of tensors in a function's closure are not lost."""
    import torch

    def call(*arguments: Any, **options: Any) -> Any:
        with torch.compiler.set_stance("default"):
            return model(*arguments, **options)

    return call


def _graphs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of torch.compile with a backend whose graphs can run here, without options of other backends."""
    backend = options.get("backend", INDUCTOR)
    if callable(backend) or (_setting.backend == INDUCTOR != backend):
        note(_OWN)
        return options
    if _setting.backend == INDUCTOR:
        return options
    return {name: value for name, value in options.items() if name not in ("mode", "options")} | {"backend": _graphs}


def _graphs(graph: Any, inputs: Sequence[Any], **_: Any) -> Any:
    from torch._dynamo.backends.registry import lookup_backend

    note(_setting.backend)
    backend: Any = lookup_backend(_setting.backend)
    return backend(graph, inputs)


def _called_by_library() -> bool:
    """Check whether an installed library compiles, such as DeepSpeed functions that nobody may call."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return checkout.installed(frame.f_code.co_filename)


def note(way: str) -> None:
    """Note a way in which a compiled function runs."""
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
        if backend == INDUCTOR and _setting.backend == EAGER:
            _warn()
            how["disable"] = True
        elif backend == INDUCTOR != _setting.backend:
            backend = _graphs
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


def settings(module: ModuleType) -> None:
    """Keep ``torch._dynamo.config`` from tracing by what earlier runs saw (its profile of dynamic shapes)."""
    set_options(module, ("automatic_dynamic_local_pgo", "automatic_dynamic_remote_pgo"), False)


def has_triton(module: ModuleType) -> None:
    """Report in ``torch.utils._triton`` that torch creates no kernels with Triton, except by inductor if asked to."""
    for name in ("has_triton_package", "has_triton", "has_triton_tma", "has_triton_tma_device"):
        if hasattr(module, name):
            setattr(module, name, functools.partial(_has_triton, getattr(module, name)))


def _has_triton(plain: Callable[[], bool]) -> bool:
    return _setting.backend == INDUCTOR and plain()


def set_options(module: ModuleType, names: Sequence[str], value: Any) -> None:
    """Set those of the options that this release of torch has."""
    for name in names:
        if hasattr(module, name):
            setattr(module, name, value)


def trace_rules(module: ModuleType) -> None:
    """Keep ``torch._dynamo.trace_rules`` from tracing the device's replacements of torch's C functions."""
    rules: Any = module
    rules.add("streamrace.device")
