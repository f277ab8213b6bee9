"""Small folders of studies for tests, with the tables that the commands leave. No study runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.reports.data.catalogue import CatalogueFile, EntryRow, RanSide
from streamrace.reports.data.fixes import FixFile, FixRow
from streamrace.reports.data.waits import RacePair, WaitRow, WaitsFile
from streamrace.reports.pages.study_folder import note
from streamrace.reports.pages.study_page import StudyMetadata
from streamrace.studies import kernels
from streamrace.studies.memory import AT_PEAK
from streamrace.studies.plan import COLUMNS
from tests.reports.run_folders import run_folder

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
CONFIGURATIONS = ("hpZ none", "hpZ stream-sync", "hpZ event", "ZeRO-3")


def sweep_frame(
    networks: Sequence[float] = (1.0, 10.0, 100.0),
    batches: Sequence[int] = (1, 4),
    configurations: Sequence[str] = CONFIGURATIONS,
    racing: Sequence[str] = ("hpZ none",),
) -> pd.DataFrame:
    """hpZ is 1.4 times as fast on the slowest network and pays nothing on the fastest; there the race shows, from
    micro-batch 4 on."""
    rows = []
    for configuration in configurations:
        for batch in batches:
            for network in networks:
                step = 40.0 / network + batch
                gain = 1.4 if network == min(networks) else 1.0 if network == max(networks) else 1.2
                race = configuration in racing
                shown = 8 * (race and network == max(networks) and batch >= 4)
                rows.append(
                    {
                        "configuration": configuration,
                        "network": network,
                        "micro_batch": batch,
                        "step_s": step * gain if configuration == "ZeRO-3" else step,
                        "tokens_per_second": 2048 * batch / step,
                        "tflops_per_gpu": 100.0 / step,
                        "races": 2 * race,
                        "pairs": 8 * race,
                        "manifested": shown,
                        "slack_us": (-2500.0 if shown else 1500.25) if race else None,
                        "memory_gib": 10.0 + 30 * batch,
                        "fits": batch < 4,
                    }
                )
    return pd.DataFrame(rows)


def sweep_folder(folder: Path, frame: pd.DataFrame | None = None, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (sweep_frame() if frame is None else frame).to_csv(folder / "sweep.csv", index=False)
    job = {"model": "llama-2-7b", "nodes": 8, "gpus": 8, "hpz": 8, "hardware": "a100", "checkpointing": True}
    return _noted(folder, "sweep", {**job, **options})


def placements_frame(model: str = "llama-2-7b", racing: Sequence[str] = ("none", "turn-sync")) -> pd.DataFrame:
    rows = []
    for gbits in (12.5, 100.0):
        for at, fix in enumerate(("none", "stream-sync", "module-event", "turn-sync", "copy-event")):
            step = 10.0 + (0.002 if fix == "stream-sync" else 0.0)
            rows.append(
                {
                    "model": model, "gbits": gbits, "fix": fix, "where": "" if fix == "none" else "after each copy",
                    "what": "what it does", "race_free": fix not in racing, "races": 6 * (fix in racing),
                    "manifested": 3 * (fix in racing), "pairs": "write | read" * (fix in racing), "memory": "",
                    "example": "", "step_s": step, "slowdown": step / 10.0, "host_blocked_s": 9.0 + at / 10,
                    "waits": 291 * fix.endswith("sync"), "waited_s": 4.5 * fix.endswith("sync"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def sites_frame(note: str = "") -> pd.DataFrame:
    rows = [
        (
            "stream.synchronize",
            1951,
            True,
            "write by copy_ (a.py:1) | read by cat (b.py:2); more | still",
            "carries load",
        ),
        ("event.synchronize", 404, False, "", "redundant here"),
        ("work.wait", 720, False, "", "breaks the run"),
    ]
    return pd.DataFrame(
        [
            {
                "operation": operation, "function": "Init._partition_param_sec", "file": "deepspeed/zero/it.py",
                "line": line, "count": 21, "race": race, "pairs": pairs, "diverges": race, "verdict": verdict,
                "note": note,
            }
            for operation, line, race, pairs, verdict in rows
        ]
    )  # fmt: skip


def placements_folder(folder: Path, frame: pd.DataFrame | None, sites: pd.DataFrame | None, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("placements.csv", frame), ("sites.csv", sites)):
        if table is not None:
            table.to_csv(folder / name, index=False)
    return _noted(folder, "placements", {"nodes": 8, "gpus": 8, **options})


def memory_folder(folder: Path) -> Path:
    """A model that fits a card of 40 GB with hpZ 8, and one that does not."""
    rows = [
        {"model": model, "group": group, "qwz": False, "parameters": size, "secondary": 2 * size // group * (group > 1),
         "formula": 2 * size / group * (group > 1), "error": 0.0 if group > 1 else None, "peak": 3 * size // group,
         "phase": "backward", **dict.fromkeys(AT_PEAK, 3 * size // group // len(AT_PEAK))}
        for model, size in (("llama-2-7b", 8 * 10**9), ("llama-2-70b", 8 * 10**10)) for group in (1, 2, 8)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "memory.csv", index=False)
    return _noted(folder, "memory", {"nodes": 8, "gpus": 8, "hardware": "a100"})


def kernels_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kernels.study().to_csv(folder / "kernels.csv", index=False)
    return _noted(folder, "kernels", {})


def release(folder: Path, kind: str) -> dict[str, Any]:
    """What a run under a release found: clean, race (with wrong values), stale or uncovered."""
    changes: dict[str, Any] = {"causes": [] if kind == "clean" else [kind]}
    if kind == "race":
        changes["diverged"] = True
    elif kind == "stale":
        changes |= {"verdict": "stale", "diverged": True, "stale": STALE}
    elif kind == "uncovered":
        changes |= {"verdict": "uncovered", "uncovered": [UNCOVERED]}
    run_folder(folder, clean=kind != "race", **changes)
    found: dict[str, Any] = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    return found


STALE = {
    "step": 2, "micro_batch": 1, "phase": "backward", "rank": 0, "name": "a.weight", "version": 1, "edited": False,
    "uses": 3, "names": ["a.weight"], "ranks": [0, 1], "distance": 0.1,
}  # fmt: skip
UNCOVERED = {"kernel": "aten::cat", "stack": [], "reads": 3, "nbytes": 10880, "names": ["a.weight"], "ranks": [0]}


def plan_folder(folder: Path, **changes: Any) -> Path:
    """Five ways: one that fits and is the fastest, one with a race, one too large, and one that cannot run."""
    folder.mkdir(parents=True, exist_ok=True)
    usual = {"engine": "DeepSpeed", "within_s": 0.4, "other_s": 0.1, "idle_s": 0.02, "tflops_per_gpu": 60.0,
             "states_gib": 20.0, "gpu_gib": 80.0, "fits": True, "races": 0, "manifested": 0, "reason": "",
             "groups": "nccl world: 4 s"}  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "IIG": {"engine": "our own", "between_s": 3.5, "peak_gib": 50.0},
        "hpZ 8": {"between_s": 4.0, "peak_gib": 52.0, "races": 2, "manifested": 12},
        "ZeRO-3": {"between_s": 9.0, "peak_gib": 44.0},
        "ZeRO-1": {"between_s": 8.0, "peak_gib": 130.0, "fits": False},
    }
    rows = []
    for name, own in ways.items():
        step = own["between_s"] + 2.52
        speed = {"step_s": step, "compute_s": 2.0, "tokens_per_second": 65536 / step}
        rows.append({"strategy": name, **usual, **speed, **own, **changes})
    rows.append({**rows[0], "strategy": "NNI", "fits": False, "reason": "the model multiplies by its embedding"})
    for name, kind in COLUMNS.items():
        if kind == "float64" and name != "gpu_gib":
            rows[-1][name] = None
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(folder / "plan.csv", index=False)
    job = {"model": "llama-2-7b", "nodes": 4, "gpus": 8, "hardware": "a100", "network": 25.0, "micro_batch": 1,
           "accumulation": 1, "sequence": 2048, "checkpointing": False, "config": None}  # fmt: skip
    return _noted(folder, "plan", job)


def releases_folder(folder: Path, kinds: Mapping[str, tuple[str, str] | str]) -> Path:
    """By release what its two runs found, or why it did not run."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    for at, (name, kind) in enumerate(kinds.items()):
        if isinstance(kind, str):
            rows[name] = {"failure": kind}
        else:
            plain, edited = (release(folder / f"{at}-{number}", one) for number, one in enumerate(kind))
            rows[name] = {"plain": plain, "edited": edited}
    (folder.parent / f"{folder.name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return _noted(folder, "releases", {})


def wait_row(**other: Any) -> WaitRow:
    """A line that carries load, or what ``other`` makes of it."""
    race = RacePair(kind="write-read", first="write by add (train.py:6 step)", second="read by mul (m.py:9 f)", times=3)
    row: dict[str, Any] = {
        **{"how": "stream.wait_event", "file": "torch/distributed/fsdp/_fully_shard/_fsdp_state.py", "line": 153},
        **{"function": "FSDPState._root_pre_forward", "verdict": "carries load", "count": 6, "held_ns": 1_359_000},
        **{"races": [race], "live": "agrees", "says": "a live run without it has the same race, harmful"},
        **{"harm": "harmful", "token": "t1,0/0/aten::addcdiv/1+128us", "command": "streamrace device train.py"},
    }
    return WaitRow(**{**row, **other})


REDUNDANT = {"verdict": "redundant", "races": [], "chain": ["stream 'a' waits for stream 'b' (train.py:3)"]}


def waits_folder(folder: Path, *rows: WaitRow, scope: str = "This program.", **other: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    given = {"asked": {"program": "train.py"}, "versions": VERSIONS, "base": 0, "others": 2, "together": []}
    WaitsFile(scope=scope, waits=list(rows), **{**given, **other}).write(folder)
    return _noted(folder, "waits", {})


def fix_row(**other: Any) -> FixRow:
    """A candidate that was tried and is clean, or what ``other`` makes of it."""
    place = "deepspeed/runtime/zero/partition_parameters.py"
    row: dict[str, Any] = {
        **{"how": "event", "words": f"an event recorded behind {place}:1643", "holds": True, "longer_ns": 0},
        **{"diff": f"--- a/{place}\n+++ b/{place}\n@@ -1 +1,2 @@\n import torch\n+_done.record()\n", "live": "clean"},
        **{"says": "the race is gone, and no other comes; 2 other races of the program stay", "live_longer_ns": 1500},
    }
    return FixRow(**{**row, **other})


HOST = {"how": "device synchronisation", "longer_ns": 160_000, "live": "not tried", "says": "", "live_longer_ns": None}


def fix_folder(folder: Path, *rows: FixRow, **other: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    race = RacePair(kind="write-read", first="write by copy_ (a.py:6 step)", second="read by cat (m.py:9 f)", times=3)
    given = {"run": "it", "number": 1, "race": race, "missing": "stream 'a' never waits for stream 'b'"}
    given |= {"asked": {"program": "train.py"}, "versions": VERSIONS, "end_ns": 2_449_021, "best": 0}
    FixFile(rows=list(rows), **{**given, **other}).write(folder)
    return _noted(folder, "fix", {})


def catalogue_folder(folder: Path) -> Path:
    """A race that its fixed release has lost, and a bug with the same symptom that is none."""
    folder.mkdir(parents=True, exist_ok=True)
    place = "deepspeed/runtime/zero/partition_parameters.py"
    clean = RanSide(ran="deepspeed 0.13.5", verdict="clean", sentence="Clean.", virtual_ns=2_000_000)
    race = RanSide(
        ran="deepspeed 0.13.4", verdict="race", sentence="A race.", races=1, harm="harmful", token="t1,jitter:20:7",
        lines=[f"write by copy_ ({place}:1643 it)", f"read by all_gather ({place}:93 it)"], command="streamrace it",
    )  # fmt: skip
    stale = RanSide(ran="deepspeed 0.13.1", verdict="stale", sentence="Stale.", evidence="64 of 64 elements are wrong")
    shared: dict[str, Any] = {
        "library": "deepspeed",
        "title": "a copy",
        "mechanism": "It is copied.",
        "known": "0.13.4",
    }
    shared |= {"program": "x.py", "threads": ["https://a.example/5059"], "fixed": clean}
    entries = [
        EntryRow(id="ds5059", kind="race", affected=race, **shared),
        EntryRow(id="ds4851", kind="stale", affected=stale, **shared),
    ]
    CatalogueFile(versions=VERSIONS, entries=entries).write(folder)
    return _noted(folder, "catalogue", {})


def _noted(folder: Path, study: Any, options: Mapping[str, Any]) -> Path:
    command = f"streamrace {study} --model llama-2-7b"
    note(
        folder,
        StudyMetadata(study=study, command=command, versions=VERSIONS, options=dict(options), hardware="eight A100"),
    )
    return folder
