"""Writes down what a rank's work *was*, beside when it ran: what a replay needs (:mod:`repro.replay`).

Called at the moment of issue, with the program's own tensors. Nothing here takes virtual time or
orders anything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from repro.accelerator.journal import Journal
from repro.accelerator.memory import Block, Memory
from repro.trace import Call, Initial, Seen, Sight, Transfer, Unrepeatable, View
from repro.values import ValueFault, checksum, dtype_name, encoded, operator_name

__all__ = ["Recorder", "bytes_of", "checksum"]


class Recorder:
    """One rank's calls, transfers, initial memory and sights, written into its journal."""

    def __init__(self, journal: Journal, memory: Memory) -> None:
        self._journal = journal
        self._memory = memory
        self._sights = 0
        memory.on_host_memory = self._initial

    def call(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        outputs: Sequence[Tensor | None],
        places: Sequence[int],
        random: bytes | None,
    ) -> None:
        """The kernel that was issued last."""
        made = [(self.view(one), place) for one, place in zip(outputs, places, strict=True) if one is not None]
        self._note(func, args, kwargs, made, random=random)

    def read(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """The host ran ``func``, having waited for the launch that was issued last, and got ``result``."""
        values = list(result) if isinstance(result, (list, tuple)) else [result]
        made = [(self.view(one), place) for place, one in enumerate(values) if isinstance(one, Tensor)]
        learned = None if made else result
        self._note(func, args, kwargs, made, host=True, result=learned)

    def host_read(self, tensor: Tensor) -> None:
        """The host read the tensor, having waited for the launch that was issued last."""
        view, sum_ = self.view(tensor), checksum(tensor)
        self._journal.note(Call(self._journal.ops, "", (("tensor", view),), {}, (), (), "float32", None, True, sum_))

    def transfer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        reduction: str,
        splits: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:
        """The collective that was issued last."""
        self._journal.note(
            Transfer(
                self._journal.ops,
                tuple(map(self.view, inputs)),
                tuple(map(self.view, outputs)),
                reduction,
                None if splits is None else (tuple(splits[0]), tuple(splits[1])),
            )
        )

    def sight(self, kind: str, name: str, tensor: Tensor, stream: int) -> int:
        """The program uses the tensor here. Gives the number for :meth:`seen`."""
        self._sights += 1
        self._journal.note(Sight(self._sights, kind, name, self.view(tensor), stream))
        return self._sights

    def seen(self, sight: int, tensor: Tensor) -> None:
        self._journal.note(Seen(sight, checksum(tensor)))

    def refuse(self, reason: str) -> None:
        """What happened now cannot be replayed."""
        self._journal.note(Unrepeatable(reason))

    def view(self, tensor: Tensor) -> View:
        block = self._memory.block_of(tensor)
        return (
            block.id,
            dtype_name(tensor.dtype),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _note(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        made: Sequence[tuple[View, int]],
        *,
        random: bytes | None = None,
        host: bool = False,
        result: Any = None,
    ) -> None:
        try:
            self._journal.note(
                Call(
                    self._journal.ops,
                    operator_name(func),
                    tuple(encoded(one, self.view) for one in args),
                    {name: encoded(one, self.view) for name, one in kwargs.items()},
                    tuple(view for view, _ in made),
                    tuple(place for _, place in made),
                    dtype_name(torch.get_default_dtype()),
                    random,
                    host,
                    encoded(result, self.view),
                )
            )
        except ValueFault as error:
            self.refuse(f"{func}: {error}")

    def _initial(self, block: Block, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._journal.note(Initial(block.id, _memory(storage.data_ptr(), storage.nbytes())))


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a contiguous tensor of the host's own."""
    return _memory(tensor.data_ptr(), tensor.nbytes)


def _memory(address: int, nbytes: int) -> bytes:
    """Not through torch: the program's own modes may be on."""
    return ctypes.string_at(address, nbytes) if nbytes else b""
