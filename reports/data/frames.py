"""Reads tables from CSV and Parquet files, with nothing trusted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from streamrace.reports.data.schema import ReportError, does_not_hold

_NOTHING: Mapping[str, str] = {}
_NONE_LATER: Mapping[str, int] = {}
_MOST_BYTES = 2 << 30  # of a table in memory
_MOST_ROWS = 1 << 25
_LARGEST = 2**53  # of any integer; larger ones are not exact in a page's script
_RENAMED = {"shown": "manifested", "margin_us": "slack_us"}  # columns by their names in earlier versions


def read(
    file: Path, columns: Mapping[str, str], *, optional: Collection[str] = (), nothing: Mapping[str, str] = _NOTHING
) -> pd.DataFrame:
    """Read these columns (name: dtype), in this order, bit for bit as written; NaN for columns that are ``optional``
    and missing, and for the text that means ``nothing``, by column.

    Other words stay words: a model or a parameter may be called NA. Raises :class:`ReportError` if the file is
    unreadable or lacks a column.
    """
    earlier = {old: new for old, new in _RENAMED.items() if new in columns}
    kinds = {**columns, **{old: columns[new] for old, new in earlier.items()}}
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 30} GiB")
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
    except (ValueError, TypeError, OverflowError) as error:  # includes pandas' own errors, and text that is no number
        raise does_not_hold(file, str(error)) from None
    for name in columns:
        if name not in frame.columns:
            if name not in optional:
                raise does_not_hold(file, f"it has no column '{name}'")
            frame[name] = math.nan
    return _bounded(file, pd.DataFrame(frame[list(columns)]))


def read_parquet(file: Path, columns: Mapping[str, str], *, later: Mapping[str, int] = _NONE_LATER) -> pd.DataFrame:
    """Read these columns (name: int64 or str), in this order, of a table without missing values.

    ``later``: columns that earlier versions did not write, with the number to use instead. pandas' own description of
    the table, which Parquet files carry too, is not read. Raises :class:`ReportError`.
    """
    from pyarrow import parquet  # a local import: most importers of this module read no Parquet file

    texts = [name for name, dtype in columns.items() if dtype == "str"]
    try:
        with parquet.ParquetFile(file, read_dictionary=texts) as packed:
            _refuse_bomb(packed.metadata)
            written = [name for name in columns if name in packed.schema_arrow.names]
            if missing := [name for name in columns if name not in {*written, *later}]:
                raise ValueError(f"it lacks the column {missing[0]}")
            table = packed.read(columns=written, use_threads=False)  # without threads, as ranks may be forked later
        if not len(table):  # columns of an empty table may have no type
            return pd.DataFrame({name: [] for name in columns}).astype(dict(columns))
        frame = pd.DataFrame({name: _column(name, table.column(name), columns[name]) for name in written})
        for name in columns:
            if name not in written:
                frame[name] = np.full(len(frame), later[name], dtype=np.int64)
        frame = pd.DataFrame(frame[list(columns)])
    except (OSError, ValueError, TypeError, LookupError, NotImplementedError) as error:
        raise does_not_hold(file, str(error)) from None
    return _bounded(file, frame.astype(dict(columns)))


def _refuse_bomb(described: Any) -> None:
    """Raise ValueError for a file that unpacks to too many rows or bytes: few bytes may stand for any number."""
    groups = [described.row_group(at) for at in range(described.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    if not 0 <= described.num_rows <= _MOST_ROWS or unpacked > _MOST_BYTES:
        raise ValueError(f"it unpacks to {described.num_rows:,} rows of {unpacked:,} bytes together")


def _column(name: str, values: Any, dtype: str) -> Any:
    if values.null_count:
        raise ValueError(f"its {name} is not known in each row")
    if dtype != "str":
        if not pa.types.is_integer(values.type):
            raise ValueError(f"its {name} is no whole number")
        return values.cast(pa.int64()).to_numpy()
    if not pa.types.is_dictionary(values.type) or not _is_text(values.type.value_type):
        raise ValueError(f"its {name} is no text")
    values = values.unify_dictionaries()
    chunks = values.chunks
    words = chunks[0].dictionary.to_pylist()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    if (np.asarray([len(word) for word in words] or [0])[codes]).sum() > _MOST_BYTES:
        raise ValueError(f"its {name} is longer than memory")
    return pd.Categorical.from_codes(codes, words)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _bounded(file: Path, frame: pd.DataFrame) -> pd.DataFrame:
    for name in frame.columns:
        if pd.api.types.is_integer_dtype(frame[name]) and not frame[name].between(-_LARGEST, _LARGEST).all():
            raise does_not_hold(file, f"its {name} is a number that no run writes")
    return frame
