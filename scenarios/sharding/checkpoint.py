"""Saves checkpoints of the sharded engine, from which another strategy, group size or number of ranks can resume.

    save(engine, folder, step)       between steps, on all ranks
    step = load(engine, folder)      on all ranks, before training

A checkpoint has the fp32 masters, the optimizer's tensors, and the values of frozen parameters. Each is written once,
by the first rank that has it; a rank's parameters are computed from the masters again.
:mod:`streamrace.scenarios.sharding.checkpoint_index` explains why the files do not depend on their writers.

A checkpoint appears as a whole, by the renaming of a folder: a crash during writing leaves earlier checkpoints intact.
A failure on one rank fails on all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from streamrace.scenarios.sharding.checkpoint_index import INDEX, File, Form, Index, read, refuse_damaged, sha256
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.strategy import Level, ShardingError
from streamrace.scenarios.sharding.units import Piece

Result = TypeVar("Result")
_VALUE = "value"  # of a parameter: its master, or the frozen values
_Bits = NDArray[np.uint8]


def save(engine: ShardedEngine, folder: Path, step: int) -> None:
    """Write the checkpoint of ``step`` to ``folder``, which is new or empty, and visible to all ranks.

    Gradients are not saved, so ``step`` is over. Nor are random states, which fit no other number of ranks.

    Raises :class:`ShardingError` on all ranks when one cannot write, when ``folder`` is taken, and for a model or an
    optimizer with state that belongs to no element of a parameter.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    _agreed(engine, f"write the checkpoint {folder}", lambda: _write_part(engine, folder, partial))
    _agreed(engine, f"finish the checkpoint {folder}", lambda: _finish(engine, folder, partial, step))


def load(engine: ShardedEngine, folder: Path) -> int:
    """Load the checkpoint in ``folder``; return its step. This rank reads only the parts that it needs.

    Raises :class:`ShardingError` on all ranks when the engine has trained already, and when ``folder`` is no
    checkpoint, of another model or optimizer, of a newer version, or damaged.
    """
    index = _agreed(engine, f"check the checkpoint {folder}", lambda: _checked(engine, folder))
    _agreed(engine, f"read the checkpoint {folder}", lambda: _fill(engine, folder, index))
    engine.steps = index.step
    return index.step


# -- writing -------------------------------------------------------------------------------------------------


