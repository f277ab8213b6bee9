"""Builds tables of the values of a run and its reference.

``metrics.csv`` has the losses, ``parameters.csv`` each use of a parameter, ``checksums.parquet`` these counted.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from streamrace.detectors import Values
from streamrace.reports.data import checksums

# The columns of parameters.csv from which uses are counted.
PARAMETERS = {
    "step": "int64",
    "rank": "int64",
    "parameter": "str",
    "checksums": "str",
    "bad": "int64",
    "reference_checksums": "str",
    "equal": "bool",
}


def metrics(run: Values, reference: Values) -> pd.DataFrame:
    """Return a row per loss.

    Columns: step, micro_batch, rank, loss, reference_loss, equal, gradient_norm, reference_gradient_norm. The norms are
    those of the whole step, in the row of its last micro-batch.
    """
    rows = []
    for rank, losses in sorted(run.losses.items()):
        reference_losses = {(loss.step, loss.micro_batch): loss.value for loss in reference.losses.get(rank, ())}
        last = {loss.step: loss.micro_batch for loss in losses}
        norms = [values.norms.get(rank, {}) for values in (run, reference)]
        rows += [
            (
                loss.step,
                loss.micro_batch,
                rank,
                loss.value,
                reference_losses.get((loss.step, loss.micro_batch)),
                *(norm.get(loss.step) if last[loss.step] == loss.micro_batch else None for norm in norms),
            )
            for loss in losses
        ]
    numbers = ["loss", "reference_loss", "gradient_norm", "reference_gradient_norm"]
    table = pd.DataFrame(rows, columns=["step", "micro_batch", "rank", *numbers])
    table[numbers] = table[numbers].astype("float64")
    equal = (table["loss"] == table["reference_loss"]) | (table["loss"].isna() & table["reference_loss"].isna())
    table.insert(5, "equal", equal)
    return table.sort_values(["step", "micro_batch", "rank"], ignore_index=True)


def parameters(run: Values, reference: Values) -> pd.DataFrame:
    """Return a row per use of a parameter: where, its checksums (hexadecimal, one per part) and the reference's.

    ``bad``: values that are not finite; ``distance``: of the backward pass from the forward pass.
    """
    columns = ["step", "micro_batch", "phase", "rank", "parameter", "occurrence"]

    def table(values: Values) -> pd.DataFrame:
        rows = [
            (
                use.step,
                use.micro_batch,
                use.phase,
                rank,
                use.name,
                " ".join(f"{checksum:08x}" for checksum in use.checksums),
                use.bad,
                use.distance,
            )
            for rank, uses in sorted(values.uses.items())
            for use in uses
        ]
        frame = pd.DataFrame(rows, columns=[*columns[:-1], "checksums", "bad", "distance"])
        frame.insert(5, "occurrence", frame.groupby(columns[:-1]).cumcount() + 1)
        return frame

    ours = table(run)
    expected = table(reference)[[*columns, "checksums"]].rename(columns={"checksums": "reference_checksums"})
    merged = ours.merge(expected, on=columns, how="left")
    merged["equal"] = merged["checksums"] == merged["reference_checksums"]
    return merged


def write(run: Values, reference: Values, folder: Path) -> None:
    uses = parameters(run, reference)
    metrics(run, reference).to_csv(folder / "metrics.csv", index=False, na_rep="nan")
    uses.to_csv(folder / "parameters.csv", index=False, na_rep="nan")
    checksums.write(checksums.of(uses), folder / "checksums.parquet")
