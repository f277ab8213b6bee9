"""Tables of the papers' figures beside ours, and of what their reviewers ask for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from docs.cells import Cells, Row, Table, counted, form, name_of, off, rows_of
from papers.studies import throughput_errors

_QUANTITIES = {"seconds": "s a step", "tflops": "TFLOPs per GPU", "samples": "samples/s"}


def _explained(row: Row) -> str:
    """The figure, or the two, that explain an error of more than a tenth, and at which value."""
    if abs(row.error) <= 0.1:
        return ""
    if pd.isna(row.explained_by):
        return "none, and no two"
    also = "" if pd.isna(row.also) else f"; {row.also}: {row.needs_also:.3g}"
    return f"{row.explained_by}: {row.needs:.3g}{also}"


def errors(frame: pd.DataFrame) -> list[Cells]:
    """Mean absolute errors of step times, by cluster and of all rows."""
    best, far = frame.calibrated_error.fillna(frame.error), frame.error.abs() > 0.25
    of = [(str(name), frame.cluster == name) for name in frame.cluster.unique()]
    of.append(("**all**", frame.cluster.notna()))
    return [
        {
            "cluster": name,
            "rows": f"{here.sum()}",
            "from the facts alone": f"{frame.error[here].abs().mean():.1%}",
            "with one figure of the other rows": f"{best[here].abs().mean():.1%}",
            "which figure": "" if here.all() or frame.by[here].isna().all() else str(frame.by[here].iloc[0]),
            "off by more than a quarter": f"{(here & far).sum()}",
            "of these, without an explanation": f"{(here & far & frame.explained_by.isna()).sum()}",
        }
        for name, here in of
    ]


def _cause(row: Row) -> str:
    if abs(row.error) <= throughput_errors.OFF:
        return ""
    return "not explained" if pd.isna(row.explained_by) else str(row.explained_by)


def memory(frame: pd.DataFrame) -> list[Cells]:
    """Peaks of memory, of the rows that report one."""
    return [
        {
            "source": row.source_id,
            "model": name_of(row),
            "GPUs": f"{row.gpus} x {row.gpu}",
            "reported, GiB": f"{row.mem_gib:.1f}",
            "ours allocated, GiB": f"{row.peak_gib:.1f}",
            "ours reserved, GiB": f"{row.reserved_gib:.1f}",
            "error": f"{row.reserved_gib / row.mem_gib - 1:+.1%}",
        }
        for row in rows_of(frame[frame.mem_gib.notna()])
    ]


def memory_by_source(frame: pd.DataFrame) -> list[Cells]:
    """Memory, ours allocated and reserved, beside what rows report: by source, medians and ranges of the error."""
    rows = []
    for source, found in frame[frame.mem_gib.notna()].groupby("source_id", sort=False):
        allocated, reserved = found.peak_gib / found.mem_gib - 1, found.reserved_gib / found.mem_gib - 1
        rows.append(
            {
                "source": str(source),
                "rows": f"{len(found)}",
                "ours allocated: median": f"{allocated.median():+.1%}",
                "from, to": f"{allocated.min():+.0%}, {allocated.max():+.0%}",
                "ours reserved: median": f"{reserved.median():+.1%}",
                "from, to ": f"{reserved.min():+.0%}, {reserved.max():+.0%}",
            }
        )
    return rows


def published(frame: pd.DataFrame) -> list[Cells]:
    """Errors of published steps on A100 and H100: of all rows, and by what they have in common."""
    return [
        {
            "": f"**{row.group}**" if not row.by else f"{row.by}: {row.group}",
            "rows": f"{row.rows}",
            "mean": f"{row.mean:.1%}",
            "median": f"{row.median:.1%}",
            "worst": f"{row.worst:.0%}",
            "signed mean": f"{row.bias:+.1%}",
            "off by more than a quarter": f"{row.off}",
            "of these, not explained": f"{row.unexplained}",
            "computing would have to take": f"{row.needs_kernels:.2f} times",
            "with one figure: mean": f"{row.calibrated_mean:.1%}",
            "median ": f"{row.calibrated_median:.1%}",
        }
        for row in rows_of(throughput_errors.errors(frame))
    ]


def gains(frame: pd.DataFrame) -> list[Cells]:
    """By model and micro-batch: how many times as fast hpZ is, by accumulation; and whether it fits."""
    rows = []
    for (model, batch), found in frame.groupby(["model", "micro_batch"], sort=False):
        cells = {"model": str(model).replace("-", "&#8209;"), "micro-batch": f"{batch}"}
        cells |= {f"s = {row.accumulation}": f"{row.gain:.2f}" for row in rows_of(found)}
        last = found.iloc[0]
        cells["98 % at s"] = "never" if pd.isna(last.claimed_at) else f"{last.claimed_at:.1f}"
        cells["hpZ, GiB"] = f"{last.peak_gib:.0f}" if last.fits else f"**{last.peak_gib:.0f}**"
        cells["ZeRO-3, GiB"] = f"{last.zero3_peak_gib:.0f}" if last.zero3_fits else f"**{last.zero3_peak_gib:.0f}**"
        rows.append(cells)
    return rows


def large(frame: pd.DataFrame) -> list[Cells]:
    """By model and number of GPUs: which strategies' states fit, the fastest first."""
    rows = []
    for (model, ranks), found in frame.groupby(["model", "ranks"], sort=False):
        fits = found[found.fits].sort_values("step_s")
        rows.append(
            {
                "model": str(model).replace("-", "&#8209;"),
                "GPUs": f"{ranks}",
                "states that fit 80 GB, fastest first": ", ".join(
                    f"{row.scheme} ({row.states_gb:.0f} GB, {row.step_s:.0f} s)" for row in rows_of(fits)
                ),
            }
        )
    return rows


