"""The tables of ``docs/results/``: each is made of the CSV file that a study left in ``docs/results/data/``.

Most have a row for each row of their file, and a column for each entry of a mapping from its head to what is said of a
row. :func:`render` adds where a table comes from: the file, the command and the day, as ``manifest.json`` has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

DATA = Path(__file__).parent / "results" / "data"
GIB = 1 << 30

Row = Any  # of DataFrame.itertuples
Columns = Mapping[str, Callable[[Row], str]]
Cells = dict[str, str]


class Table(NamedTuple):
    """``file``: of the data. ``made``: columns, or what makes rows of cells of the whole frame."""

    file: str
    made: Columns | Callable[[pd.DataFrame], list[Cells]]


def render(name: str) -> str:
    """The table as Markdown, and below it where it comes from."""
    file, made = TABLES[name]
    frame = pd.read_csv(DATA / file)
    cells = made(frame) if callable(made) else [{head: say(row) for head, say in made.items()} for row in _rows(frame)]
    return f"{markdown(cells)}\n\n{origin(file)}"


def markdown(rows: list[Cells]) -> str:
    """Rows of text; columns whose cells all begin with a digit or a sign are figures, and stand to the right."""
    table = pd.DataFrame(rows).fillna("")
    right = [bool(table[head].str.match(r"^(?:[*+(-]*\d|$)").all()) for head in table.columns]
    lines = [list(table.columns), ["--:" if figures else "---" for figures in right], *table.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def origin(file: str) -> str:
    """A line that says by which command a file was made, and when."""
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    run = next(run for run in manifest.values() if file in run["files"])
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"*[{file}](data/{file}), made by `{run['command']}` on {run['date']} with {versions}.*\n{{ .origin }}"


def _rows(frame: pd.DataFrame) -> list[Row]:
    return list(frame.itertuples())


def _form(name: str, form: str = ".2f", none: str = "") -> Callable[[Row], str]:
    """A column's figure; ``none`` where there is none."""

    def say(row: Row) -> str:
        value = getattr(row, name)
        return none if pd.isna(value) else f"{value:{form}}"

    return say


def _error(name: str) -> Callable[[Row], str]:
    """An error relative to what is reported, bold where it is larger than a quarter."""
    text = _form(name, "+.0%")
    return lambda row: f"**{text(row)}**" if abs(getattr(row, name)) > 0.25 else text(row)


def _bytes(count: int) -> str:
    unit, name = next(one for one in ((GIB, "GiB"), (1 << 20, "MiB"), (1, "B")) if count >= one[0])
    return f"{count / unit:.3g} {name}"


def _model(row: Row) -> str:
    """Its name, which is not broken at a hyphen."""
    return str(row.model).replace("-", "&#8209;")


def _configuration(row: Row) -> str:
    return (f"hpZ {row.group}" if row.group > 1 else "no hpZ") + (" + qwZ" if row.qwz else "")


def _counted(name: str) -> Callable[[Row], str]:
    """What was counted, and what the formula says where that is something else."""

    def say(row: Row) -> str:
        counted, formula = float(getattr(row, name)), float(getattr(row, f"{name}_formula"))
        return f"{counted:,.0f}" + ("" if counted == formula else f" (formula: {formula:,.0f})")

    return say


def sweep(frame: pd.DataFrame) -> list[Cells]:
    """By micro-batch and network: how many times as fast as ZeRO-3 hpZ is, and whether its race shows without a fix."""
    from studies.sweep import gain, stops_paying

    gains: Any = gain(frame)
    ends = stops_paying(frame)
    rows: dict[int, Cells] = {}
    for row in _rows(frame[frame.configuration == "hpZ none"].sort_values("network")):
        cells = rows.setdefault(row.micro_batch, {"micro-batch": f"{row.micro_batch}"})
        mark = "&nbsp;**!**" if row.manifested == row.pairs else "&nbsp;*?*" if row.manifested else ""
        cells[f"{row.network:g}"] = f"{gains.at[row.micro_batch, row.network]:.2f}{mark}"
    return [{**rows[batch], "pays less than 5 % from": f"{ends.at[batch]:.0f}"} for batch in sorted(rows)]


