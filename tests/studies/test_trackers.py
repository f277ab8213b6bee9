"""The peak memory of a dry run is what torch's own tracker counts for the same step."""

from __future__ import annotations

import json
from pathlib import Path

from streamrace.scenarios.tracked_program import TrackedCase
from streamrace.studies.trackers import COLUMNS, study

SHAPE = {"hidden_size": 42, "intermediate_size": 101, "num_attention_heads": 3, "num_key_value_heads": 3}


def test_torchs_own_tracker_says_the_same_peak_of_a_small_model(tmp_path: Path) -> None:
    """Odd sizes, so that the rounding of small tensors matters; kept scores, so that activations do."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 301, **SHAPE}))
    case = TrackedCase(str(path), "bf16", "eager", checkpointing=False, micro_batch=3, sequence=77)
    frame = study([case], tmp_path / "runs", workers=1)
    assert list(frame.columns) == list(COLUMNS)
    (row,) = frame.to_dict("records")
    assert row["theirs"] > 1 << 20  # more than the parameters
    assert abs(row["error"]) <= 0.01
    assert not list((tmp_path / "runs").iterdir())  # traces are large
