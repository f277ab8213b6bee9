"""What a fuzzing campaign leaves in its folder, for tests of reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.reports.run_folders import run_folder

TOKEN = "t1,hpz,x2:stream:compute"


def campaign(folder: Path, *, fix: str, diverged: int, timings: int, **scenario: Any) -> Path:
    """What ``streamrace fuzz`` leaves; its race is that of a run's folder."""
    made = run_folder(folder.parent / f".{folder.name}-run", scenario={"fix": fix})
    run = json.loads((made / "findings.json").read_text())
    shutil.rmtree(made)
    rows = [
        {
            "number": number,
            "deviations": "",
            "diverged": number <= diverged,
            "wrong_values": 10 * number if number <= diverged else 0,
            "bad_numbers": 0,
            "loss_difference": 0.5 if number <= diverged else 0.0,
            "first_wrong": "model.a in step 2.1 backward rank 0" if number <= diverged else "",
            "departed": False,
        }
        for number in range(1, timings + 1)
    ]
    race = {key: value for key, value in run["races"][0].items() if key != "witness"}
    harmful = {"diverged": True, "sentence": "Training goes wrong: 7 values differ from the reference."}
    witness = {"race": race, "token": "t1,hpz,race", "reason": None, "harmful": True, "verdict": harmful}
    data = {
        "format": "stream-race-timings",
        "version": 1,
        "scenario": {**run["scenario"], **scenario},
        "campaign": {
            "timings": timings,
            "diverged": diverged,
            "outcomes": min(diverged, 5),
            "first": 1 if diverged else None,
            "minimal": True,
            "shrinking": 5,
            "interrupted": False,
            "rows": rows,
        },
        "token": TOKEN if diverged else None,
        "smallest": ["stream:compute takes 2 times as long"] if diverged else [],
        "live": None,
        "confirmed": None,
        "races": [witness] if diverged else [],
        "versions": run["versions"],
    }
    folder.mkdir()
    (folder / "timings.json").write_text(json.dumps(data))
    return folder