def sweep_releases(frame: pd.DataFrame) -> list[Cells]:
    """The pinned release without a fix, and others as released: harmful pairs that are reversed, by network."""
    from frameworks.deepspeed.fixes import Fix
    from studies.sweep import ZERO3, matters_from

    fixed = {ZERO3, *(f"hpZ {fix}" for fix in Fix if fix is not Fix.NONE)}
    rows = []
    for configuration in dict.fromkeys(frame.configuration):
        if configuration in fixed:
            continue
        starts = matters_from(frame, configuration)
        name = configuration.removeprefix("hpZ ").replace("none", "0.19.8, no fix")
        for batch, found in frame[frame.configuration == configuration].groupby("micro_batch"):
            cells = {"DeepSpeed": name, "micro-batch": f"{batch}"}
            for row in _rows(found.sort_values("network")):
                bad = f"{row.harmful_manifested:.0f} of {row.harmful:.0f}"
                cells[f"{row.network:g}"] = f"**{bad}**" if row.harmful_manifested else bad
            rows.append({**cells, "reversed from": _start(starts[batch])})
    return rows


def why(frame: pd.DataFrame, release: str) -> list[Cells]:
    """A row for each assumption that was changed."""
    return [
        {
            "assumption": row.assumption,
            "changed to": row.value,
            "harmful pairs reversed": f"{row.reversed} of {row.harmful}",
            "closest, ms": "" if pd.isna(row.slack_ms) else f"{row.slack_ms:+,.2f}",
            "parameters": "" if pd.isna(row.parameters) else row.parameters,
            "reversed from, Gbit/s": "" if row.assumption == "timing" else _start(row.from_gbits),
            "decides": "**yes**" if row.flips else "",
        }
        for row in _rows(frame[frame.release == release])
    ]


def why_releases(frame: pd.DataFrame) -> list[Cells]:
    """The setting under each release."""
    found = frame[frame.assumption.isin(["the setting", "release"])]
    return [
        {
            "DeepSpeed": row.value,
            "step, s": f"{row.step_s:.2f}",
            "pairs": f"{row.pairs}",
            "of them reversed": f"{row.manifested}",
            "harmful pairs": f"{row.harmful}",
            "reversed": f"**{row.reversed}**" if row.reversed else "0",
            "parameters": "" if pd.isna(row.parameters) else row.parameters,
        }
        for row in _rows(found.sort_values("release", kind="stable"))
    ]


def why_losses(frame: pd.DataFrame) -> list[Cells]:
    """What Trainer prints, step by step."""
    rows = []
    for release, found in frame.groupby("release", sort=False):
        cells = {"DeepSpeed": str(release)}
        for row in _rows(found):
            norm = "NaN" if pd.isna(row.gradient_norm) else f"{row.gradient_norm:.3f}"
            cells[f"step {row.step}: loss"] = f"{row.loss:.4f}" if row.loss else "**0.0**"
            cells[f"step {row.step}: gradient norm"] = norm
        rows.append(cells)
    return rows


def _start(gbits: float) -> str:
    """The bandwidth from which on a harmful pair is reversed."""
    return "every" if gbits == 0 else "none" if pd.isna(gbits) else f"{gbits:.0f}"


def placements(frame: pd.DataFrame) -> list[Cells]:
    """A row for each fix: races, and how much longer than the fastest race-free one a step takes, by job."""
    frame = frame.assign(size=[model.rpartition("-")[2].upper() for model in frame.model])
    best = frame[frame.race_free].groupby(["model", "gbits"]).step_s.min()
    common = frame.groupby("gbits").model.nunique().idxmax()
    rows = []
    for fix, found in frame.groupby("fix", sort=False):
        what = ": ".join(str(word) for word in (found["where"].iloc[0], found.what.iloc[0]) if not pd.isna(word))
        racy = ", ".join(f"{row.size}: {row.races}" for row in _rows(found[found.races > 0].drop_duplicates("model")))
        cells = {"`--fix`": f"`{fix}`", "where, and what": what, "races": f"**{racy}**" if racy else "none"}
        for row in _rows(found):
            cells[f"{row.size} at {row.gbits:g} Gbit/s, ms"] = (
                f"{1000 * (row.step_s - best[(row.model, row.gbits)]):+.2f}"
            )
        waits = found[(found.waits > 0) & (found.gbits == common)]
        cells[f"the host waits there, at {common:g} Gbit/s"] = "<br>".join(
            f"{row.size}: {row.waits} times, {row.waited_s:.1f} s" for row in _rows(waits)
        )
        rows.append(cells)
    return rows


