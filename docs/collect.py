"""Runs the studies, and keeps the tables and pictures that they leave, with the command, the date and the versions.

``python docs/collect.py [STUDY...]`` (``make results``) writes to ``docs/results/data/``. The tables of the pages in
``docs/results/`` are made of these files when the site is built (``docs/hooks.py``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "results" / "data"
MANIFEST = DATA / "manifest.json"
RUNS = Path("runs") / "results"


class Study(NamedTuple):
    """``arguments`` behind ``streamrace``; ``kept``: files of the run's folder, by their names in the data.

    ``module``: the command line, as of ``python -m``.
    """

    arguments: str
    kept: dict[str, str]
    module: str = "streamrace"

    @property
    def command(self) -> str:
        return f"{'' if self.module == 'streamrace' else 'python -m '}{self.module} {self.arguments}".rstrip()


STUDIES = {
    "sweep": Study(
        "sweep --nodes 8 --checkpointing --overwrite --deepspeed 0.13.4",
        {
            "sweep.csv": "sweep.csv",
            "report/phase-diagram.png": "phase-diagram.png",
            "report/throughput.png": "throughput.png",
        },
    ),
    "sweep-2-nodes": Study(
        "sweep --nodes 2 --checkpointing --overwrite --deepspeed 0.13.4",
        {"sweep.csv": "sweep-2-nodes.csv", "report/phase-diagram.png": "phase-diagram-2-nodes.png"},
    ),
    "sweep-host": Study(
        "sweep --nodes 8 --checkpointing --overwrite --deepspeed 0.13.4 --host epyc-7003",
        {"sweep.csv": "sweep-host.csv"},
    ),
    "why": Study(
        "why --overwrite", {"why.csv": "why.csv", "losses.csv": "why-losses.csv", "report/why.png": "why.png"}
    ),
    "memory": Study(
        "memory --nodes 8 --checkpointing --overwrite",
        {"memory.csv": "memory.csv", "limits.csv": "memory-limits.csv", "report/memory.png": "memory.png"},
    ),
    "trackers": Study("memory --trackers --overwrite", {"trackers.csv": "trackers.csv"}),
    "network": Study(
        "network --overwrite", {"network.csv": "network.csv", "rings.csv": "network-rings.csv"}, module="papers"
    ),
    "paro": Study("paro --overwrite", {"live.csv": "paro-live.csv"}, module="papers"),
    "paro-paper": Study(
        "paro --paper --overwrite",
        {
            "gains.csv": "paro-gains.csv",
            "scaling.csv": "paro-scaling.csv",
            "rings.csv": "paro-rings.csv",
            "slow-node.csv": "paro-slow-node.csv",
            "sizes.csv": "paro-sizes.csv",
            "large.csv": "paro-large.csv",
        },
        module="papers",
    ),
    "paro-sweep": Study(
        "paro --sweep --overwrite", {"sweep.csv": "paro-sweep.csv", "sweep.png": "paro-sweep.png"}, module="papers"
    ),
    "paper-rows": Study(
        "paper --parts rows --overwrite",
        {"rows.csv": "paper-rows.csv", "unknowns.csv": "paper-unknowns.csv"},
        module="papers",
    ),
    "paper": Study(
        "paper --parts gains,losses,quantization --overwrite",
        {
            "gains.csv": "paper-gains.csv",
            "losses.csv": "paper-losses.csv",
            "quantization.csv": "paper-quantization.csv",
        },
        module="papers",
    ),
    "throughput": Study(
        "throughput --overwrite",
        {"throughput.csv": "published-steps.csv", "throughput.png": "published-steps.png"},
        "papers",
    ),
    "pipelines": Study(
        "throughput --model-parallel --overwrite",
        {"throughput.csv": "published-model-parallel.csv", "throughput.png": "published-model-parallel.png"},
        "papers",
    ),
    # What the reviewers ask for, part by part: each can be run again by itself.
    "validation": Study(
        "reviewers --parts validation --overwrite",
        {"validation.csv": "validation.csv", "validation.png": "validation.png"},
        module="papers",
    ),
    "batches": Study(
        "reviewers --parts batches --overwrite",
        {
            "batches.csv": "batches.csv",
            "batches-gains.csv": "batches-gains.csv",
            "batches-crossings.csv": "batches-crossings.csv",
            "batches.png": "batches.png",
        },
        module="papers",
    ),
    "pareto": Study(
        "reviewers --parts pareto --overwrite",
        {"pareto.csv": "pareto.csv", "pareto.png": "pareto.png"},
        module="papers",
    ),
    "failure": Study(
        "reviewers --parts failure --overwrite",
        {"failure.csv": "failure.csv", "failure-events.csv": "failure-events.csv", "failure.png": "failure.png"},
        module="papers",
    ),
    "placements": Study(
        "placements --nodes 8 --checkpointing",
        {
            "placements.csv": "placements.csv",
            "cheapest.csv": "placements-cheapest.csv",
            "sites.csv": "placements-sites.csv",
            "report/placements.png": "placements.png",
        },
    ),
    "kernels": Study("kernels --overwrite", {"kernels.csv": "kernels.csv"}),
    "catalogue": Study("catalogue --torch --overwrite", {"report/metrics.csv": "catalogue.csv"}),
    "releases": Study("releases", {"report/metrics.csv": "releases.csv"}),
    "reach": Study("", {"reach.csv": "reach.csv"}, module="benchmarks.reach"),
    "peers": Study("", {"peers.csv": "peers.csv"}, module="benchmarks.peers"),
    "peers-real-build": Study("--real-build", {"real-build.csv": "peers-real-build.csv"}, module="benchmarks.peers"),
}


def collect(name: str) -> None:
    """Run a study as a user does; what it left in ``docs/results/data`` earlier stays where it fails."""
    study = STUDIES[name]
    python = Path(sys.prefix, "reach", "bin", "python") if name == "reach" else sys.executable  # as `make reach` has it
    command = [python, "-m", study.module, *study.arguments.split(), "--name", name, "--runs", str(RUNS)]
    subprocess.run(command, cwd=ROOT, check=True)
    for left, kept in study.kept.items():
        shutil.copyfile(ROOT / RUNS / name / left, DATA / kept)
    known = json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}
    known[name] = {
        "command": study.command,
        "date": date.today().isoformat(),
        "versions": {package: version(package) for package in ("streamrace", "deepspeed", "torch")},
        "files": sorted(study.kept.values()),
    }
    MANIFEST.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(STUDIES)
    if unknown := [name for name in chosen if name not in STUDIES]:
        raise SystemExit(f"there is no study {unknown[0]}: choose from {', '.join(STUDIES)}")
    DATA.mkdir(parents=True, exist_ok=True)
    for each in chosen:
        print(f"results: {each}", flush=True)
        collect(each)
