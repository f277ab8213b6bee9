"""Tables of what the models of kernels, network and memory say, beside what others measured."""

from __future__ import annotations

import pandas as pd

from docs.cells import GIB, Cells, Table, amount, configuration, form, name_of, off


def kernels(frame: pd.DataFrame) -> list[Cells]:
    """By kind and source: how far the model is off."""
    frame = frame.assign(absolute=frame["error"].abs())
    return [
        {
            "GPU": str(gpu).upper(),
            "kernel": str(kernel),
            "rows": f"{len(those)}",
            "mean error": f"{those['absolute'].mean():.1%}",
            "worst": f"{those['absolute'].max():.0%}",
            "measured by": str(source),
        }
        for (gpu, kernel, source), those in frame.groupby(["gpu", "kernel", "measured"], sort=False)
    ]


MODELS: dict[str, Table] = {
    "kernels": Table("kernels.csv", kernels),
    "memory": Table(
        "memory.csv",
        {
            "model": name_of,
            "parameters, billion": lambda row: f"{row.parameters / 1e9:.2f}",
            "configuration": configuration,
            "secondary copy, measured": lambda row: f"{row.secondary / GIB:.3f}" if row.group > 1 else "",
            "formula": lambda row: f"{row.formula / GIB:.3f}" if row.group > 1 else "",
            "error": lambda row: f"{row.error:.1%}" if row.group > 1 else "",
            "peak of all memory": lambda row: f"{row.peak / GIB:.2f}",
            "fits, GiB": lambda row: ", ".join(f"{card}" for card in (40, 80) if row.peak <= card * GIB) or "neither",
        },
    ),
    "memory-limits": Table(
        "memory-limits.csv",
        {
            "configuration": configuration,
            "card, GiB": lambda row: f"{row.card}",
            "does not fit from, billion parameters": lambda row: f"{row.parameters / 1e9:.0f}",
            "which lies": lambda row: "beyond the models measured" if row.beyond else "between two models measured",
        },
    ),
    "trackers": Table(
        "trackers.csv",
        {
            "model": name_of,
            "layers": lambda row: f"{row.layers or 'all'}",
            "precision": lambda row: row.precision,
            "attention": lambda row: row.attention,
            "checkpointing": lambda row: "yes" if row.checkpointing else "no",
            "micro-batch": lambda row: f"{row.micro_batch}",
            "FSDP2 on": lambda row: f"{row.ranks}" if getattr(row, "ranks", 1) > 1 else "",
            "peak, ours": lambda row: f"{row.ours / GIB:.4f}",
            "tracker's": lambda row: f"{row.theirs / GIB:.4f}",
            "apart, bytes": lambda row: f"{row.ours - row.theirs:,}",
            "error": lambda row: f"{row.error:+.1e}" if row.error else "0",
        },
    ),
    "network": Table(
        "network.csv",
        {
            "machine": lambda row: row.machine,
            "collective": lambda row: f"{row.collective.replace('_', '-')}, {amount(row.bytes)}",
            "theirs": lambda row: f"{row.reported:,.4g} {row.unit}",
            "ours": lambda row: f"{row.ours:,.4g} {row.unit}",
            "ours is faster by": off("error"),
            "SimAI": form("simai", ".0f"),
            "algorithm, protocol": lambda row: row.way,
            "what the model does not have": form("why", ""),
            "source": lambda row: row.source,
        },
    ),
    "network-rings": Table(
        "network-rings.csv",
        {
            "GPUs": form("ranks", ".0f"),
            "NCCL's rings use, cards": form("cards", ".0f"),
            "NCCL's ring, ms": form("nccl_ms", ".1f"),
            "HO-Ring, ms": form("ho_ms", ".1f"),
            "HO-Ring saves": form("saved", ".0%"),
            "NCCL's rings reach, GB/s": form("nccl_gbytes", ".1f"),
            "and would have to, for 40 to 25 %": lambda row: f"{row.needed_least:.0f} to {row.needed_most:.0f}",
        },
    ),
}
