"""Describes the dry run of a program of the user's own."""

from __future__ import annotations

from dataclasses import dataclass

from streamrace.trace import wording


@dataclass(frozen=True)
class Dry:
    """A program that ran dry, as rank 0 of ``ranks`` on ``nodes``.

    ``peak`` and ``capacity``: bytes of memory allocated at most, and available on a GPU (0: unknown). ``step_ns``: the
    virtual time of the last optimizer step; 0 if the program took fewer than two steps.
    """

    ranks: int
    nodes: int
    peak: int
    capacity: int
    step_ns: int

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for a person, without full stops."""
        parts = [self._ran((0,)), self._memory()]
        if self.step_ns:
            parts.append(f"An optimizer step takes {self.step_ns / 1e9:.3f} s of virtual time (the last one)")
        return tuple(parts)

    def _ran(self, running: tuple[int, ...]) -> str:
        others = "; the others are taken to do the same at the same time" if self.ranks > len(running) else ""
        ranks = f"rank{'s' if len(running) > 1 else ''} {wording.every(running)}"
        return (
            f"A dry run as {ranks} of {self.ranks:,} on {wording.count(self.nodes, 'node')}, on tensors that hold "
            f"nothing{others}. There are no witnesses: what a race would change needs values"
        )

    def _memory(self) -> str:
        capacity = f" of the {self.capacity / 2**30:.0f} GiB of a GPU" if self.capacity else ""
        return f"Memory: at most {self.peak / 2**30:.2f} GiB allocated{capacity}"


@dataclass(frozen=True)
class DryTogether(Dry):
    """A program that ran dry as several of its ranks, ``running``, together. Memory is that of the rank ``fullest``.

    ``computed_ns``: by running rank, how long its kernels ran in all, without collectives.
    """

    running: tuple[int, ...]
    fullest: int
    computed_ns: tuple[int, ...]

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for a person, without full stops."""
        parts = [self._ran(self.running), f"{self._memory()}, by rank {self.fullest}", *super().sentences()[2:]]
        most, least = (self.computed_ns.index(pick(self.computed_ns)) for pick in (max, min))
        longest = self.computed_ns[most]
        if most != least:
            times = longest / max(1, self.computed_ns[least])
            parts.append(
                f"In the whole run rank {self.running[most]} computes the longest, {longest / 1e9:.3f} s, "
                f"{times:.2f} times as long as rank {self.running[least]}"
            )
        return tuple(parts)
