"""Defines the records of CUDA graphs: their memory, and their replays.

A graph has its memory by address. So in the trace all memory that a pool of graphs reserved at once is one block, and
an allocation in it is a *part* of that block.
"""

from __future__ import annotations

from typing import NamedTuple


class PoolPart(NamedTuple):
    """Bytes ``lo`` to ``hi`` of ``block``, memory of a pool of CUDA graphs, are given to allocation ``part``.

    In such a pool a block is all memory that the pool reserved at once, as graphs have it by address.
    """

    part: int
    block: int
    lo: int
    hi: int
    stack: int


class GraphPart(NamedTuple):
    """Launch number ``launch`` of a captured ``graph`` uses allocation ``part`` of a pool."""

    graph: int
    launch: int
    part: int


class Replay(NamedTuple):
    """The next ``launches`` operations, from ``op`` on, are the launches of ``graph``, replayed."""

    graph: int
    op: int
    launches: int
    stack: int


class Dangling(NamedTuple):
    """Operation ``op`` of a replay reads or writes bytes ``lo`` to ``hi`` of ``block``, freed after the capture.

    ``owner``: the block that has the memory now; -1 if none has.
    """

    op: int
    kernel: str
    stack: int
    block: int
    lo: int
    hi: int
    owner: int
    writes: bool


class KeptOutput(NamedTuple):
    """Before a replay, the program keeps references to allocation ``part`` from two earlier replays or more."""

    part: int
