"""Reads and writes a checkpoint's folder: an index in JSON, and files of safetensors. All is checked when it is read.

    checkpoints/step-40/checkpoint.json       which file holds which interval of which parameter
                        rank-0.safetensors    rank 0's part of the optimizer state, and of the parameters
                        rank-1.safetensors

Intervals count the elements of one parameter, flat. So the index does not depend on strategy, ranks, groups or units,
and any number of ranks can read it. PyTorch's distributed checkpoints use intervals too, but their index is pickled
(``torch.distributed.checkpoint``, ``.metadata``), and pickles are not read here.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from torch import nn

from streamrace.scenarios.sharding.strategy import ShardingError

FORMAT = "sharded training checkpoint"
VERSION = 1
INDEX = "checkpoint.json"
FOLDER = "checkpoints"  # of a run
_STEP = re.compile(r"step-(\d+)")
_Checksum = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# No path: the files are in the checkpoint's own folder.
_FileName = Annotated[str, StringConstraints(pattern=r"^rank-\d+\.safetensors$")]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Form(_Read):
    """Shape and dtype of a parameter. ``dtype``: that of the computation; trained parameters are saved in fp32."""

    shape: tuple[int, ...]
    dtype: str
    trained: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @classmethod
    def of(cls, shape: torch.Size, dtype: torch.dtype, *, trained: bool) -> Form:
        return cls(shape=tuple(shape), dtype=str(dtype).removeprefix("torch."), trained=trained)

    def differs(self, other: Form) -> str | None:
        """Return the difference from ``other``, the current model's, as the end of a sentence; None: equal."""
        if self.shape != other.shape:
            return f"has the shape {_shape(self.shape)}, and the model's {_shape(other.shape)}"
        if self.dtype != other.dtype:
            return f"is {self.dtype}, and the model's {other.dtype}"
        if self.trained != other.trained:
            return "is trained, and the model's is frozen" if self.trained else "is frozen, and the model's is trained"
        return None


def forms(model: nn.Module, dtype: torch.dtype) -> dict[str, Form]:
    """Return the parameters of a model that is not sharded yet and will compute in ``dtype``."""
    return {name: Form.of(param.shape, dtype, trained=param.requires_grad) for name, param in model.named_parameters()}


class File(_Read):
    """One file: its size in bytes, its SHA-256, and its interval of each parameter that it holds."""

    size: Annotated[int, Field(ge=0)]
    sha256: _Checksum
    holds: dict[str, tuple[int, int]]