def releases(frame: pd.DataFrame) -> list[Cells]:
    """A row for each release, with both of its runs."""
    rows = []
    for release, found in frame.groupby("release", sort=False):
        cells = {"release": str(release)}
        for row in _rows(found):
            causes = [name for name in ("race", "stale", "uncovered") if getattr(row, name)]
            cells[row.run] = ", ".join(causes) or ("wrong values" if row.wrong_values else "clean")
            if not row.ran:
                cells[row.run] = f"does not run: {row.failure}"
            never = pd.isna(row.wrong_from_step)
            cells[f"{row.run}: wrong from"] = "never" if never else f"step {row.wrong_from_step:g}"
            cells[f"{row.run}: evidence"] = "" if pd.isna(row.evidence) else row.evidence
        rows.append(cells)
    return rows


_QUANTITIES = {"seconds": "s a step", "tflops": "TFLOPs per GPU", "samples": "samples/s"}


def _explained(row: Row) -> str:
    """The figure that explains an error of more than a tenth, and at which value."""
    if abs(row.error) <= 0.1:
        return ""
    return "no single figure" if pd.isna(row.explained_by) else f"{row.explained_by}: {row.needs:.3g}"


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


def gains(frame: pd.DataFrame) -> list[Cells]:
    """By model and micro-batch: how many times as fast hpZ is, by accumulation; and whether it fits."""
    rows = []
    for (model, batch), found in frame.groupby(["model", "micro_batch"], sort=False):
        cells = {"model": str(model).replace("-", "&#8209;"), "micro-batch": f"{batch}"}
        cells |= {f"s = {row.accumulation}": f"{row.gain:.2f}" for row in _rows(found)}
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
                    f"{row.scheme} ({row.states_gb:.0f} GB, {row.step_s:.0f} s)" for row in _rows(fits)
                ),
            }
        )
    return rows


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


