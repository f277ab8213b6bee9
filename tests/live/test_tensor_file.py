"""What the watch writes without safetensors is what safetensors reads, and what it would have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from streamrace.detectors.live.incident import write_rank
from streamrace.detectors.live.tensor_file import TYPES, write

KINDS = {str(dtype): torch.arange(5).sub(2).to(dtype) for dtype in TYPES}
SHAPES = {
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(2, 0, 3),
    "deep": torch.arange(24, dtype=torch.int16).view(2, 3, 4),
    "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "after the bytes": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
    'name with "quotes", \n, ü and 雪': torch.ones(1),
}


class Wrapped(torch.Tensor):
    """Has a shape and a type, and no memory: its numbers are another tensor's, as DTensor's are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Wrapped(torch.ones(3))


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


def test_every_type_and_shape_comes_back(tmp_path: Path) -> None:
    tensors = {**KINDS, **SHAPES}
    write(tensors, tmp_path / "ours.safetensors")
    read = load_file(tmp_path / "ours.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape, bits(read[name])) == (tensor.dtype, tensor.shape, bits(tensor))


def test_no_tensors_are_a_file_too(tmp_path: Path) -> None:
    write({}, tmp_path / "ours.safetensors")
    assert load_file(tmp_path / "ours.safetensors") == {}


def test_where_types_decide_the_order_the_bytes_are_the_library_s(tmp_path: Path) -> None:
    """One tensor of each size: of several the library has an order of its own, which means nothing."""
    tensors = {name: SHAPES[name] for name in ("deep", "bytes", "after the bytes", "scalar")}
    write(tensors, tmp_path / "ours.safetensors")
    save_file(tensors, tmp_path / "theirs.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_a_name_that_is_half_a_character_costs_nothing_else(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, probes=[], batch={"\ud800": torch.ones(2), "\\ud800": torch.zeros(2)}, rng={})
    read = load_file(tmp_path / "rank-0" / "batch.safetensors")
    assert {name: tensor.tolist() for name, tensor in read.items()} == {"\\ud800": [1, 1], "\\ud800_": [0, 0]}
    assert json.loads((tmp_path / "rank-0" / "batch.safetensors").read_bytes()[8:].partition(b"}}")[0] + b"}}")


def test_a_tensor_without_memory_is_told_as_text(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, probes=[], batch={"sharded": Wrapped(torch.ones(3)), "plain": torch.ones(2)}, rng={})
    assert set(load_file(tmp_path / "rank-0" / "batch.safetensors")) == {"plain"}
    assert set(json.loads((tmp_path / "rank-0" / "batch.json").read_text())) == {"sharded"}
