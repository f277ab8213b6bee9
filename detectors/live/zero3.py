"""Hooks into ZeRO-3 and hpZ: parameters while they are gathered, and their partitions.

Used of DeepSpeed (deepspeed/runtime/zero/): a parameter's ``ds_tensor`` (primary partition),
``ds_secondary_tensor`` (hpZ), ``ds_numel``, ``ds_process_group``, ``ds_zero_param_process_group``,
``ds_secondary_tensor_num_of_groups``, ``ds_status``, its ``partition`` and ``all_gather_coalesced``
(partition_parameters.py: ``_convert_to_deepspeed_param``); the coordinator's ``fetch_sub_module``
(partitioned_param_coordinator.py); the optimizer's ``grad_position`` and ``fp32_partitioned_groups_flat``
(stage3.py). Listeners are added before and after each, on the one object; none is replaced. DeepSpeed's own
accessors (``safe_get_local_optimizer_state``) are not used: they synchronise a stream.

Partitions that are offloaded to the host are not supported: their copies run on no stream that is watched here.
"""

from __future__ import annotations

from inspect import isfunction, signature
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from streamrace.detectors.live.board import Board, see_states
from streamrace.detectors.live.chains import Shape, SumEvent
from streamrace.detectors.live.finding import Kind, ProbePoint
from streamrace.detectors.live.patches import listen


def is_sharded(model: nn.Module) -> bool:
    """Check whether ZeRO-3 has taken over the model's parameters."""
    return any(hasattr(parameter, "ds_tensor") for parameter in model.parameters())


