"""Counts which parameters were wrong in which step, over the uses of all ranks.

A run has a row for each use of each parameter on each rank; a report looks at parameters and steps. So the run counts
once, and the report reads 2 million rows instead of some hundred million.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from streamrace.reports.data import frames, schema
from streamrace.reports.data.whole import replace_file

COLUMNS = {
    "parameter": "str",
    "step": "int64",
    "uses": "int64",
    "wrong": "int64",
    "older": "int64",
    "not_finite": "int64",
    "first_rank": "int64",
    "turn": "int64",
}
_LATER = {"turn": -1}  # columns that earlier versions did not write


def of(uses: pd.DataFrame) -> pd.DataFrame:
    """Return a row per parameter and step, of :func:`parameters`, ordered by name, then step.

    A use is wrong if it has a reference and differs from it. A wrong use is not_finite if it holds values that are not
    finite; else older, if every wrong part equals that part of the reference in an earlier step, on any rank. turn:
    index, from 0, of the first wrong use among its rank's uses in that step; -1: no use is wrong.
    """
    keys = ["parameter", "step"]
    wrong = ~uses["equal"] & uses["reference_checksums"].notna()
    not_finite = wrong & (uses["bad"] > 0)
    older = pd.Series(False, index=uses.index)
    suspects = uses[wrong & ~not_finite]
    older.loc[suspects.index] = _older(suspects, uses)
    counted = pd.DataFrame(
        {
            **{key: uses[key] for key in keys},
            "uses": 1,
            "wrong": wrong,
            "older": older,
            "not_finite": not_finite,
            "first_rank": uses["rank"].where(wrong, np.iinfo(np.int64).max),
            "turn": uses.groupby(["rank", "step"], sort=False).cumcount().where(wrong, np.iinfo(np.int64).max),
        }
    )
    sums = ["uses", "wrong", "older", "not_finite"]
    counted[sums] = counted[sums].astype("int64")
    rows = counted.groupby(keys, sort=True).agg({**dict.fromkeys(sums, "sum"), "first_rank": "min", "turn": "min"})
    rows = rows.reset_index()
    rows.loc[rows["wrong"] == 0, ["first_rank", "turn"]] = -1
    return rows.astype(COLUMNS)


def _older(suspects: pd.DataFrame, uses: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return, per suspect, whether every wrong part is from an earlier step."""
    if suspects.empty:
        return np.zeros(0, dtype=np.bool_)
    named = uses["parameter"].isin(suspects["parameter"].unique()) & uses["reference_checksums"].notna()
    refs = _parts(uses[named].drop_duplicates(["parameter", "step", "reference_checksums"]), "reference_checksums")
    since = refs.groupby(["parameter", "part", "word"], sort=False)["step"].min().rename("since").reset_index()
    # Ranks and micro-batches mostly hold the same values: each distinct set of words is examined once.
    same = suspects.groupby(["parameter", "step", "checksums", "reference_checksums"], sort=False).ngroup()
    once = suspects[~same.duplicated()]
    own, reference = _parts(once, "checksums"), _parts(once, "reference_checksums")
    wrong = own.merge(reference[["row", "part", "word"]], on=["row", "part"], how="left", suffixes=("", "_right"))
    wrong = wrong[wrong["word"] != wrong["word_right"]]
    wrong = wrong.merge(since, on=["parameter", "part", "word"], how="left")
    earlier = (wrong["since"] < wrong["step"]).groupby(wrong["row"]).all()
    older = earlier.reindex(once.index, fill_value=False).to_numpy(dtype=np.bool_)
    return np.asarray(older[same.to_numpy()], dtype=np.bool_)


def _parts(uses: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a row for each part of each use: row (of ``uses``), parameter, step, part, word (its checksum)."""
    words = uses[column].str.split(" ").explode()
    frame = pd.DataFrame({"row": words.index, "word": words.to_numpy()})
    frame["part"] = frame.groupby("row", sort=False).cumcount()
    return frame.join(uses[["parameter", "step"]], on="row")


def write(table: pd.DataFrame, file: Path) -> None:
    """Write a table of :func:`of`, whole or not at all. The same table gives the same bytes. Raises OSError."""
    packed = table.assign(parameter=table["parameter"].astype("category"))  # repeated names take no space
    replace_file(file, lambda beside: packed.to_parquet(beside, engine="pyarrow", index=False))


def read(file: Path) -> pd.DataFrame:
    """Read a file of :func:`write`. Raises :class:`streamrace.reports.data.schema.ReportError` for any other file."""
    table = frames.read_parquet(file, COLUMNS, later=_LATER)
    counts = ["uses", "wrong", "older", "not_finite"]
    if (
        (table["step"] < 0).any()
        or (table[counts] < 0).any(axis=None)
        or (table[["first_rank", "turn"]] < -1).any(axis=None)
    ):
        raise schema.does_not_hold(file, "a count is below 0")
    return table
