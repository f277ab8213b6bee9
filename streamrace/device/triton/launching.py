"""Turns a launch of a Triton kernel into one work of the current stream, which the interpreter executes in its time.

Arguments are bound, and grids and hooks called, when the program launches: they are the host's. Nothing is copied, as
Triton's own launcher would: the interpreter gets the addresses of the simulated GPU's memory.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.jit import TensorWrapper, _normalize_ty
from triton.tools.tensor_descriptor import TensorDescriptor

from streamrace.device import costs, dry, tracing, work
from streamrace.device.callsites import frame_of
from streamrace.device.hardware.kernels import Signature
from streamrace.device.library import functions
from streamrace.device.refusals import refusal
from streamrace.device.triton.builder import Builder
from streamrace.device.triton.execution import GridExecution, of_kernel
from streamrace.device.triton.judging import Fault, judge_of
from streamrace.device.triton.memory import LaunchMemory, StorageSpan, storages_of
from streamrace.trace.records import KernelFault

Grid = tuple[int, int, int]


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile from tracing a function and all that it calls, such as a kernel: a launch breaks its graph."""
    set_frame_evaluation: Any = torch._C._dynamo.eval_frame.set_eval_frame

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        before = set_frame_evaluation(None)
        try:
            return function(*arguments, **options)
        finally:
            set_frame_evaluation(before)

    return call


@_untraced
def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
    """Launch a kernel (``InterpretedFunction.run``). A warm-up compiles nothing, and returns a :class:`Compiled`."""
    if warmup:
        return Compiled(kernel)
    name = kernel.fn.__name__
    subject, clusters = f"the Triton kernel '{name}'", options.get("num_ctas") or 1
    if dry.active():
        refusal(subject, "its accesses follow from values, and a dry run has none: run it without --dry")()
    if clusters > 1:
        refusal(f"{subject} in clusters of blocks (num_ctas={clusters})", "launch it with num_ctas=1")()
    options = {key: value for key, value in options.items() if key in kernel.arg_names}
    for hook in kernel.pre_run_hooks:
        hook(*arguments, **options)
    bound = inspect.getcallargs(kernel.fn, *arguments, **options)
    dimensions = _dimensions(grid, bound)
    tensors = list(_tensors(bound.values()))
    types = {key: _normalize_ty(annotation) for key, annotation in inspect.get_annotations(kernel.fn).items()}
    given = {
        key: value if types.get(key) == "constexpr" else _argument(value, types.get(key, ""))
        for key, value in bound.items()
    }
    storages = storages_of(_span(tensor) for tensor in tensors if tensor.numel())
    function = kernel.rewrite()

    @_untraced
    def effect() -> None:
        elements = [(one.start, one.end, one.element) for one in storages]
        judge = judge_of(elements, math.prod(dimensions)) if tracing.active() else None
        execution = GridExecution(name, LaunchMemory(storages), judge)
        try:
            with np.errstate(all="ignore"):
                _execute(function, given, dimensions, execution)
        except Exception as error:
            functions().failed(_sentence(execution, error).encode())
        finally:
            for fault in judge.faults() if judge is not None else ():
                _note(fault, dimensions)
            work.report(execution.memory.reads(), execution.memory.writes())

    work.launch_late(
        f"triton::{name}",
        stream=torch.cuda.current_stream().stream_id,
        duration=_duration(name, tensors),
        bounds=tensors,
        effect=effect,
    )
    return None


def _execute(function: Callable[..., Any], given: dict[str, Any], dimensions: Grid, execution: GridExecution) -> None:
    builder: Builder = interpreter.interpreter_builder
    builder.execution = execution
    builder.set_grid_dim(*dimensions)
    for number, program in enumerate(np.ndindex(dimensions)):
        builder.set_grid_idx(*program)
        execution.begin((program[0], program[1], program[2]), number)
        function(**given)


def _note(fault: Fault, dimensions: Grid) -> None:
    """Write a fault of the launch that runs into the trace."""
    first = frame_of(*fault.first) if fault.first[0] else fault.first
    programs = [int(index) for number in fault.programs for index in np.unravel_index(number, dimensions)]
    op = functions().reporting()
    tracing.note(KernelFault(op, fault.kind, fault.verb, first, frame_of(*fault.second), tuple(programs)))


def _dimensions(grid: Any, bound: dict[str, Any]) -> Grid:
    if callable(grid):
        grid = grid(bound)
    sizes = [int(size) for size in (grid if isinstance(grid, tuple | list) else (grid,))]
    x, y, z = (*sizes, 1, 1)[:3] if len(sizes) < 3 else sizes
    return x, y, z


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, TensorWrapper | TensorDescriptor):
            yield from _tensors((value.base,))


def _argument(value: Any, annotation: str) -> Any:
    """Return an argument as the interpreter takes it. Raise ValueError for a tensor on the host, as Triton does."""
    if annotation == "constexpr":
        return value
    if isinstance(value, tuple):
        return interpreter._tuple_create(value, [_argument(one, "") for one in value])
    if isinstance(value, float) or (isinstance(value, int) and annotation in _FLOATING):
        kind = _FLOATING.get(annotation, tl.float32)  # compiled, a float without a type is a float32
        number = interpreter.TensorHandle(np.array([value], np.float64), tl.float64)
        return tl.tensor(interpreter.interpreter_builder.cast_impl(number, kind), kind)
    return interpreter._implicit_cvt(_addressed(value))


_FLOATING = {"fp64": tl.float64, "fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}


def _addressed(value: Any) -> Any:
    """Return the same tensor, or what holds it, with the address of its memory."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cuda":
            if value.is_pinned():
                refusal("pinned memory of the host as an argument of a Triton kernel", "copy it to the device")()
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        return work.alias(value.detach())
    if isinstance(value, TensorWrapper):
        return TensorWrapper(_addressed(value.base), value.dtype)
    if isinstance(value, TensorDescriptor):
        return dataclasses.replace(value, base=_addressed(value.base))
    return value


def _span(tensor: torch.Tensor) -> StorageSpan:
    """Return the memory of the tensor's whole storage, of which a kernel may access every part."""
    before = int(tensor.storage_offset()) * tensor.element_size()
    start = work.alias(tensor.detach()).data_ptr() - before
    block, lo, _ = work.place(tensor)
    return StorageSpan(start, start + int(tensor.untyped_storage().nbytes()), block, lo - before, tensor.element_size())


def _duration(name: str, tensors: Sequence[torch.Tensor]) -> int:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    types = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return round(costs.current().kernel(Signature(f"triton::{name}", nbytes, shapes, types, 0)))


def _sentence(execution: GridExecution, error: BaseException) -> str:
    """Return what failed, and in which line of the kernel. Triton wraps an error in each function that it passes."""
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    if str(error).startswith("streamrace: "):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if of_kernel(frame.filename)]
    line = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"triton::{execution.name}{line}, program {execution.program}: {type(error).__name__}: {error}"


class Compiled:
    """Stands for a compiled kernel, of which programs ask how much of a multiprocessor it takes."""

    n_regs, n_spills, n_max_threads = 32, 0, 1024

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.metadata = SimpleNamespace(shared=0, num_warps=4, num_stages=1, num_ctas=1, name=kernel.fn.__name__)

    def _init_handles(self) -> None:
        """Load nothing: no code was made."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *arguments, **options: run(self._kernel, *arguments, grid=grid, **options)
