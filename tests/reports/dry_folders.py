"""What a dry run leaves in its folder, for tests of reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.reports.run_folders import run_folder

SAID = {
    "verdict": "race, latent",
    "tone": "warn",
    "sentence": "A race that this timing does not show: another network or batch may.",
    "notes": ["16 ranks in 3 classes; 2 classes checked by a second member: all equal."],
}


def dry_folder(folder: Path, *, clean: bool = False, **changes: Any) -> Path:
    """What ``streamrace dry`` leaves; its races are those of a run's folder. ``changes``: keys to be otherwise."""
    made = run_folder(folder.parent / f".{folder.name}-run", clean=clean)
    run = json.loads((made / "findings.json").read_text())
    folder.mkdir(parents=True)
    shutil.move(made / "sources.json", folder / "sources.json")
    shutil.rmtree(made)
    job = {
        "model": "llama-2-7b", "nodes": 2, "gpus": 8, "hardware": "a100-12.5gbps", "stage": 3, "hpz": 8,
        "micro_batch": 1, "sequence": 2048, "fix": "stream-sync" if clean else "none", "deepspeed": "0.19.8",
    }  # fmt: skip
    groups = [{"name": "nccl world", "busy": 17_200_000_000, "exposed": 16_650_000_000}]
    step = {
        "step": 2, "start": 0, "time": 17_300_000_000, "compute": 643_200_000, "communication": 17_200_000_000,
        "exposed": 16_650_000_000, "other": 6_000_000, "idle": 800_000, "blocked": 17_260_000_000, "groups": groups,
    }  # fmt: skip
    memory = {
        "peak": 13_303_000_000, "exact_peak": 13_302_999_000, "alive": 0, "excess": None, "phases": [],
        "moment": {"time": 9, "step": 2, "micro_batch": 1, "phase": "backward", "record": 7},
        "kinds": {"optimizer": 3 << 30, "gathered": 1 << 30}, "kind_peaks": {"optimizer": 3 << 30, "gathered": 1 << 30},
    }  # fmt: skip
    races = [{key: value for key, value in race.items() if key != "witness"} for race in run["races"]]
    clear = {
        **SAID,
        "verdict": "clean",
        "tone": "good",
        "sentence": "Clean: all accesses on different streams are ordered.",
    }
    data = {
        "format": "stream-race-dry-run", "version": 1, "job": job, "parameters": 6_738_415_616, "micro_batch": 1,
        "accumulation": 1, "operations": 33_415, "step_s": 17.3, "tokens_per_second": 1893.6, "tflops_per_gpu": 5.08,
        "fits": True, "races": races, "steps": [step],
        "memory": memory, "said": clear if clean else SAID, "versions": run["versions"],
    }  # fmt: skip
    (folder / "dry.json").write_text(json.dumps(data | changes, indent=2) + "\n")
    return folder
