"""The model of kernels beside what others have measured: how far it is off, by kind of kernel."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from click.testing import CliRunner

from streamrace.repro.commands.study import command
from streamrace.studies import kernels

# Mean absolute errors, as they are: a model that does worse than this has changed.
KNOWN = {
    ("a100", "matmul"): 0.08,
    ("v100", "matmul"): 0.10,
    ("a100", "add"): 0.05,
    ("a100", "softmax"): 0.08,
    ("h100", "attention forward"): 0.02,
    ("h100", "attention forward causal"): 0.04,
    ("h100", "attention backward"): 0.03,
}


def test_every_measurement_has_a_source_and_a_figure_of_ours() -> None:
    frame = kernels.study()
    assert len(frame) > 100
    assert set(frame["source"]) == set(kernels.SOURCES)
    assert (frame["ours_us"] > 0).all()


def test_the_model_is_as_near_to_what_was_measured_as_is_said() -> None:
    found = kernels.summary(kernels.study())
    errors = {(row.gpu, row.kernel): row.mean_error for row in found.itertuples()}
    assert errors.keys() == KNOWN.keys()
    for what, error in errors.items():
        assert error <= KNOWN[what], what


def test_the_command_tells_them_and_keeps_all_rows(tmp_path: Path) -> None:
    told = CliRunner().invoke(command("kernels"), ["--runs", str(tmp_path)], catch_exceptions=False)
    assert told.exit_code == 0
    assert "attention forward" in " ".join(told.output.split())
    assert len(pd.read_csv(tmp_path / "kernels" / "kernels.csv")) == len(kernels.study())
