"""Every kind of file that a command reads, whole: each in a folder ``it``, and the command that reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from streamrace.detectors.values.recordings import Recorder
from streamrace.device.hardware import load_profile
from streamrace.device.hardware.profile import _PROFILES
from streamrace.replay.record import record
from streamrace.reports.data import known_findings
from streamrace.reports.data.known_findings import Known
from streamrace.reports.data.schema import KeptSuppression
from streamrace.scenarios.models import build
from streamrace.scenarios.scenario import Scenario, save
from streamrace.scenarios.sharding import checkpoint_index as checkpoints
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import Begin
from tests.calibration import traces
from tests.check.flight_recordings import recorders
from tests.detectors.test_recordings import INFO, step
from tests.formats import checked_runs
from tests.kineto.profiled import Profiled
from tests.live.test_incident import save as save_incident
from tests.replay.test_damaged import small
from tests.reports import study_folders, test_explanation
from tests.reports.campaign_folders import campaign
from tests.reports.run_folders import run_folder

PROFILE = "a100-100gbps"
_SIZE = ("--size", "tiny", "--steps", "4", "--ranks", "2", "--nodes", "1", "--hpz", "1")


@dataclass(frozen=True)
class FileKind:
    """``make`` writes it into a folder that is not there yet; ``command`` reads it there, where it is ``it``.

    ``files``: patterns of those that are damaged.
    """

    make: Callable[[Path], object]
    command: Sequence[str]
    files: Sequence[str] = ("*",)


def _recording(folder: Path) -> None:
    for rank in (0, 1):
        recorder = Recorder(folder, rank=rank, world=2, info=INFO)
        for number in (1, 2):
            recorder.add(step(rank, number, {}))
        recorder.close()


def _dumps(form: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for rank in (ranks := recorders(2)):
            rank.call("_all_gather_base", 10, out=(8,))
            rank.between("send" if rank is ranks[0] else "recv", 1 - rank.rank, 11)
            rank.write(folder, form).rename(folder / f"dump_{rank.rank}.{form}")

    return make


def _profiled(folder: Path) -> None:
    folder.mkdir()
    (folder / "trace.json").write_text(json.dumps(traces.of(load_profile(PROFILE))))
    _profile(folder)


def _ordered(folder: Path) -> None:
    folder.mkdir()
    made = Profiled()
    made.work("gemm", 7)
    made.wait(20, made.record(), 7)
    made.host("Stream Sync", stream=7)
    made.work("ncclDevKernel_AllReduce", 20, thread=2)
    made.around("train.py(3): step", "python_function", thread=2)
    made.write(folder)


def _profile(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    shutil.copy(_PROFILES / "dgx-a100-roce.toml", folder / "base.toml")


def _deepspeed(folder: Path) -> None:
    folder.mkdir()
    zero = {
        "stage": 3,
        "zero_hpz_partition_size": "auto",
        "reduce_bucket_size": "auto",
        "offload_param": {"device": "none"},
        "offload_optimizer": None,
    }
    settings = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": zero,
        "wall_clock_breakdown": False,
    }
    (folder / "ds.json").write_text(json.dumps(settings))


def _checkpoint(folder: Path) -> None:
    made = Scenario(sharding="IIG", size="tiny", steps=2, ranks=2, nodes=1, hpz=1)
    place = checkpoints.of_step(folder, 1)
    place.mkdir(parents=True)
    save(made, folder / "scenario.json")
    forms = checkpoints.forms(build(made.model, made.size, vocab_size=made.vocabulary, seed=0), torch.bfloat16)
    held = checkpoints.File(size=0, sha256="0" * 64, holds={name: (0, form.numel) for name, form in forms.items()})
    index = checkpoints.Index(
        step=1, optimizer="AdamW", elements=(), scalars=(), parameters=forms, files={"rank-0.safetensors": held}
    )
    (place / checkpoints.INDEX).write_text(index.text())


def _recorded(folder: Path) -> None:
    """A program's recording, as 'streamrace device --record' leaves it."""
    folder.mkdir()
    records = record(small).records[0]
    begin = records[0]
    assert isinstance(begin, Begin)
    writer = TraceWriter(file_of(folder, 0), rank=0, world=1, info=begin.info)
    writer.write(records[1:])
    writer.close()


_RACES = "import torch\n"


def _baseline(folder: Path) -> None:
    folder.mkdir()
    found = known_findings.of(checked_runs.run(answers=[checked_runs.wrong()]))
    (folder / "known.json").write_text(known_findings.text(found, [None] * len(found)))
    (folder / "train.py").write_text(_RACES)


