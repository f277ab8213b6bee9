"""Reads the figures of papers and threads from ``published.toml``: each figure once, with its source."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

FILE = Path(__file__).with_name("published.toml")
Quantity = Literal["seconds", "tflops", "samples", "gain", "most", "scaling", "less"]
TIMES: tuple[Quantity, ...] = ("seconds", "tflops", "samples")
"""Quantities that imply the time of a step."""
Table = TypeVar("Table")


class PublishedError(Exception):
    """The file of published figures is unreadable or invalid: one sentence."""


@dataclass(frozen=True)
class PublishedCluster:
    """The machine of some rows. ``hardware``: a profile's name; ``source``: where its figures are reported."""

    title: str
    hardware: str
    nodes: int
    gpus: int
    source: str


@dataclass(frozen=True)
class PublishedSetting:
    """A training setup: options of :func:`job`. ``zero``: more of DeepSpeed's ``zero_optimization``."""

    title: str
    options: Mapping[str, Any]
    zero: Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A reported figure, as explained in ``published.toml``.

    ``setting``: of :func:`settings`, or ``strategy``: three letters of PaRO's (``ho-ring``: the collective);
    ``network``: nominal, Gbit/s; ``trained``: the trained part, in PaRO's rows; ``ranks``: GPUs, where they are not the
    whole cluster's.
    """

    cluster: str
    model: str
    network: float
    quantity: Quantity
    value: float
    setting: str = ""
    strategy: str = ""
    against: str = ""
    trained: str = ""
    ranks: int = 0
    few: int = 0
    low: float = math.nan
    high: float = math.nan

    @property
    def is_time(self) -> bool:
        """Check whether the figure implies the time of a step."""
        return self.quantity in TIMES

    @property
    def ranged(self) -> bool:
        return not math.isnan(self.low)

    def seconds(self, value: float, *, flops: float, samples: int) -> float:
        """Convert ``value`` of this row's quantity to seconds of a step of ``flops`` per GPU and ``samples`` in total.

        Raises ValueError for a quantity that is no time.
        """
        if self.quantity == "seconds":
            return value
        if self.quantity == "tflops":
            return flops / value / 1e12
        if self.quantity == "samples":
            return samples / value
        raise ValueError(f"'{self.quantity}' says nothing of how long a step takes")


def published(cluster: str = "", *, quantity: str = "") -> tuple[Published, ...]:
    """Return the rows, in the file's order; only those of a cluster, or of a quantity."""
    rows = _all()[2]
    return tuple(one for one in rows if cluster in ("", one.cluster) and quantity in ("", one.quantity))


def clusters() -> Mapping[str, PublishedCluster]:
    return _all()[0]


def settings() -> Mapping[str, PublishedSetting]:
    return _all()[1]


@cache
def _all() -> tuple[dict[str, PublishedCluster], dict[str, PublishedSetting], tuple[Published, ...]]:
    return read(FILE)


def read(
    file: Path,
) -> tuple[dict[str, PublishedCluster], dict[str, PublishedSetting], tuple[Published, ...]]:
    """Read clusters, settings and rows of a file. Raises :class:`PublishedError`."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PublishedError(f"{file.name} cannot be read: {error}") from error
    places = {name: _made(PublishedCluster, one, f"cluster {name}") for name, one in data.get("clusters", {}).items()}
    trained = {}
    for name, one in data.get("settings", {}).items():
        if "title" not in one:
            raise PublishedError(f"setting {name} has no title: say in a few words what it is")
        others = {key: value for key, value in one.items() if key not in ("title", "zero")}
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in others.items()}
        trained[name] = PublishedSetting(str(one["title"]), options, one.get("zero", {}))
    rows = []
    for number, one in enumerate(data.get("rows", ()), 1):
        row = _made(Published, one, f"row {number}")
        if row.quantity not in get_args(Quantity):
            raise PublishedError(
                f"row {number}: '{row.quantity}' is no quantity: choose of {', '.join(get_args(Quantity))}"
            )
        if row.cluster not in places or (row.setting and row.setting not in trained):
            raise PublishedError(f"row {number} names a cluster or a setting that is not in the file: add it")
        if not row.value > 0 or (row.ranged and not row.low <= row.value <= row.high):
            raise PublishedError(f"row {number}: {row.value} is not above 0, or not from low to high: correct it")
        rows.append(row)
    return places, trained, tuple(rows)


def _made(kind: type[Table], data: Mapping[str, Any], what: str) -> Table:
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    if unknown := sorted(data.keys() - known):
        raise PublishedError(f"{what} has unknown entries: {', '.join(unknown)}")
    try:
        return kind(**data)
    except TypeError as error:
        raise PublishedError(f"{what} is not complete: {error}") from error
