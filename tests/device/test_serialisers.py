"""What writes tensors of pinned memory into files, or hands them to other processes, reads them on the host's clock."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from judged import Story, story

from streamrace.detectors.confidence.exports import Exports

_SLOW = {"mm": 10000.0}


def _saved(host: Any, **how: Any) -> Any:
    file = io.BytesIO()
    torch.save(host, file, **how)
    return torch.load(io.BytesIO(file.getvalue()))


def _saved_to_a_file(host: torch.Tensor, **how: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(host, folder + "/it.pt", **how)
        return torch.load(folder + "/it.pt")


def _written(host: torch.Tensor) -> torch.Tensor:
    with tempfile.TemporaryFile() as file:
        host.untyped_storage()._write_file(file, True, False, 1)
        file.seek(0)
        return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)


def _safetensors(host: torch.Tensor) -> torch.Tensor:
    from safetensors.torch import load, save

    return load(save({"it": host}))["it"]


def _safetensors_file(host: torch.Tensor) -> torch.Tensor:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        save_file({"it": host}, folder + "/it.safetensors")
        return load_file(folder + "/it.safetensors")["it"].clone()


def _safetensors_model(host: torch.Tensor) -> torch.Tensor:
    from safetensors.torch import load_file, save_model

    model = torch.nn.Module()
    model.it = torch.nn.Parameter(host)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder + "/it.safetensors")
        return load_file(folder + "/it.safetensors")["it"].clone()


def _shared(host: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(host.share_memory_().numpy().copy())


def _shared_by_name(host: torch.Tensor) -> torch.Tensor:
    host.untyped_storage()._share_filename_cpu_()
    return torch.from_numpy(host.numpy().copy())


def _of(numbers: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(numbers), dtype=torch.float32)


_WRITERS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "save": ("torch.save", _saved),
    "save, old format": ("torch.save", lambda host: _saved(host, _use_new_zipfile_serialization=False)),
    "save to a file": ("torch.save", _saved_to_a_file),
    "save to a file, old": ("torch.save", lambda host: _saved_to_a_file(host, _use_new_zipfile_serialization=False)),
    "save of a parameter": ("torch.save", lambda host: _saved([torch.nn.Parameter(host)])[0]),
    "pickle": ("torch.save", lambda host: pickle.loads(pickle.dumps(host))),
    "_write_file": ("torch.save", _written),
    "safetensors.save": ("safetensors.torch.save", _safetensors),
    "safetensors.save_file": ("safetensors.torch.save_file", _safetensors_file),
    "safetensors.save_model": ("safetensors.torch.save_file", _safetensors_model),
    "share_memory_": ("aten::copy_", _shared),
    "_share_filename_cpu_": ("aten::copy_", _shared_by_name),
    "storage.tolist": ("UntypedStorage.__iter__", lambda host: _of(host.untyped_storage().tolist())),
    "bytes(storage)": ("UntypedStorage.__iter__", lambda host: _of(bytes(host.untyped_storage()))),
    "typed storage.tolist": ("aten::item", lambda host: torch.tensor(host.storage().tolist())),
    "numpy.asarray": ("Tensor.numpy", lambda host: torch.tensor(np.asarray(host))),
    "memoryview": ("Tensor.numpy", lambda host: _of(host.numpy().data)),
    "numpy.from_dlpack": ("Tensor.__dlpack__", lambda host: torch.tensor(np.from_dlpack(host))),
    "from_dlpack": ("Tensor.__dlpack__", lambda host: torch.from_dlpack(host).clone()),
    "to_dlpack": ("Tensor.__dlpack__", lambda h: torch.from_dlpack(torch.utils.dlpack.to_dlpack(h)).clone()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("way", list(_WRITERS))
def test_what_writes_pinned_memory_away_reads_it(way: str, wait: bool) -> None:
    kernel, write = _WRITERS[way]
    with story(**_SLOW) as told:
        x = torch.ones(8, 8, device="cuda")
        y = (x @ x).to("cpu", non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        written = write(y).flatten()
    assert (written == 8).all() == wait
    if wait:
        assert told.races == []
    else:
        assert told.pairs[0] == ("cudaMemcpyAsync DtoH", kernel), told.pairs
        assert os.path.basename(__file__) in {os.path.basename(one.file) for one in told.races[0].second.stack}


def test_a_saved_part_of_a_pinned_arena_reads_all_of_its_storage_and_no_neighbour() -> None:
    """As torch: the file holds the whole storage."""
    with story() as told:
        arena, other = torch.zeros(64).pin_memory(), torch.zeros(64).pin_memory()
        _saved(arena[3:5])
        arena.untyped_storage()[-1]
    (saved, one) = [launch for launch in told.launches if launch.kernel in ("torch.save", "UntypedStorage.__getitem__")]
    assert [access[1:3] for access in (*saved.reads, *one.reads)] == [(0, 256), (255, 256)]
    del other


def _unseen(told: Story) -> list[str]:
    exports = Exports()
    exports.feed(0, told.records)
    return [str(one) for one in exports.findings()]


_ADDRESSES: dict[str, Callable[[torch.Tensor], Any]] = {
    "data_ptr": lambda host: ctypes.string_at(host.data_ptr(), host.nbytes),
    "untyped_storage.data_ptr": lambda host: ctypes.string_at(host.untyped_storage().data_ptr(), host.nbytes),
    "typed storage.data_ptr": lambda host: ctypes.string_at(host.storage().data_ptr(), host.nbytes),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("way", list(_ADDRESSES))
def test_an_address_taken_while_a_copy_is_under_way_is_told_as_not_seen(way: str, wait: bool) -> None:
    with story(**_SLOW) as told:
        x = torch.ones(8, 8, device="cuda")
        y = (x @ x).to("cpu", non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        _ADDRESSES[way](y)
    assert told.races == []
    assert [("given away by data_ptr" in one, os.path.basename(__file__) in one) for one in _unseen(told)] == (
        [] if wait else [(True, True)]
    )


@pytest.mark.parametrize("library", ["torch.optim", "transformers.modeling_utils", "safetensors.torch"])
def test_who_compares_addresses_is_not_told(library: str) -> None:
    with story(**_SLOW) as told:
        x = torch.ones(8, 8, device="cuda")
        y = (x @ x).to("cpu", non_blocking=True)
        eval("y.data_ptr(), y.untyped_storage().data_ptr()", {"__name__": library, "y": y})
    assert _unseen(told) == []


def test_dlpack_is_held_until_its_taker_lets_go() -> None:
    with story() as told:
        host = torch.zeros(8, dtype=torch.bfloat16).pin_memory()
        lent = torch.from_dlpack(host)
        assert lent.is_pinned()
        assert lent.data_ptr() == host.data_ptr()
        del lent
        host.copy_(torch.ones(8, device="cuda"), non_blocking=True)
        torch.cuda.synchronize()
        assert _unseen(told) == []
        lent = torch.from_dlpack(host[2:])
        host.copy_(torch.ones(8, device="cuda"), non_blocking=True)
        torch.cuda.synchronize()
        assert lent.tolist() == [1] * 6
    (sentence,) = _unseen(told)
    assert "given away by dlpack" in sentence