class _Parameter:
    """One parameter: its points, and its partitioning."""

    def __init__(self, board: Board, name: str, parameter: Any) -> None:
        self.name = name
        self.parameter = parameter
        module = name.rpartition(".")[0]
        self.gathered = board.point(ProbePoint(Kind.PARAMETER, module, name))
        self.primary = board.point(ProbePoint(Kind.PRIMARY, module, name))
        self.secondary = board.point(ProbePoint(Kind.SECONDARY, module, name))
        self.size = int(parameter.ds_tensor.ds_numel)  # of a primary partition, with padding
        self.rank = dist.get_rank(group=parameter.ds_process_group)
        self.world = dist.get_world_size(group=parameter.ds_process_group)
        self.numel = int(parameter.ds_numel)
        self.parts = max(1, -(-self.numel // self.size))  # the last ranks may have none
        group = getattr(parameter, "ds_zero_param_process_group", None)
        self.merged = 0  # primary partitions in a secondary one; 0: no hpZ
        self.inner = 0  # this rank in its hpZ group
        if group is not None:
            self.merged = self.world // dist.get_world_size(group=group)
            self.inner = dist.get_rank(group=group)
        first = self.inner * self.merged
        self.shape = Shape(self.rank, (first, first + self.merged), inner=self.inner)
        board.shape(name, self.shape)

    def covered(self, partition: Tensor, first: int) -> Tensor | None:
        """Return the partition without the padding behind the parameter; ``first``: its first element's offset."""
        size = min(partition.numel(), self.numel - first)
        return partition.detach().view(-1)[:size] if size > 0 else None

    @property
    def first(self) -> int:
        return self.rank * self.size

    @property
    def secondary_first(self) -> int:
        return self.inner * self.merged * self.size


def _coordinator(engine: Any) -> Any:
    get = engine.optimizer.parameter_offload.get_param_coordinator
    return get(training=True) if "training" in signature(get).parameters else get()  # up to 0.18 there are two


def _arguments(function: Any) -> list[str]:
    """Return the names of a function's arguments, through decorators that hide them (deepspeed/utils/nvtx.py did)."""
    names = list(signature(function).parameters)
    if names == ["args", "kwargs"]:
        for cell in function.__closure__ or ():
            if isfunction(cell.cell_contents):
                return _arguments(cell.cell_contents)
    return names


class Zero3Hooks:
    """Watches an engine's sharded parameters."""

    def __init__(self, board: Board, engine: Any) -> None:
        self._board = board
        self._engine = engine
        self._parameters = {
            id(parameter): _Parameter(board, name, parameter)
            for name, parameter in engine.module.named_parameters()
            if hasattr(parameter, "ds_tensor")
        }
        guard = board.guard
        if board.checksums or board.kinds & {Kind.PARAMETER, Kind.SECONDARY}:
            coordinator = _coordinator(engine)
            board.on_close(listen(coordinator, "fetch_sub_module", after=guard(self._fetched)))
            for entry in self._parameters.values():
                board.on_close(
                    listen(
                        entry.parameter,
                        "partition",
                        before=guard(self._partitioning(entry.parameter)),
                        after=guard(self._partitioned(entry.parameter)),
                    )
                )
                if board.checksums:
                    gathering = guard(self._gathering(entry.parameter))
                    board.on_close(listen(entry.parameter, "all_gather_coalesced", before=gathering))
        self._copying: list[tuple[_Parameter, int]] = []
        self._copies_anew = False
        if board.checksums:
            self._primaries(SumEvent.EDIT)

    # -- use ---------------------------------------------------------------------------------------

    def _fetched(self, _: None, module: nn.Module, forward: bool = True, *__: Any, **___: Any) -> None:
        """Measure parameters as used: the current stream is ordered after the all-gather by now."""
        board = self._board
        if not forward:
            board.begin_backward()
        for parameter in module.parameters(recurse=False):
            entry = self._parameters.get(id(parameter))
            if entry is None or parameter.numel() != entry.numel:
                continue
            values = parameter.detach().reshape(-1)
            if board.checksums:  # first: the checksum explains more than the values do
                board.sum(SumEvent.USE, entry.gathered, values, part=entry.size, parts=entry.parts)
            if Kind.PARAMETER in board.kinds:
                board.see(entry.gathered, values)

    # -- copy into the secondary partition ---------------------------------------------------------

    def _partitioning(self, parameter: Any) -> Any:
        def before(param_list: Any = None, hierarchy: int = 0, has_been_updated: bool = False, **_: Any) -> None:
            self._copying = []
            if has_been_updated:  # through GatheredParameters: the copied values are not those used
                self._edited(param_list, parameter)
            for member in param_list if param_list is not None else [parameter]:
                entry = self._parameters.get(id(member))
                if entry is None or not entry.merged or member.numel() != entry.numel:
                    continue  # without hpZ, or not gathered: nothing is copied
                secondary = member.ds_secondary_tensor
                self._copying.append((entry, -1 if secondary is None else secondary._version))
                if secondary is None or has_been_updated or self._copies_anew:
                    if secondary is not None and self._board.checksums:
                        self._secondary(entry, secondary, SumEvent.SETTLED)
                    source = member.detach().reshape(-1)[entry.secondary_first :][: entry.size * entry.merged]
                    if self._board.checksums and source.numel():
                        self._board.sum(SumEvent.SOURCE, entry.secondary, source, first=entry.secondary_first)

        return before

    def _partitioned(self, parameter: Any) -> Any:
        def after(
            _: Any, param_list: Any = None, hierarchy: int = 0, has_been_updated: bool = False, **__: Any
        ) -> None:
            board = self._board
            if has_been_updated:
                self._edited(param_list, parameter)
            for entry, version in self._copying:
                secondary = entry.parameter.ds_secondary_tensor
                if secondary is None or secondary._version == version:
                    continue  # it existed already, and nothing was copied
                if version >= 0 and not has_been_updated:
                    self._copies_anew = True  # up to 0.13.4 each release of a parameter copies
                covered = entry.covered(secondary, entry.secondary_first)
                if covered is None:
                    continue
                if board.checksums:
                    board.sum(SumEvent.COPIED, entry.secondary, covered, first=entry.secondary_first)
                if Kind.SECONDARY in board.kinds:
                    board.see(entry.secondary, covered)
            self._copying = []

        return after

    def _edited(self, param_list: Any, parameter: Any) -> None:
        if self._board.checksums:
            for member in param_list if param_list is not None else [parameter]:
                entry = self._parameters.get(id(member))
                if entry is not None:
                    self._primary(entry, SumEvent.EDIT)

    # -- all-gather --------------------------------------------------------------------------------

    def _gathering(self, parameter: Any) -> Any:
        names = _arguments(parameter.all_gather_coalesced)

        def before(*args: Any, **kwargs: Any) -> None:
            """Measure, on the all-gather stream before the all-gather is issued, the partition it is about to read."""
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            for member in arguments["params"]:
                entry = self._parameters.get(id(member))
                if entry is None:
                    continue
                if arguments.get("quantize", False):
                    self._board.shape(entry.name, entry.shape._replace(lossy=True))
                # Up to 0.13.1 the forward pass reads the primary partition even if a secondary one exists.
                secondary = member.ds_secondary_tensor if entry.merged and not arguments.get("forward", False) else None
                if secondary is None:
                    self._primary(entry, SumEvent.READ)
                else:
                    self._secondary(entry, secondary, SumEvent.READ)

        return before

    # -- step --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Measure the partitions before the optimizer step, after every copy of the step."""
        if self._board.checksums:
            self._primaries(SumEvent.SETTLED)
            for entry in self._parameters.values():
                secondary = entry.parameter.ds_secondary_tensor if entry.merged else None
                if secondary is not None:
                    self._secondary(entry, secondary, SumEvent.SETTLED)

    def stepped(self) -> None:
        """Measure optimizer state and the new primary partitions after the optimizer step."""
        board = self._board
        only_if_bad = board.only_if_bad and Kind.PRIMARY in board.kinds
        for entry in self._parameters.values() if not only_if_bad else ():
            self._state(entry)
        for entry in self._parameters.values() if Kind.PRIMARY in board.kinds else ():
            partition = entry.covered(entry.parameter.ds_tensor, entry.first)
            if partition is not None and entry.parameter.requires_grad:
                place = board.keep_place()
                if board.see(entry.primary, partition) and only_if_bad:
                    self._state(entry, place)
        if board.checksums:
            for entry in self._parameters.values():
                if entry.parameter.requires_grad:
                    self._primary(entry, SumEvent.UPDATE)

    def _state(self, entry: _Parameter, order: int = 0) -> None:
        board, optimizer = self._board, self._engine.optimizer
        flats = getattr(optimizer, "fp32_partitioned_groups_flat", [])
        place = getattr(optimizer, "grad_position", {}).get(getattr(entry.parameter, "ds_id", None))
        if Kind.OPTIMIZER not in board.kinds or place is None or place[0] >= len(flats) or flats[place[0]] is None:
            return
        group, offset, size = (int(number) for number in place[:3])
        flat = flats[group]
        size = min(size, entry.numel - entry.first)
        states = getattr(getattr(optimizer, "optimizer", None), "state", {}).get(flat, {})
        state = {
            key: value.detach().view(-1)[offset : offset + size]
            for key, value in {**states, "fp32 master": flat}.items()
            if isinstance(value, Tensor) and size > 0 and value.numel() >= offset + size
        }
        see_states(board, entry.name, state, order=order)

    def _primaries(self, event: SumEvent) -> None:
        for entry in self._parameters.values():
            self._primary(entry, event)

    def _primary(self, entry: _Parameter, event: SumEvent) -> None:
        partition = entry.covered(entry.parameter.ds_tensor, entry.first)
        if partition is None:  # all padding; the new version has to be known all the same
            partition = entry.parameter.ds_tensor.detach().view(-1)[:0]
        self._board.sum(event, entry.primary, partition, first=entry.first)

    def _secondary(self, entry: _Parameter, secondary: Tensor, event: SumEvent) -> None:
        partition = entry.covered(secondary, entry.secondary_first)
        if partition is not None:
            self._board.sum(event, entry.secondary, partition, first=entry.secondary_first)