def _write_part(engine: ShardedEngine, folder: Path, partial: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        content = "a checkpoint already" if (folder / INDEX).is_file() else "something else"
        raise ShardingError(f"{folder} holds {content}: save to a folder of its own")
    _refuse_what_would_be_lost(engine)
    partial.mkdir(parents=True, exist_ok=True)
    path = partial / f"rank-{engine.topology.rank}.safetensors"
    for leftover in (path, _note(path)):  # by an interrupted save
        leftover.unlink(missing_ok=True)
    if not _writes(engine):
        return
    tensors, holds = _part(engine)
    if holds:  # small pieces may leave a rank nothing but padding
        save_file(tensors, path)
        path.chmod(0o666 & partial.stat().st_mode)  # as any file here: safetensors makes it readable by its owner only
        _sync(path)
        file = File(size=path.stat().st_size, sha256=sha256(path), holds=holds)
        _note(path).write_text(file.model_dump_json(), encoding="utf-8")


def _finish(engine: ShardedEngine, folder: Path, partial: Path, step: int) -> None:
    """Collect, on the first rank, the others' notes of their files. Its index makes the folder a checkpoint."""
    if engine.topology.rank != 0:
        return
    elements, scalars = _kinds(engine)
    paths = [partial / f"rank-{rank}.safetensors" for rank in range(engine.topology.ranks)]
    index = Index(
        step=step,
        optimizer=type(engine.optimizer).__name__,
        elements=elements,
        scalars=scalars,
        parameters=_forms(engine),
        files={
            path.name: File.model_validate_json(_note(path).read_bytes()) for path in paths if _note(path).is_file()
        },
    )
    for leftover in partial.iterdir():
        if leftover.name not in index.files:
            leftover.unlink()
    (partial / INDEX).write_text(index.text(), encoding="utf-8")
    _sync(partial / INDEX)
    _sync(partial)
    partial.rename(folder)
    _sync(folder.parent)


def _writes(engine: ShardedEngine) -> bool:
    """Check whether this is the first rank that has its part of the optimizer state."""
    layout = engine.layout
    return (layout.where == layout.number == 0, layout.where == 0, True)[engine.strategy.state]


def _part(engine: ShardedEngine) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
    """Return the data that this rank writes: host tensors by their names in the file, and intervals by parameter."""
    tensors: dict[str, Tensor] = {}
    holds: dict[str, tuple[int, int]] = {}
    names = _names(engine)
    for piece in engine.pieces:
        start, end = engine.layout.interval(engine.strategy.state, piece.length)
        runs = list(_runs(piece, names, start, end))
        holds.update({run.name: (run.start, run.end) for run in runs})
        for kind, tensor in _kept(engine, piece, start, end) if runs else ():
            bits, size = _bits(tensor), tensor.dtype.itemsize
            for run in runs:
                cut = bits[run.at * size : run.behind * size] if tensor.dim() else bits
                tensors[_key(kind, run.name)] = _of_host(cut, tensor.dtype, scalar=not tensor.dim())
    return tensors, holds


def _kept(engine: ShardedEngine, piece: Piece, start: int, end: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors to save of a piece's elements from ``start`` to ``end``."""
    if piece.master is None:
        begin, _ = engine.layout.interval(engine.strategy.parameters, piece.length)
        yield _VALUE, piece.shard[start - begin : end - begin]
        return
    yield _VALUE, piece.master.detach()
    for kind, value in _state(engine, piece).items():
        yield f"optimizer.{kind}", value


def _state(engine: ShardedEngine, piece: Piece) -> dict[str, Any]:
    """Return the optimizer's state for a piece, without None, which is SGD's momentum before the first step."""
    state = engine.optimizer.state.get(piece.master, {}) if piece.master is not None else {}
    return {kind: value for kind, value in state.items() if value is not None}


def _kinds(engine: ShardedEngine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the optimizer's tensors: those of the size of their parameters, and numbers."""
    kinds = {kind: bool(value.dim()) for piece in engine.pieces for kind, value in _state(engine, piece).items()}
    return tuple(kind for kind in kinds if kinds[kind]), tuple(kind for kind in kinds if not kinds[kind])


def _refuse_what_would_be_lost(engine: ShardedEngine) -> None:
    buffers = dict(engine.model.named_buffers())
    for name in engine.model.state_dict():
        if name in buffers:
            raise ShardingError(f"the model's buffer {name} would be lost: only parameters are saved")
    for piece in engine.pieces:
        for kind, value in _state(engine, piece).items():
            assert piece.master is not None
            if not isinstance(value, Tensor) or value.shape not in (piece.master.shape, torch.Size()):
                raise ShardingError(
                    f"the optimizer's state '{kind}' would be lost: it is neither a number nor of its parameters' size"
                )


def _bits(tensor: Tensor) -> _Bits:
    """Return the tensor's bytes, for which the host waits: numpy has no bf16."""
    return tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy()


def _of_host(bits: _Bits, dtype: torch.dtype, *, scalar: bool) -> Tensor:
    """Create a tensor in the host's memory, unseen by any device; with its own storage, as safetensors requires."""
    flat = torch.from_numpy(bits.copy()).view(dtype)
    return flat.view(()) if scalar else flat


def _note(path: Path) -> Path:
    """Return the path of a rank's note to the first rank about its file."""
    return path.with_suffix(".json")


def _sync(path: Path) -> None:
    """Flush to the disk, should the machine fail."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -------------------------------------------------------------------------------------------------


def _checked(engine: ShardedEngine, folder: Path) -> Index:
    """Return the checked index. Each rank checks some of the files, so that all of them are read once."""
    if engine.steps:
        raise ShardingError(f"a checkpoint is loaded before training, and {engine.steps} steps are done: begin anew")
    index = read(folder)
    index.refuse_other(folder, _forms(engine), type(engine.optimizer).__name__)
    for name in list(index.files)[engine.topology.rank :: engine.topology.ranks]:
        refuse_damaged(folder, name, index.files[name])
    return index


def _fill(engine: ShardedEngine, folder: Path, index: Index) -> None:
    """Fill shards, masters and optimizer state on the current lane; the first gather waits for the piece's mark."""
    optimizer = engine.optimizer
    places = [master for group in optimizer.param_groups for master in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    with _Reader(engine, folder, index) as reader:
        for piece in engine.pieces:
            reader.fill(piece.shard, _VALUE, piece, engine.strategy.parameters)
            piece.updated = engine.order.mark()
            if piece.master is None:
                continue
            master = piece.master.detach()
            reader.fill(master, _VALUE, piece, engine.strategy.state)
            piece_state: dict[str, Tensor] = {}
            for kind in index.elements:
                piece_state[kind] = torch.zeros_like(master)
                reader.fill(piece_state[kind], f"optimizer.{kind}", piece, engine.strategy.state)
            for kind in index.scalars:
                piece_state[kind] = reader.scalar(f"optimizer.{kind}", piece)
            if piece_state:
                state[next(at for at, parameter in enumerate(places) if parameter is piece.master)] = piece_state
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class _Reader:
    """Reads the files of a checkpoint, opening them on first use."""

    def __init__(self, engine: ShardedEngine, folder: Path, index: Index) -> None:
        self._engine, self._folder, self._index = engine, folder, index
        self._names = _names(engine)
        self._files: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def fill(self, to: Tensor, kind: str, piece: Piece, level: Level) -> None:
        """Fill ``to``, this rank's part at ``level`` of the piece. Padding stays as it is."""
        start, end = self._engine.layout.interval(level, piece.length)
        for run in _runs(piece, self._names, start, end):
            for file, first, last in self._index.holders(run.name):
                begin, stop = max(first, run.start), min(last, run.end)
                if begin < stop:
                    source = self._read(file, _key(kind, run.name), last - first, begin - first, stop - first)
                    at = run.at + begin - run.start
                    to[at : at + stop - begin].copy_(source)

    def scalar(self, kind: str, piece: Piece) -> Tensor:
        """Read an optimizer's number that is the same for the whole piece, as the steps done."""
        name = self._names[id(piece.parts[0].parameter)]
        source = self._read(self._index.holders(name)[0][0], _key(kind, name), None)
        number = torch.empty((), dtype=source.dtype, device=self._engine.order.streams.device)
        return number.copy_(source)

    def _read(self, file: str, key: str, numel: int | None, start: int = 0, end: int = 0) -> Tensor:
        """Read elements of a tensor of ``numel`` (None: a number) into host memory.

        safetensors calls torch for that; the calls are hidden from the device, as they are none of its work.
        """
        with _disable_current_modes():
            if file not in self._files:
                self._files[file] = self._open.enter_context(safe_open(self._folder / file, framework="pt"))
            tensor = self._files[file].get_slice(key)
            if tensor.get_shape() != ([] if numel is None else [numel]):
                raise ShardingError(
                    f"{self._folder} is damaged: {file} has {key} of another size than its {INDEX} says"
                )
            part: Tensor = self._files[file].get_tensor(key) if numel is None else tensor[start:end]
            return part.clone()


# -- both ----------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """Elements ``start`` to ``end`` of a parameter, and the offset ``at`` in the rank's part of a piece."""

    name: str
    start: int
    end: int
    at: int

    @property
    def behind(self) -> int:
        return self.at + self.end - self.start


def _runs(piece: Piece, names: dict[int, str], start: int, end: int) -> Iterator[_Run]:
    """Yield the intervals within ``start`` and ``end`` of a piece, by parameter, without padding."""
    for part in piece.parts:
        first, last = max(start, part.start), min(end, part.start + part.numel)
        if first < last:
            yield _Run(names[id(part.parameter)], first - part.start, last - part.start, first - start)


def _names(engine: ShardedEngine) -> dict[int, str]:
    """Return the model's own names, independent of the units."""
    return {id(parameter): name for name, parameter in engine.model.named_parameters()}


def _forms(engine: ShardedEngine) -> dict[str, Form]:
    """Return the forms in the model's order, from its pieces, as parameters are empty between the passes."""
    names = _names(engine)
    forms: dict[str, Form] = {}
    for piece in engine.pieces:
        for part in piece.parts:
            form = Form.of(part.shape, piece.shard.dtype, trained=piece.trained)
            forms[names[id(part.parameter)]] = form
    return {name: forms[name] for name in names.values()}


def _key(kind: str, name: str) -> str:
    """Return a tensor's name in its file."""
    return f"{kind}/{name}"


def _agreed(engine: ShardedEngine, action: str, work: Callable[[], Result]) -> Result:
    """Run ``work``; return its result once it is done on all ranks. Raises on all of them when it fails on one."""
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:  # whatever it is, the other ranks must not wait for ever
        failure = error
    failed = _failed(engine, failure is not None)
    if isinstance(failure, (OSError, SafetensorError)):
        raise ShardingError(f"cannot {action}: {failure}") from failure
    if failure is not None:
        raise failure
    if failed:
        raise ShardingError(f"rank {failed[0]} could not {action}: its own message says why")
    return result


def _failed(engine: ShardedEngine, failed_here: bool) -> list[int]:
    """Return the ranks that failed. All others are known to be done."""
    flags = torch.zeros(engine.topology.ranks, device=engine.order.streams.device)
    if failed_here:
        flags[engine.topology.rank].fill_(1)
    if engine.topology.ranks > 1:
        dist.all_reduce(flags, group=engine.topology.across)
    return [rank for rank, failed in enumerate(flags.tolist()) if failed]