def _config(folder: Path) -> None:
    """It stands in the working folder."""
    folder.mkdir()
    (folder / "train.py").write_text(_RACES)
    (folder.parent / "pyproject.toml").write_text(
        '[tool.streamrace]\nranks = 1\nslow = ["kernel:aten::mm=20"]\nformat = "sarif"\n'
        '[tool.streamrace.check]\nreport = true\nnetwork = 100.0\ndry = true\nhardware = "a100-100gbps"\n'
    )


def _checked(folder: Path) -> None:
    why = [KeptSuppression("comment", "it is meant", "train.py", 7), None, None]
    found = checked_runs.run(
        holding=checked_runs.fragile(), answers=[checked_runs.wrong()], known=Known(why, (), ["x"])
    )
    checked_runs.folder_of(found, folder)


def _sweep(folder: Path) -> None:
    study_folders.sweep_folder(folder)


def _placements(folder: Path) -> None:
    study_folders.placements_folder(folder, study_folders.placements_frame(), study_folders.sites_frame())


def _to_be_a_test(folder: Path) -> None:
    _checked(folder)
    (folder.parent / "train.py").write_text("import torch\n")


def _witnessed(folder: Path) -> None:
    test_explanation.judged(test_explanation.early(), folder)
    test_explanation.kept(folder)


_REPORT = ("report", "it")
KINDS = {
    "a run": FileKind(run_folder, _REPORT),
    "a run beside another": FileKind(run_folder, ("report", "it", "other")),
    "a run's trace": FileKind(run_folder, _REPORT, ("trace/*",)),
    "a checked program, for code scanning": FileKind(_checked, ("report", "it", "--format", "sarif")),
    "a checked program, for a test server": FileKind(_checked, ("report", "it", "--format", "junit")),
    "a checked program, for a workflow": FileKind(_checked, ("report", "it", "--format", "github")),
    "a race, to be a test": FileKind(_to_be_a_test, ("emit-test", "it", "1"), ("findings.json",)),
    "a race, to be explained": FileKind(
        _witnessed,
        ("explain", "it", "1", "--report", "--output", "it/report"),
        ("findings.json", "witnesses.json", "trace/*", "sources.json"),
    ),
    "a baseline": FileKind(
        _baseline,
        ("check", "--name", "it", "--overwrite", "--baseline", "it/known.json", "it/train.py"),
        ("known.json",),
    ),
    "settings in pyproject.toml": FileKind(
        _config, ("check", "--name", "it", "--overwrite", "it/train.py"), ("../pyproject.toml",)
    ),
    "a campaign": FileKind(lambda folder: campaign(folder, fix="none", diverged=2, timings=9), _REPORT),
    "a sweep": FileKind(_sweep, _REPORT),
    "placements": FileKind(_placements, _REPORT),
    "waits": FileKind(lambda folder: study_folders.waits_folder(folder, study_folders.wait_row()), _REPORT),
    "a fix": FileKind(lambda folder: study_folders.fix_folder(folder, study_folders.fix_row()), _REPORT, ("*.json",)),
    "releases": FileKind(
        lambda folder: study_folders.releases_folder(
            folder, {"0.19.8": ("clean", "race"), "0.13.1": ("stale", "uncovered")}
        ),
        _REPORT,
        ("study.json", "../it.json"),
    ),
    "an incident": FileKind(save_incident, _REPORT, ("*.json", "*/*.csv")),
    "a recording of the watch": FileKind(_recording, ("diverge", "it", "other")),
    "a profiler's trace": FileKind(
        _profiled, ("calibrate", "it/trace.json", "--base", "it/base.toml", "--out", "mine.toml", "--overwrite")
    ),
    "a profiler's trace, for its order": FileKind(_ordered, ("judge", "it/trace.json")),
    "a profile": FileKind(
        _profile, ("choose", "--model", "llama-2-7b", "--hardware", "it/base.toml", "--csv", "out.csv")
    ),
    "a job's profile": FileKind(_profile, ("dry", "--hardware", "it/base.toml", "--name", "it", "--overwrite")),
    "a DeepSpeed JSON": FileKind(_deepspeed, ("dry", "--config", "it/ds.json", "--name", "it", "--overwrite")),
    "a checkpoint": FileKind(
        _checkpoint,
        ("run", "--sharding", "IIG", "--resume", "it", *_SIZE, "--name", "again", "--overwrite"),
        ("*.json", "checkpoints/*/*.json"),
    ),
    "dumps of a flight recorder": FileKind(_dumps("pickle"), ("hang", "it")),
    "dumps of a flight recorder, as JSON": FileKind(_dumps("json"), ("hang", "it")),
    "a program's recording": FileKind(_recorded, ("replay", "it")),
}
