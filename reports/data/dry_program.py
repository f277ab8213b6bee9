"""Describes the dry run of a program of the user's own."""

from __future__ import annotations

from dataclasses import dataclass

from streamrace.trace import wording


@dataclass(frozen=True)
class Dry:
    """A program that ran dry, as rank 0 of ``ranks`` on ``nodes``, or as ``running`` of them together.

    ``peak`` and ``capacity``: bytes of memory allocated at most, by any rank, and available on a GPU (0: unknown).
    ``fullest``: the rank that allocated the most. ``step_ns``: the virtual time of the last optimizer step; 0 if the
    program took fewer than two steps. ``computed_ns``: by running rank, how long its kernels ran in all, without
    collectives; empty if only one runs.
    """

    ranks: int
    nodes: int
    peak: int
    capacity: int
    step_ns: int
    running: tuple[int, ...] = (0,)
    fullest: int = 0
    computed_ns: tuple[int, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for a person, without full stops."""
        others = "; the others are taken to do the same at the same time" if self.ranks > len(self.running) else ""
        ranks = f"rank{'s' if len(self.running) > 1 else ''} {wording.every(self.running)}"
        nodes = wording.count(self.nodes, "node")
        parts = [
            f"A dry run as {ranks} of {self.ranks:,} on {nodes}, on tensors that hold nothing{others}. There are "
            "no witnesses: what a race would change needs values",
            f"Memory: at most {self.peak / 2**30:.2f} GiB allocated"
            + (f" of the {self.capacity / 2**30:.0f} GiB of a GPU" if self.capacity else "")
            + (f", by rank {self.fullest}" if len(self.running) > 1 else ""),
        ]
        if self.step_ns:
            parts.append(f"An optimizer step takes {self.step_ns / 1e9:.3f} s of virtual time (the last one)")
        if len(set(self.computed_ns)) > 1:
            most, least = (self.computed_ns.index(pick(self.computed_ns)) for pick in (max, min))
            longest = self.computed_ns[most]
            times = longest / max(1, self.computed_ns[least])
            parts.append(
                f"In the whole run rank {self.running[most]} computes the longest, {longest / 1e9:.3f} s, "
                f"{times:.2f} times as long as rank {self.running[least]}"
            )
        return tuple(parts)