def validation(frame: pd.DataFrame) -> list[Cells]:
    """A row for each evaluation, a column for each configuration."""
    held: Any = frame.pivot(index="step", columns="configuration", values="validation_loss")
    names = list(dict.fromkeys(frame.configuration))
    return [
        {"after step": f"{step}", **{name: f"{held.at[step, name]:.4f}" for name in names}}
        for step in held.dropna(how="all").index
    ]


def pareto(frame: pd.DataFrame) -> list[Cells]:
    """For each case, which ways to shard none dominates, by each cost."""
    costs = {"sent": "bytes that a GPU sends", "crossing": "bytes that leave a node", "communication_s": "time"}
    return [
        {
            "model, trained": f"{model}, {trained}",
            **{text: ", ".join(found[found[f"front_{cost}"]].strategy) for cost, text in costs.items()},
        }
        for (model, trained), found in frame.groupby(["model", "trained"], sort=False)
    ]


PAPERS: dict[str, Table] = {
    "paper-rows": Table(
        "paper-rows.csv",
        {
            "cluster": lambda row: row.cluster,
            "model": name_of,
            "Gbit/s": form("network", "g"),
            "": lambda row: row.setting,
            "reported": lambda row: f"{row.theirs:g} {_QUANTITIES[row.quantity]}",
            "ours": form("ours", ".3g"),
            "error": off("error"),
            "with one figure of the other rows": form("calibrated_s", ".1f"),
            "its error": off("calibrated_error"),
            "would be explained by": lambda row: _explained(row),
        },
    ),
    "paper-errors": Table("paper-rows.csv", errors),
    "published-errors": Table("published-steps.csv", published),
    "published-rows": Table(
        "published-steps.csv",
        {
            "source": lambda row: row.source_id,
            "model": name_of,
            "GPUs": lambda row: f"{row.gpus} x {row.gpu}",
            "tokens": form("seq", "d"),
            "micro-batch": lambda row: f"{row.micro_batch} x {row.accumulation}",
            "sharding": lambda row: row.sharding,
            "recomputed": form("recompute", "", "not stated"),
            "run as": lambda row: row.program,
            "measured, s": form("theirs_s", ".3g"),
            "ours, s": form("ours_s", ".3g"),
            "error": off("error"),
            "with one figure": off("calibrated_error"),
            "would be explained by": _cause,
        },
    ),
    "published-memory": Table("published-steps.csv", memory),
    "published-model-parallel-errors": Table("published-model-parallel.csv", published),
    "published-model-parallel-rows": Table(
        "published-model-parallel.csv",
        {
            "source": lambda row: row.source_id,
            "model": name_of,
            "GPUs": lambda row: f"{row.gpus} x {row.gpu}",
            "tensor x pipeline": lambda row: f"{row.tp:.0f} x {row.pp:.0f}",
            "pieces of a stage": form("vpp", ".0f", "1"),
            "tokens": form("seq", "d"),
            "micro-batch": lambda row: f"{row.micro_batch} x {row.accumulation}",
            "recomputed": form("recompute", "", "not stated"),
            "measured, s": form("theirs_s", ".3g"),
            "ours, s": form("ours_s", ".3g"),
            "error": off("error"),
            "with one figure": off("calibrated_error"),
            "would be explained by": _cause,
        },
    ),
    "published-model-parallel-memory": Table("published-model-parallel.csv", memory_by_source),
    "paper-unknowns": Table(
        "paper-unknowns.csv",
        {
            "cluster": lambda row: row.cluster,
            "figure": lambda row: row.unknown,
            "rows": lambda row: f"{row.rows}",
            "come out with it": lambda row: f"{row.explained}",
            "plausibly": lambda row: f"{row.plausible}",
            "needed": lambda row: "" if pd.isna(row.least) else f"{row.least:.3g} to {row.most:.3g}",
            "plausible": lambda row: f"{row.low:g} to {row.high:g}",
            "error, as the others need it": form("error", ".0%"),
        },
    ),
    "paper-gains": Table("paper-gains.csv", gains),
    "paper-losses": Table(
        "paper-losses.csv",
        {
            "step": lambda row: f"{row.step}",
            "loss with ZeRO-3": form("zero3", ".6f"),
            "loss with hpZ": form("hpz", ".6f"),
            "bits": lambda row: "equal" if row.equal else "differ",
        },
    ),
    "paper-quantization": Table(
        "paper-quantization.csv",
        {
            "": lambda row: " ".join(word for word in ("hpZ", "qwZ", "qgZ") if getattr(row, word.lower())) or "ZeRO-3",
            "seconds a step": form("step_s"),
            "between nodes, GiB": form("between_gib"),
            "within nodes": form("within_gib"),
            "leaves a node": form("leaves_gib"),
            "secondary copy": form("secondary_gib"),
            "peak": form("peak_gib"),
            "loss changes by": lambda row: f"{row.loss_change:.4f}" if row.loss_change else "nothing",
            "races": lambda row: f"{row.races}",
        },
    ),
    "paro": Table(
        "paro-live.csv",
        {
            "strategy": lambda row: row.title,
            "parameters": counted("parameters"),
            "gradients": counted("gradients"),
            "optimizer state": counted("state"),
            "sent within nodes": counted("within"),
            "sent between nodes": counted("between"),
            "loss differs from DDP's by": lambda row: f"{row.loss_difference:.1e}" if row.loss_difference else "0",
            "races": lambda row: f"{row.races}",
        },
    ),
    "paro-gains": Table(
        "paro-gains.csv",
        {
            "model": name_of,
            "trained": lambda row: row.trained,
            "speed-up": lambda row: f"{row.strategy} of {row.against}",
            "paper": form("theirs"),
            "ours, as the facts have it": form("facts"),
            "error of that": off("facts_error"),
            "ours, one flow": form("ours"),
            "error": off("error"),
            "ours, all links": form("together"),
            "its error": off("together_error"),
            "equal at, Gbit/s": form("rate", ".0f", none="no rate"),
            "ours, at what the others need": form("calibrated"),
            "the error of that": off("calibrated_error"),
        },
    ),
    "paro-scaling": Table(
        "paro-scaling.csv",
        {
            "strategy": lambda row: row.strategy,
            "GPUs": lambda row: f"{row.ranks}",
            "paper": form("theirs"),
            "ours, as the facts have it": form("facts"),
            "ours, one flow": form("ours"),
            "ours, all links": form("together"),
            "closed form, nothing hidden": form("closed"),
            "equal with this part of the network": form("share"),
            "ours, as the others need it": form("calibrated"),
            "its error": off("calibrated_error"),
        },
    ),
    "paro-rings": Table(
        "paro-rings.csv",
        {
            "GPUs": lambda row: f"{row.ranks}",
            "flat ring, ms": lambda row: f"{row.flat_s * 1e3:.1f}",
            "HO-Ring, ms": lambda row: f"{row.ho_ring_s * 1e3:.1f}",
            "less time": form("less", ".1%"),
            "paper": form("theirs", ".1%"),
            "equal where the flat ring has, Gbit/s": form("needs_gbit", ".0f"),
            "flows": form("needs_flows", ".1f"),
        },
    ),
    "paro-slow-node": Table(
        "paro-slow-node.csv",
        {
            "strategy": lambda row: row.strategy,
            "one node has": lambda row: f"{row.share:g}",
            "seconds a step": form("step_s"),
            "times as long as with 1": form("slower"),
            "times as fast as ZeRO-3": form("gain"),
            "closed form, nothing hidden": form("closed"),
        },
    ),
    "paro-sizes": Table(
        "paro-sizes.csv",
        {
            "strategy": lambda row: row.strategy,
            "GPUs of the nodes": lambda row: row.sizes,
            "seconds a step": form("step_s"),
            "times as fast as ZeRO-3": form("gain"),
        },
    ),
    "paro-large": Table("paro-large.csv", large),
    "validation": Table("validation.csv", validation),
    "batches-crossings": Table(
        "batches-crossings.csv",
        {
            "model": name_of,
            "card, GiB": lambda row: f"{row.card}",
            "Gbit/s of a node": lambda row: f"{row.network:g}",
            "ZeRO-3 fits from, GPUs": form("fits_from", ".0f", none="none tried"),
            "hpZ is 5 % faster from, GPUs": form("pays_from", ".0f", none="none tried"),
            "least gain where hpZ fits": form("most_lost", ".2f", none="it never does"),
        },
    ),
    "pareto": Table("pareto.csv", pareto),
    "failure": Table(
        "failure.csv",
        {
            "model, GPUs": lambda row: f"{name_of(row)}, {row.ranks:,}",
            "failures as of": lambda row: row.rate,
            "strategy, group": lambda row: f"{row.strategy}, {row.group}",
            "hours between": form("between_h", ".1f"),
            "best interval, min": lambda row: f"{row.best_s / 60:.1f}",
            "Young's": lambda row: f"{row.young_s / 60:.1f}",
            "recovery, min": lambda row: f"{row.recovery_s / 60:.1f}",
            "lost": form("lost_best", ".2%"),
            "at 1 h": form("lost_1h", ".2%"),
            "at 3 h": form("lost_3h", ".2%"),
        },
    ),
}
