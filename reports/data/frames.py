"""Tables in CSV files, read with nothing trusted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from reports.data.schema import ReportError, does_not_hold

_NOTHING: Mapping[str, str] = {}
_RENAMED = {"shown": "manifested", "margin_us": "slack_us"}  # columns as earlier versions called them


def read(
    file: Path, columns: Mapping[str, str], *, optional: Collection[str] = (), nothing: Mapping[str, str] = _NOTHING
) -> pd.DataFrame:
    """These columns (name: dtype), in this order, to the last bit as they were written; NaN for columns that are
    ``optional`` and missing, and for a text that stands for ``nothing``, by column.

    Other words stay words: a model or a parameter may be called NA. Raises :class:`ReportError` for a file that cannot
    be read, or does not hold them.
    """
    earlier = {old: new for old, new in _RENAMED.items() if new in columns}
    kinds = {**columns, **{old: columns[new] for old, new in earlier.items()}}
    try:
        frame = pd.read_csv(
            file,
            usecols=lambda name: name in kinds,
            dtype={name: "str" if dtype == "float64" else dtype for name, dtype in kinds.items()},
            keep_default_na=False,
            na_values={name: [nothing[new]] for name in kinds if (new := earlier.get(name, name)) in nothing},
            encoding="utf-8",
        ).rename(columns=earlier)
        numbers = [name for name in frame.columns if columns[name] == "float64"]
        for name in numbers:  # by Python: not every pandas reads the last bit
            frame[name] = frame[name].to_numpy(dtype=object).astype("float64")
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror or error}. See whether it may be read") from error
    except (ValueError, TypeError, OverflowError) as error:  # pandas' own are such, and a text that is no number
        raise does_not_hold(file, str(error)) from None
    for name in columns:
        if name not in frame.columns:
            if name not in optional:
                raise does_not_hold(file, f"it has no column '{name}'")
            frame[name] = math.nan
    return pd.DataFrame(frame[list(columns)])


def each(frame: pd.DataFrame) -> Iterator[Any]:
    """A frame's rows, with its columns as attributes; which they are no type says."""
    yield from frame.itertuples(index=False)