class Index(_Read):
    """``checkpoint.json``. ``checksum``: of all other fields.

    ``elements`` and ``scalars``: the optimizer's tensors that have the size of their parameters, and the numbers.
    """

    format: Literal["sharded training checkpoint"] = "sharded training checkpoint"
    version: Literal[1] = 1
    step: Annotated[int, Field(ge=0)]
    optimizer: str
    elements: tuple[str, ...]
    scalars: tuple[str, ...]
    parameters: dict[str, Form]
    files: dict[_FileName, File]
    checksum: _Checksum | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check that each element of each parameter is in one file."""
        parts: dict[str, list[tuple[int, int]]] = {name: [] for name in self.parameters}
        for file, entry in self.files.items():
            for name, (start, end) in entry.holds.items():
                if name not in parts:
                    raise ValueError(f"{file} holds a parameter {name} that is not in the index")
                if start >= end:
                    raise ValueError(f"{file} holds nothing of {name}")
                parts[name].append((start, end))
        for name, form in self.parameters.items():
            edges = [(0, 0), *sorted(parts[name]), (form.numel, form.numel)]
            if any(before[1] != after[0] for before, after in pairwise(edges)):
                raise ValueError(f"its files do not hold each element of {name} once")
        return self

    def holders(self, name: str) -> list[tuple[str, int, int]]:
        """Return the files with their intervals of the parameter, in no order."""
        return [(file, *entry.holds[name]) for file, entry in self.files.items() if name in entry.holds]

    def refuse_other(self, folder: Path, model: Mapping[str, Form], optimizer: str) -> None:
        """Raise :class:`ShardingError` unless the checkpoint is of this model and this optimizer (its class' name)."""
        for name, form in model.items():
            stored = self.parameters.get(name)
            if stored is None:
                raise ShardingError(f"{folder} is of another model: it has no parameter {name}")
            if differs := stored.differs(form):
                raise ShardingError(f"{folder} is of another model: its parameter {name} {differs}")
        if more := [name for name in self.parameters if name not in model]:
            raise ShardingError(f"{folder} is of another model: it has a parameter {more[0]}, which the model has not")
        if optimizer != self.optimizer:
            raise ShardingError(
                f"{folder} has the state of the optimizer {self.optimizer}, with which {optimizer} cannot go on"
            )

    def text(self) -> str:
        """Return the index as JSON, with its checksum."""
        return self.model_copy(update={"checksum": self._sum()}).model_dump_json(indent=1) + "\n"

    def _sum(self) -> str:
        return hashlib.sha256(self.model_dump_json(exclude={"checksum"}).encode()).hexdigest()


class _Head(BaseModel):
    """The fields at the beginning of every version."""

    model_config = ConfigDict(strict=True)

    format: Literal["sharded training checkpoint"]
    version: int


def read(folder: Path) -> Index:
    """Read the index of the checkpoint in ``folder``. Raises :class:`ShardingError` if missing or damaged."""
    path = folder / INDEX
    if not path.is_file():
        content = "holds something else" if folder.is_dir() else "does not exist"
        raise ShardingError(f"{folder} is no checkpoint, it {content}: give a folder with a {INDEX} in it")
    try:
        text = path.read_bytes()
        head = _Head.model_validate_json(text)
    except (OSError, ValidationError):
        raise ShardingError(f"{folder} is no checkpoint: its {INDEX} is not that of a {FORMAT}") from None
    if head.version > VERSION:
        raise ShardingError(
            f"{folder} is a checkpoint of version {head.version}, and only those up to {VERSION} can be read here: "
            "read it with the release that wrote it"
        )
    try:
        index = Index.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise ShardingError(f"{path} is damaged: {where + ': ' if where else ''}{problem}") from None
    if index.checksum != index._sum():
        raise ShardingError(f"{path} is damaged: its checksum is another")
    return index


def refuse_damaged(folder: Path, name: str, file: File) -> None:
    """Read a file of a checkpoint to its end. Raises :class:`ShardingError` unless it is as it was written."""
    path = folder / name
    try:
        size = path.stat().st_size
        same = size == file.size and sha256(path) == file.sha256
    except OSError as error:
        raise ShardingError(f"{folder} is damaged: {name} cannot be read ({error.strerror})") from None
    if not same:
        how = "its checksum is another" if size == file.size else f"it has {size} bytes instead of {file.size}"
        raise ShardingError(f"{folder} is damaged: {name} is not as it was written, {how}")


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# -- of a run ------------------------------------------------------------------------------------------------


def of_step(run: Path, step: int) -> Path:
    """Return the path of a run's checkpoint after this step."""
    return run / FOLDER / f"step-{step}"


def newest(path: Path) -> Path:
    """Return ``path``, if it is a checkpoint, or the last one of the run in it. Raises :class:`ShardingError`."""
    if (path / INDEX).is_file():
        return path
    if not path.is_dir():
        raise ShardingError(f"there is no checkpoint {path}: the folder does not exist")
    checkpoints = _of_run(path)
    if not checkpoints:
        raise ShardingError(
            f"there is no checkpoint in {path}: give a checkpoint's folder, or that of a run with --checkpoint-every"
        )
    return checkpoints[-1]


def drop_older(run: Path, keep: int) -> None:
    """Remove all of a run's checkpoints but the last ``keep``."""
    for folder in _of_run(run)[:-keep]:
        (folder / INDEX).unlink()  # from here on no checkpoint, should this be interrupted
        shutil.rmtree(folder)


def _of_run(run: Path) -> list[Path]:
    """Return the run's complete checkpoints, by step."""
    by_step = {
        int(match[1]): folder
        for folder in (run / FOLDER).glob("step-*")
        if (match := _STEP.fullmatch(folder.name)) and (folder / INDEX).is_file()
    }
    return [by_step[step] for step in sorted(by_step)]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a number"