TABLES = {
    "kernels": Table("kernels.csv", kernels),
    "sweep": Table("sweep.csv", sweep),
    "sweep-releases": Table("sweep.csv", sweep_releases),
    "sweep-releases-2-nodes": Table("sweep-2-nodes.csv", sweep_releases),
    "why-releases": Table("why.csv", why_releases),
    "why-losses": Table("why-losses.csv", why_losses),
    "why-0.13.4": Table("why.csv", partial(why, release="0.13.4")),
    "why-0.19.8": Table("why.csv", partial(why, release="0.19.8")),
    "memory": Table(
        "memory.csv",
        {
            "model": _model,
            "parameters, billion": lambda row: f"{row.parameters / 1e9:.2f}",
            "configuration": _configuration,
            "secondary copy, measured": lambda row: f"{row.secondary / GIB:.3f}" if row.group > 1 else "",
            "formula": lambda row: f"{row.formula / GIB:.3f}" if row.group > 1 else "",
            "error": lambda row: f"{row.error:.1%}" if row.group > 1 else "",
            "peak of all memory": lambda row: f"{row.peak / GIB:.2f}",
            "fits, GB": lambda row: ", ".join(f"{card}" for card in (40, 80) if row.peak <= card * GIB) or "neither",
        },
    ),
    "memory-limits": Table(
        "memory-limits.csv",
        {
            "configuration": _configuration,
            "card, GB": lambda row: f"{row.card}",
            "does not fit from, billion parameters": lambda row: f"{row.parameters / 1e9:.0f}",
            "which lies": lambda row: "beyond the models measured" if row.beyond else "between two models measured",
        },
    ),
    "trackers": Table(
        "trackers.csv",
        {
            "model": _model,
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
    "paper-rows": Table(
        "paper-rows.csv",
        {
            "cluster": lambda row: row.cluster,
            "model": _model,
            "Gbit/s": _form("network", "g"),
            "": lambda row: row.setting,
            "reported": lambda row: f"{row.theirs:g} {_QUANTITIES[row.quantity]}",
            "ours": _form("ours", ".3g"),
            "error": _error("error"),
            "with one figure of the other rows": _form("calibrated_s", ".1f"),
            "its error": _error("calibrated_error"),
            "would be explained by": lambda row: _explained(row),
        },
    ),
    "paper-errors": Table("paper-rows.csv", errors),
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
            "error, as the others need it": _form("error", ".0%"),
        },
    ),
    "paper-gains": Table("paper-gains.csv", gains),
    "paper-losses": Table(
        "paper-losses.csv",
        {
            "step": lambda row: f"{row.step}",
            "loss with ZeRO-3": _form("zero3", ".6f"),
            "loss with hpZ": _form("hpz", ".6f"),
            "bits": lambda row: "equal" if row.equal else "differ",
        },
    ),
    "paper-quantization": Table(
        "paper-quantization.csv",
        {
            "": lambda row: " ".join(word for word in ("hpZ", "qwZ", "qgZ") if getattr(row, word.lower())) or "ZeRO-3",
            "seconds a step": _form("step_s"),
            "between nodes, GiB": _form("between_gib"),
            "within nodes": _form("within_gib"),
            "leaves a node": _form("leaves_gib"),
            "secondary copy": _form("secondary_gib"),
            "peak": _form("peak_gib"),
            "loss changes by": lambda row: f"{row.loss_change:.4f}" if row.loss_change else "nothing",
            "races": lambda row: f"{row.races}",
        },
    ),
    "placements": Table("placements.csv", placements),
    "placements-cheapest": Table(
        "placements-cheapest.csv",
        {
            "model": _model,
            "Gbit/s": _form("gbits", "g"),
            "cheapest race-free": lambda row: f"`{row.fix}`",
            "seconds a step": _form("step_s", ".4f"),
            "of which the host is blocked": _form("host_blocked_s", ".4f"),
        },
    ),
    "placements-sites": Table(
        "placements-sites.csv",
        {
            "taken away": lambda row: f"`{row.operation}`",
            "in": lambda row: f"`{Path(row.file).name}:{row.line}`",
            "times a step": lambda row: f"{row.count}",
            "race": lambda row: "yes" if row.race else "no",
            "diverges": lambda row: "yes" if row.diverges else "no",
            "verdict": lambda row: f"**{row.verdict}**" if row.race or row.diverges else row.verdict,
        },
    ),
    "releases": Table("releases.csv", releases),
    "network": Table(
        "network.csv",
        {
            "machine": lambda row: row.machine,
            "collective": lambda row: f"{row.collective.replace('_', '-')}, {_bytes(row.bytes)}",
            "theirs": lambda row: f"{row.reported:,.4g} {row.unit}",
            "ours": lambda row: f"{row.ours:,.4g} {row.unit}",
            "ours is faster by": _error("error"),
            "SimAI": _form("simai", ".0f"),
            "algorithm, protocol": lambda row: row.way,
            "what the model does not have": _form("why", ""),
            "source": lambda row: row.source,
        },
    ),
    "network-rings": Table(
        "network-rings.csv",
        {
            "GPUs": _form("ranks", ".0f"),
            "NCCL's rings use, cards": _form("cards", ".0f"),
            "NCCL's ring, ms": _form("nccl_ms", ".1f"),
            "HO-Ring, ms": _form("ho_ms", ".1f"),
            "HO-Ring saves": _form("saved", ".0%"),
            "NCCL's rings reach, GB/s": _form("nccl_gbytes", ".1f"),
            "and would have to, for 40 to 25 %": lambda row: f"{row.needed_least:.0f} to {row.needed_most:.0f}",
        },
    ),
    "paro": Table(
        "paro-live.csv",
        {
            "strategy": lambda row: row.title,
            "parameters": _counted("parameters"),
            "gradients": _counted("gradients"),
            "optimizer state": _counted("state"),
            "sent within nodes": _counted("within"),
            "sent between nodes": _counted("between"),
            "loss differs from DDP's by": lambda row: f"{row.loss_difference:.1e}" if row.loss_difference else "0",
            "races": lambda row: f"{row.races}",
        },
    ),
    "paro-gains": Table(
        "paro-gains.csv",
        {
            "model": _model,
            "trained": lambda row: row.trained,
            "speed-up": lambda row: f"{row.strategy} of {row.against}",
            "paper": _form("theirs"),
            "ours, as the facts have it": _form("facts"),
            "error of that": _error("facts_error"),
            "ours, one flow": _form("ours"),
            "error": _error("error"),
            "ours, all links": _form("together"),
            "its error": _error("together_error"),
            "equal at, Gbit/s": _form("rate", ".0f", none="no rate"),
            "ours, at what the others need": _form("calibrated"),
            "the error of that": _error("calibrated_error"),
        },
    ),
    "paro-scaling": Table(
        "paro-scaling.csv",
        {
            "strategy": lambda row: row.strategy,
            "GPUs": lambda row: f"{row.ranks}",
            "paper": _form("theirs"),
            "ours, as the facts have it": _form("facts"),
            "ours, one flow": _form("ours"),
            "ours, all links": _form("together"),
            "closed form, nothing hidden": _form("closed"),
            "equal with this part of the network": _form("share"),
            "ours, as the others need it": _form("calibrated"),
            "its error": _error("calibrated_error"),
        },
    ),
    "paro-rings": Table(
        "paro-rings.csv",
        {
            "GPUs": lambda row: f"{row.ranks}",
            "flat ring, ms": lambda row: f"{row.flat_s * 1e3:.1f}",
            "HO-Ring, ms": lambda row: f"{row.ho_ring_s * 1e3:.1f}",
            "less time": _form("less", ".1%"),
            "paper": _form("theirs", ".1%"),
            "equal where the flat ring has, Gbit/s": _form("needs_gbit", ".0f"),
            "flows": _form("needs_flows", ".1f"),
        },
    ),
    "paro-slow-node": Table(
        "paro-slow-node.csv",
        {
            "strategy": lambda row: row.strategy,
            "one node has": lambda row: f"{row.share:g}",
            "seconds a step": _form("step_s"),
            "times as long as with 1": _form("slower"),
            "times as fast as ZeRO-3": _form("gain"),
            "closed form, nothing hidden": _form("closed"),
        },
    ),
    "paro-sizes": Table(
        "paro-sizes.csv",
        {
            "strategy": lambda row: row.strategy,
            "GPUs of the nodes": lambda row: row.sizes,
            "seconds a step": _form("step_s"),
            "times as fast as ZeRO-3": _form("gain"),
        },
    ),
    "paro-large": Table("paro-large.csv", large),
    "validation": Table("validation.csv", validation),
    "batches-crossings": Table(
        "batches-crossings.csv",
        {
            "model": _model,
            "card, GiB": lambda row: f"{row.card}",
            "Gbit/s of a node": lambda row: f"{row.network:g}",
            "ZeRO-3 fits from, GPUs": _form("fits_from", ".0f", none="none tried"),
            "hpZ is 5 % faster from, GPUs": _form("pays_from", ".0f", none="none tried"),
            "least gain where hpZ fits": _form("most_lost", ".2f", none="it never does"),
        },
    ),
    "pareto": Table("pareto.csv", pareto),
    "failure": Table(
        "failure.csv",
        {
            "model, GPUs": lambda row: f"{_model(row)}, {row.ranks:,}",
            "failures as of": lambda row: row.rate,
            "strategy, group": lambda row: f"{row.strategy}, {row.group}",
            "hours between": _form("between_h", ".1f"),
            "best interval, min": lambda row: f"{row.best_s / 60:.1f}",
            "Young's": lambda row: f"{row.young_s / 60:.1f}",
            "recovery, min": lambda row: f"{row.recovery_s / 60:.1f}",
            "lost": _form("lost_best", ".2%"),
            "at 1 h": _form("lost_1h", ".2%"),
            "at 3 h": _form("lost_3h", ".2%"),
        },
    ),
}
