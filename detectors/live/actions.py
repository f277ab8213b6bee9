"""Acts on the first finding: warns, raises, stops, calls the user's function, saves an incident."""

from __future__ import annotations

import platform
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from streamrace.detectors.live import incident
from streamrace.detectors.live.finding import Finding, ProbeResult

OnFinding = str | Callable[[Finding], None]
_BATCHES = 32  # micro-batches kept: a finding belongs to this step or the one before
WORDS = ("warn", "raise", "stop", "save")


def listed(on_finding: OnFinding | Sequence[OnFinding]) -> list[OnFinding]:
    """Return the actions of ``on_finding``, which is one action or a sequence, as a list."""
    return list(on_finding) if isinstance(on_finding, list | tuple) else [on_finding]  # type: ignore[list-item]


class BadValue(RuntimeError):
    """Training computes with a bad value. ``finding`` describes the value and its cause."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(describe(finding))
        self.finding = finding


class BadValueWarning(UserWarning):
    """Training computes with a bad value."""


class _Batch(NamedTuple):
    step: int
    micro_batch: int
    tensors: Mapping[str, Any]
    random: dict[str, Tensor]


class Actions:
    """Carries out the actions, and keeps the last micro-batches for an incident.

    Raises ValueError for an unknown action, :class:`streamrace.detectors.live.incident.IncidentError` for a folder
    that cannot be written.
    """

    def __init__(
        self,
        on_finding: OnFinding | Sequence[OnFinding],
        folder: Path,
        configuration: Mapping[str, Any],
        *,
        engine: Any = None,
    ) -> None:
        self._actions = listed(on_finding)
        for action in self._actions:
            if not callable(action) and action not in WORDS:
                raise ValueError(f"unknown action '{action}': choose from {', '.join(WORDS)}, or give a function")
        self._folder = folder
        self._configuration = dict(configuration)
        self._engine = engine
        self._batches: deque[_Batch] = deque(maxlen=_BATCHES)
        self._existing: set[str] = set()
        self.saved: Path | None = None
        if self.saves:
            incident.check_writable(folder)
            self._existing = {path.name for path in folder.iterdir()}  # now, when all ranks see the same

    @property
    def saves(self) -> bool:
        return "save" in self._actions

    @property
    def stops(self) -> bool:
        return "stop" in self._actions

    def began(self, step: int, micro_batch: int, batch: Mapping[str, Any]) -> None:
        """Note that a micro-batch begins. Its tensors are kept only if an incident may be saved."""
        if self.saves:
            state = {"cpu": torch.get_rng_state()}
            if torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state()
            self._batches.append(_Batch(step, micro_batch, batch, state))

    def act(self, finding: Finding, rank: int, world: int, probes: Mapping[int, Sequence[ProbeResult]]) -> None:
        """Carry out all requested actions; raising comes last."""
        speaks = rank == 0
        saved = ""
        if self.saves:
            try:
                self.saved = self._save(finding, rank, world, probes)
                saved = f"\nSaved: {self.saved}"
            except (incident.IncidentError, OSError) as error:  # no reason to end somebody's training
                saved = f"\nNot saved: {error}"
        if speaks and (self.saves or "warn" in self._actions or "stop" in self._actions):
            warnings.warn(describe(finding) + saved, BadValueWarning, stacklevel=_outside())
        for action in self._actions:
            if callable(action):
                action(finding)
        if "raise" in self._actions:
            raise BadValue(finding)

    def _save(self, finding: Finding, rank: int, world: int, probes: Mapping[int, Sequence[ProbeResult]]) -> Path:
        folder = incident.free_name(self._folder, finding, self._existing)
        begun = [row for row in self._batches if (row.step, row.micro_batch) == (finding.step, finding.micro_batch)]
        batch = (begun or list(self._batches) or [_Batch(0, 0, {}, {})])[-1]
        incident.write_rank(
            folder,
            rank,
            probes=[probe for step in sorted(probes) for probe in probes[step]],
            batch=batch.tensors,
            rng=batch.random,
        )
        if rank == 0:
            incident.write(folder, finding, world=world, configuration=self._all_configuration(), versions=versions())
        return folder

    def _all_configuration(self) -> dict[str, Any]:
        config = getattr(getattr(self._engine, "_config", None), "_param_dict", None)
        return {**({"deepspeed": config} if isinstance(config, Mapping) else {}), **self._configuration}


def _outside() -> int:
    """Return how many frames up the program's own line is: outside the watch, torch and DeepSpeed."""
    frame, level = sys._getframe(1), 1
    passing = ("streamrace.", "torch.", "deepspeed.", "contextlib")
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(passing):
        frame, level = frame.f_back, level + 1
    return level


def describe(finding: Finding) -> str:
    """Return the finding with its evidence as text for the user."""
    return "\n".join([finding.sentence(), *(f"  {line}" for line in finding.evidence)])


def versions() -> dict[str, str]:
    """Return the versions of the packages that take part in training and that the program has imported."""
    versions_by_name = {"python": platform.python_version()}
    for name in ("torch", "deepspeed", "transformers", "accelerate", "lightning", "numpy"):
        module = sys.modules.get(name)
        if module is not None:
            versions_by_name[name] = str(getattr(module, "__version__", "unknown"))
    return versions_by_name
