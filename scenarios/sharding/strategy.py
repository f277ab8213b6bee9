"""Defines a strategy of three letters: how far parameters, gradients and optimizer state are sharded.

PaRO (arXiv 2310.06003, section 3): N replicated, I sharded within the group, G sharded over all ranks. The optimizer
state is sharded at least as finely as the other two, as each rank updates the parameters whose state it has, and needs
their gradients: 14 of 27 remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import product


class ShardingError(Exception):
    """A way to shard that cannot be run. One sentence: the error, and how to correct it."""


class Level(IntEnum):
    """The granularity of sharding; the larger, the finer."""

    N = 0
    I = 1  # noqa: E741 - the paper's letter
    G = 2

    def parts(self, ranks: int, group: int) -> int:
        """Return the number of parts at this level, of ``ranks`` in groups of ``group``."""
        return (1, group, ranks)[self]


@dataclass(frozen=True)
class Strategy:
    """The levels of parameters, gradients and optimizer state. Raises :class:`ShardingError` for illegal ones."""

    parameters: Level
    gradients: Level
    state: Level

    def __post_init__(self) -> None:
        if self.state < max(self.parameters, self.gradients):
            letters = "".join(level.name for level in (self.parameters, self.gradients, self.state))
            finest = max(self.parameters, self.gradients)
            raise ShardingError(
                f"the strategy {letters} is not legal: its optimizer state ({self.state.name}) is coarser than its "
                f"{'parameters' if self.parameters is finest else 'gradients'} ({finest.name}); end it with "
                f"{' or '.join(level.name for level in Level if level >= finest)}"
            )

    def __str__(self) -> str:
        return self.parameters.name + self.gradients.name + self.state.name

    @property
    def title(self) -> str:
        """Return the letters, with the common name."""
        names = [name for name, letters in NAMES.items() if letters == str(self)]
        return f"{self} ({', '.join(names)})" if names else str(self)


NAMES = {
    "DDP": "NNN",
    "ZeRO-1": "NNG",
    "ZeRO-2": "NGG",
    "ZeRO-3": "GGG",
    "MiCS": "III",
    "PaRO-IGG": "IGG",
    "PaRO-IIG": "IIG",
    "PaRO-NIG": "NIG",
}


def strategy(text: str) -> Strategy:
    """Parse letters, or a name of :data:`NAMES`, in any case. Raises :class:`ShardingError`."""
    names = {name.upper(): letters for name, letters in NAMES.items()}
    letters = names.get(text.upper(), text.upper())
    if len(letters) != 3 or set(letters) - {level.name for level in Level}:
        raise ShardingError(
            f"there is no strategy '{text}': give three of the letters N, I and G for parameters, gradients and "
            f"optimizer state, or one of {', '.join(NAMES)}"
        )
    return Strategy(*(Level[letter] for letter in letters))


def legal() -> tuple[Strategy, ...]:
    """Return all 14, from the most redundant to the least."""
    order = sorted(product(Level, repeat=3), key=lambda levels: (levels[2], levels[0], levels[1]))
    return tuple(Strategy(*levels) for levels in order if levels[2] >= max(levels[:2]))
