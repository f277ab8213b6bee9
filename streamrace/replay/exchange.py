"""Carries out a recorded collective in this process, with the bits that gloo gives.

In a live run each rank copies its inputs when the collective starts, gloo works on the copies, and the outputs are
copied when it ends (:mod:`streamrace.device.collectives`). Here the inputs are copied to a buffer shared by all
members, laid out so that each output is one contiguous part of it. Arithmetic is done by :mod:`streamrace.replay.sums`,
once for all members.

A replay runs the same exchange thousands of times, so everything is looked up when the exchange is created, and only
copies between views remain. They are numpy copies of whole words, which cost a fifth of torch's for a few kilobytes and
keep every bit. Booleans are copied by torch, which makes every byte 0 or 1: gloo's sum of booleans is a number.

Departures from gloo: gloo does not compare types between ranks, and refuses int16 and other types that can only be
copied; here all members must have the same type, and every type can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.replay.sums import SumRing, SumRingInPlace
from streamrace.replay.work import Action
from streamrace.trace import wording

Splits = Sequence[tuple[Sequence[int], Sequence[int]]]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplayedExchange:
    """A recorded collective of all its members, carried out in this process with gloo's bits.

    All reads of a round come before any of its writes.
    """

    def __init__(
        self,
        kernel: str,
        inputs: Sequence[Sequence[Tensor]],
        outputs: Sequence[Sequence[Tensor]],
        *,
        reduction: str = "",
        root: int = -1,
        splits: Splits | None = None,
    ) -> None:
        """Prepare the copies. ``inputs``, ``outputs``: the tensors of each member. ``root``: a member.

        ``splits``: of an all-to-all, by member: (rows for each output, rows for each input), empty for even splits.
        """
        prepare = _KERNELS.get(kernel)
        if prepare is None:
            raise ValueError(f"a replay does not know the collective '{kernel}'.")
        self._kernel, self._reduction, self._root, self._splits = kernel, reduction, root, splits
        self._inputs, self._outputs = inputs, outputs
        self._members = len(inputs)
        if not inputs or len(outputs) != len(inputs):
            raise ValueError(f"{kernel}: {len(inputs)} members read and {len(outputs)} write.")
        tensors = [tensor for member in (*inputs, *outputs) for tensor in member]
        types = {tensor.dtype for tensor in tensors}
        if len(types) != 1:
            raise ValueError(f"{kernel}: the members' tensors have {len(types)} types instead of one.")
        (self._dtype,) = types
        self._fresh = [False]  # True once inputs have arrived that no run has used
        self._reads: list[Action] = [_nothing] * self._members
        self._writes: list[Action] = [_nothing] * self._members
        prepare(self)

    def read(self, member: int) -> Action:
        """Return the effect at the member's start: it copies the member's inputs."""
        return self._reads[member]

    def write(self, member: int) -> Action:
        """Return the effect at the member's end: it writes the member's outputs."""
        return self._writes[member]

    # -- collectives that move values ---------------------------------------------------------------

    def _prepare_broadcast(self) -> None:
        source = self._alone("inputs", self._inputs, self._rooted())
        self._pass_on(source, [self._alone("outputs", self._outputs, member) for member in range(self._members)])

    def _prepare_send_recv(self) -> None:
        if self._members != 2:
            raise ValueError(f"{self._kernel}: {self._members} members instead of a sender and a receiver.")
        self._pass_on(self._alone("inputs", self._inputs, 0), [None, self._alone("outputs", self._outputs, 1)])

    def _pass_on(self, source: Tensor, outputs: Sequence[Tensor | None]) -> None:
        staged = self._stage(source.numel())
        self._reads[self._root if self._kernel == "broadcast" else 0] = _copy([(staged.view(source.shape), source)])
        for member, output in enumerate(outputs):
            if output is not None:
                self._same_size(output, source.numel())
                self._writes[member] = _copy([(output, staged.view(output.shape))])

    def _prepare_all_gather(self) -> None:
        staged = self._stage_inputs()
        for member, outputs in enumerate(self._outputs):
            self._writes[member] = _copy(self._from_parts(staged, outputs))

    def _prepare_gather(self) -> None:
        staged, root = self._stage_inputs(), self._rooted()
        for member, outputs in enumerate(self._outputs):
            if (len(outputs) != self._members) if member == root else outputs:
                raise ValueError(f"gather: member {member} gets {len(outputs)} tensors.")
        self._writes[root] = _copy(self._from_parts(staged, self._outputs[root]))

    def _prepare_scatter(self) -> None:
        root = self._rooted()
        for member, inputs in enumerate(self._inputs):
            if (len(inputs) != self._members) if member == root else inputs:
                raise ValueError(f"scatter: member {member} gives {len(inputs)} tensors.")
        parts = self._inputs[root]
        count = parts[0].numel()
        staged = self._stage(self._members, count)
        pairs = []
        for part, place in zip(parts, staged, strict=True):
            self._same_size(part, count)
            pairs.append((place.view(part.shape), part))
        self._reads[root] = _copy(pairs)
        for member in range(self._members):
            output = self._alone("outputs", self._outputs, member)
            self._same_size(output, count)
            self._writes[member] = _copy([(output, staged[member].view(output.shape))])

    def _prepare_all_to_all(self) -> None:
        members = range(self._members)
        sent = [self._pieces(self._alone("inputs", self._inputs, member), member, 1) for member in members]
        received = [self._pieces(self._alone("outputs", self._outputs, member), member, 0) for member in members]
        pairs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in members]
        for member in members:
            output = self._outputs[member][0]
            staged = self._stage(output.numel())
            first = 0
            for sender in members:
                piece = sent[sender][member]
                if piece.numel() != received[member][sender].numel():
                    raise ValueError(f"all_to_all: members {sender} and {member} differ in what one sends the other.")
                place = staged[first : first + piece.numel()]
                pairs[sender].append((place.view(piece.shape), piece))
                first += piece.numel()
            self._writes[member] = _copy([(output, staged.view(output.shape))])
        for member in members:
            self._reads[member] = _copy(pairs[member])

    def _pieces(self, tensor: Tensor, member: int, side: int) -> list[Tensor]:
        """Split the tensor's rows by the member that they go to (``side`` 1) or come from (``side`` 0)."""
        if tensor.dim() == 0:
            raise ValueError("all_to_all: a tensor without dimensions has no rows to exchange.")
        if self._splits is not None and len(self._splits) != self._members:
            raise ValueError(f"all_to_all: {len(self._splits)} members have splits, {self._members} take part.")
        rows = list(self._splits[member][side]) if self._splits is not None else []
        if not rows and tensor.size(0) % self._members == 0:
            rows = [tensor.size(0) // self._members] * self._members
        if len(rows) != self._members or min(rows) < 0 or sum(rows) != tensor.size(0):
            raise ValueError(f"all_to_all: {tensor.size(0)} rows cannot be split into {rows} for {self._members}.")
        return list(tensor.split(rows))

    # -- collectives that reduce --------------------------------------------------------------------

    def _prepare_all_reduce(self) -> None:
        ring = SumRing(self._size_of_all(), self._dtype, self._members, self._reduction)
        self._give(ring)
        for member in range(self._members):
            output = self._alone("outputs", self._outputs, member)
            self._same_size(output, ring.result.numel())
            self._take(member, ring, output, ring.result)

    def _prepare_reduce(self) -> None:
        root = self._rooted()
        ring = SumRingInPlace(self._size_of_all(), self._dtype, self._members, self._reduction)
        self._give(ring)
        for member in range(self._members):
            output = self._alone("outputs", self._outputs, member)
            self._same_size(output, ring.result.numel())
            self._take(member, ring, output, ring.result if member == root else ring.left(member))

    def _prepare_reduce_scatter(self) -> None:
        """Accept one tensor of all parts or each part as a tensor of its own: both are the same for NCCL."""
        sizes = {sum(tensor.numel() for tensor in inputs) for inputs in self._inputs}
        if len(sizes) > 1:
            raise ValueError(f"reduce_scatter: members give {wording.every(sorted(sizes))} elements.")
        (size,) = sizes
        if size % self._members:
            raise ValueError(f"reduce_scatter: {size} elements cannot be shared by {self._members} members.")
        ring = SumRing(size, self._dtype, self._members, self._reduction)
        for member, inputs in enumerate(self._inputs):
            (lane,) = self._typed([ring.lane(member, torch.Size([size]))])
            pieces = lane.split([tensor.numel() for tensor in inputs], dim=1)
            pairs = [(piece.view(2, *tensor.shape), tensor) for piece, tensor in zip(pieces, inputs, strict=True)]
            self._reads[member] = self._noticed(_copy(pairs))
        parts = list(ring.result.view(self._members, -1)) if size else [ring.result] * self._members
        for member, part in enumerate(parts):
            output = self._alone("outputs", self._outputs, member)
            self._same_size(output, part.numel())
            self._take(member, ring, output, part)

    def _give(self, ring: SumRing) -> None:
        """Copy each member's only input to the member's lane."""
        for member, (tensor,) in enumerate(self._inputs):
            (place,) = self._typed([ring.lane(member, tensor.shape)])
            self._reads[member] = self._noticed(_copy([(place, tensor)]))

    def _take(self, member: int, ring: SumRing, output: Tensor, result: Tensor) -> None:
        copy, fresh = _copy([(output, result.view(output.shape))]), self._fresh
        run = ring.run

        def write() -> None:
            if fresh[0]:
                fresh[0] = False
                run()
            copy()

        self._writes[member] = write

    def _noticed(self, copy: Action) -> Action:
        fresh = self._fresh

        def read() -> None:
            fresh[0] = True
            copy()

        return read

    def _typed(self, places: Sequence[Tensor]) -> list[Tensor]:
        return [place.view(self._dtype) for place in places]

    # -- checks and staging -------------------------------------------------------------------------

    def _alone(self, direction: str, tensors: Sequence[Sequence[Tensor]], member: int) -> Tensor:
        if len(tensors[member]) != 1:
            raise ValueError(f"{self._kernel}: member {member} has {len(tensors[member])} {direction} instead of one.")
        return tensors[member][0]

    def _same_size(self, tensor: Tensor, count: int) -> None:
        if tensor.numel() != count:
            raise ValueError(f"{self._kernel}: a tensor has {tensor.numel()} elements where {count} are exchanged.")

    def _size_of_all(self) -> int:
        """Return the number of elements of each member's only input; all members must agree."""
        size = self._alone("inputs", self._inputs, 0).numel()
        for member in range(self._members):
            self._same_size(self._alone("inputs", self._inputs, member), size)
        return size

    def _rooted(self) -> int:
        if not 0 <= self._root < self._members:
            raise ValueError(f"{self._kernel}: root {self._root} is not one of the {self._members} members.")
        return self._root

    def _stage(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype)

    def _stage_inputs(self) -> Tensor:
        """Stage one row for each member's input."""
        staged = self._stage(self._members, self._size_of_all())
        for member, (tensor,) in enumerate(self._inputs):
            self._reads[member] = _copy([(staged[member].view(tensor.shape), tensor)])
        return staged

    def _from_parts(self, staged: Tensor, outputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Pair all rows with a single output, or each row with its own output."""
        if len(outputs) == 1:
            self._same_size(outputs[0], staged.numel())
            return [(outputs[0], staged.view(outputs[0].shape))]
        if len(outputs) != self._members:
            raise ValueError(f"{self._kernel}: {len(outputs)} outputs for {self._members} members.")
        for output in outputs:
            self._same_size(output, staged.size(1))
        return [(output, row.view(output.shape)) for output, row in zip(outputs, staged, strict=True)]


_KERNELS: dict[str, Callable[[ReplayedExchange], None]] = {
    "all_gather": ReplayedExchange._prepare_all_gather,
    "all_reduce": ReplayedExchange._prepare_all_reduce,
    "all_to_all": ReplayedExchange._prepare_all_to_all,
    "broadcast": ReplayedExchange._prepare_broadcast,
    "gather": ReplayedExchange._prepare_gather,
    "reduce": ReplayedExchange._prepare_reduce,
    "reduce_scatter": ReplayedExchange._prepare_reduce_scatter,
    "scatter": ReplayedExchange._prepare_scatter,
    "send_recv": ReplayedExchange._prepare_send_recv,
}


def _nothing() -> None:
    """Do nothing: the member gives or gets no values."""


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> Action:
    """Return an action that copies the second tensor of each pair to the first."""
    pairs = [(to, source) for to, source in pairs if to.numel()]
    if not pairs:
        return _nothing
    if pairs[0][0].dtype is torch.bool:

        def copy_booleans() -> None:
            for to, source in pairs:
                to.copy_(source)

        return copy_booleans
    words = [(_words(to), _words(source)) for to, source in pairs]
    if len(words) > 1:

        def copy_all() -> None:
            for to, source in words:
                to[...] = source

        return copy_all
    ((only_to, only_source),) = words

    def copy() -> None:
        only_to[...] = only_source

    return copy


def _words(tensor: Tensor) -> npt.NDArray[Any]:
    """View the tensor's memory as integers: numpy has no bfloat16, and integers keep the bits of every NaN."""
    word = _WORDS.get(tensor.element_size())
    plain = tensor.detach()
    return (plain if word is None else plain.view(word)).numpy()
