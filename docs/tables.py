"""The tables of ``docs/results/``: each is made of the CSV file that a study left in ``docs/results/data/``.

A function here takes the study's frame and gives one of text, row for row as a reader is to see it. :func:`render` adds
where it comes from: the file, the command and the day, as ``manifest.json`` has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

DATA = Path(__file__).parent / "results" / "data"
GIB = 1 << 30


class Table(NamedTuple):
    """``file``: of the data; ``made``: from its frame."""

    file: str
    made: Callable[[pd.DataFrame], pd.DataFrame]


def render(name: str) -> str:
    """The table as Markdown, and below it where it comes from."""
    table = TABLES[name]
    return f"{markdown(table.made(pd.read_csv(DATA / table.file)))}\n\n{origin(table.file)}"


def markdown(frame: pd.DataFrame) -> str:
    """A frame of text; columns whose cells begin with a digit or a sign are figures, and stand to the right."""
    right = [frame[name].astype(str).str.match(r"^(?:[*+(-]*\d|$)").all() for name in frame.columns]
    rows = [list(map(str, frame.columns)), ["--:" if figures else "---" for figures in right]]
    rows += [[str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in frame.to_numpy()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def origin(file: str) -> str:
    """A line that says by which command a file was made, and when."""
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    run = next(run for run in manifest.values() if file in run["files"])
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    return f"*[{file}](data/{file}), made by `{run['command']}` on {run['date']} with {versions}.*\n{{ .origin }}"


def _of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).fillna("")


def _percent(value: float) -> str:
    """An error: bold where it is larger than a quarter."""
    text = f"{value:+.0%}"
    return "" if pd.isna(value) else f"**{text}**" if abs(value) > 0.25 else text


def _figure(value: float, form: str = ".2f") -> str:
    return "" if pd.isna(value) else f"{value:{form}}"


def sweep(frame: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as ZeRO-3 hpZ is, and whether its race shows without a fix."""
    from studies.sweep import gain, stops_paying

    races = frame[frame.configuration == "hpZ none"].set_index(["micro_batch", "network"])
    gains, ends = gain(frame), stops_paying(frame)
    rows = []
    for batch in gains.index:
        row = {"micro-batch": f"{batch}"}
        for network in gains.columns:
            pairs, shown = (int(races.at[(batch, network), name]) for name in ("pairs", "shown"))
            mark = " **!**" if pairs and shown == pairs else " *?*" if shown else ""
            row[f"{network:g}"] = f"{gains.at[batch, network]:.2f}{mark}"
        rows.append({**row, "pays less than 5 % from": _figure(ends[batch], ".0f")})
    return _of(rows)


def memory(frame: pd.DataFrame) -> pd.DataFrame:
    """Each model's secondary copy, beside the formula."""
    rows = []
    for row in frame.itertuples():
        words = [f"hpZ {row.group}" if row.group > 1 else "no hpZ"] + (["qwZ"] if row.qwz else [])
        copied = row.group > 1
        fits = [f"{card}" for card in (40, 80) if row.peak <= card * GIB]
        rows.append(
            {
                "model": row.model,
                "parameters, billion": f"{row.parameters / 1e9:.2f}",
                "configuration": " + ".join(words),
                "secondary copy, measured": f"{row.secondary / GIB:.3f}" if copied else "",
                "formula": f"{row.formula / GIB:.3f}" if copied else "",
                "error": f"{row.error:.1%}" if copied else "",
                "peak of all memory": f"{row.peak / GIB:.2f}",
                "fits a card of, GB": " and ".join(fits) or "neither",
            }
        )
    return _of(rows)


def limits(frame: pd.DataFrame) -> pd.DataFrame:
    """From how many parameters on a model does not fit."""
    return _of(
        [
            {
                "configuration": (f"hpZ {row.group}" if row.group > 1 else "no hpZ") + (" + qwZ" if row.qwz else ""),
                "card, GB": f"{row.card}",
                "does not fit from, billion parameters": f"{row.parameters / 1e9:.0f}",
                "": "beyond the models measured: a straight line" if row.beyond else "between two models measured",
            }
            for row in frame.itertuples()
        ]
    )


def llama(frame: pd.DataFrame) -> pd.DataFrame:
    """hpZ against ZeRO-3, by accumulation."""
    return _of(
        [
            {
                "micro-batch": f"{row.micro_batch}",
                "accumulation s": f"{row.accumulation}",
                "hpZ, seconds a step": f"{row.hpz_step_s:.2f}",
                "ZeRO-3": f"{row.zero3_step_s:.2f}",
                "gain": f"{row.gain:.2f}",
                "3s/(s+1)": f"{row.derived:.2f}",
                "within what users report": "yes" if row.in_thread else "no",
            }
            for row in frame.itertuples()
        ]
    )


def losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Live losses with hpZ and without."""
    return _of(
        [
            {
                "step": f"{row.step}",
                "ZeRO-3": f"{row.zero3:.6f}",
                "hpZ": f"{row.hpz:.6f}",
                "bits": "equal" if row.equal else "differ",
            }
            for row in frame.itertuples()
        ]
    )


def quantization(frame: pd.DataFrame) -> pd.DataFrame:
    """hpZ, qwZ and qgZ in all combinations."""
    rows = []
    for row in frame.itertuples():
        words = [word for word, on in (("hpZ", row.hpz), ("qwZ", row.qwz), ("qgZ", row.qgz)) if on]
        rows.append(
            {
                "": " ".join(words) or "ZeRO-3",
                "seconds a step": f"{row.step_s:.2f}",
                "between nodes, GiB": f"{row.between_gib:.2f}",
                "within": f"{row.within_gib:.2f}",
                "leaves a node": f"{row.leaves_gib:.2f}",
                "secondary": f"{row.secondary_gib:.2f}",
                "peak": f"{row.peak_gib:.2f}",
                "loss changes by": f"{row.loss_change:.4f}" if row.loss_change else "nothing",
                "races": f"{row.races}",
            }
        )
    return _of(rows)


def zeropp(frame: pd.DataFrame) -> pd.DataFrame:
    """ZeRO++'s own table beside ours."""
    return _of(
        [
            {
                "model": row.model,
                "Gbit/s": f"{row.network}",
                "tokens": row.tokens,
                "ZeRO-3, theirs": f"{row.zero3_theirs}",
                "ours": f"{row.zero3_ours:.1f}",
                "ZeRO++, theirs": f"{row.plus_theirs}",
                "ours ": f"{row.plus_ours:.1f}",
                "speed-up, theirs": f"{row.gain_theirs:.2f}",
                "ours  ": f"{row.gain_ours:.2f}",
                "error": _percent(row.error),
                "calibrated": f"{row.gain_calibrated:.2f} at {row.calibrated_gbit:.0f} Gbit/s",
                "error ": _percent(row.calibrated_error),
            }
            for row in frame.itertuples()
        ]
    )


def placements(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each fix: races, and how much longer than the fastest race-free one a step takes."""
    best = frame[frame.race_free].groupby(["model", "gbits"]).step_s.min()
    rows: dict[str, dict[str, str]] = {}
    for row in frame.itertuples():
        cells = rows.setdefault(row.fix, {"`--fix`": f"`{row.fix}`", "where, and what": row.what, "races": ""})
        if row.races:
            known = cells["races"].split(", ") if cells["races"] else []
            cells["races"] = ", ".join(dict.fromkeys([*known, f"{row.model} {row.races}"]))
        over = 1000 * (row.step_s - best[(row.model, row.gbits)])
        cells[f"{row.model}, {row.gbits:g} Gbit/s"] = f"{over:+.2f} ms"
        cells["host waits there"] = f"{row.waits} times, {row.waited_s:.1f} s" if row.waits else ""
    for cells in rows.values():
        cells["races"] = f"**{cells['races']}**" if cells["races"] else "none"
    return _of(list(rows.values()))


def cheapest(frame: pd.DataFrame) -> pd.DataFrame:
    """The cheapest race-free fix of each job."""
    return _of(
        [
            {
                "model": row.model,
                "Gbit/s": f"{row.gbits:g}",
                "cheapest race-free": f"`{row.fix}`",
                "seconds a step": f"{row.step_s:.4f}",
                "host blocked": f"{row.host_blocked_s:.2f}",
            }
            for row in frame.itertuples()
        ]
    )


def sites(frame: pd.DataFrame) -> pd.DataFrame:
    """Stock's own synchronisations, each taken away alone."""
    return _of(
        [
            {
                "taken away": f"`{row.operation}`, `{Path(row.file).name}:{row.line}` in `{row.function.split('.')[-1]}`",
                "times a step": f"{row.count}",
                "race": "yes" if row.race else "no",
                "diverges": "yes" if row.diverges else "no",
                "verdict": f"**{row.verdict}**" if row.race or row.diverges else row.verdict,
            }
            for row in frame.itertuples()
        ]
    )


def releases(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each release; both of its runs."""
    rows: dict[str, dict[str, str]] = {}
    for row in frame.fillna({"evidence": "", "failure": "", "wrong_from_phase": "", "distance": ""}).itertuples():
        cells = rows.setdefault(row.release, {"release": row.release})
        causes = [name for name in ("race", "stale", "uncovered") if getattr(row, name)]
        cells[row.run] = ", ".join(causes) or ("wrong values" if row.wrong_values else "clean")
        if not row.ran:
            cells[row.run] = f"does not run: {row.failure}"
        since = "never" if pd.isna(row.wrong_from_step) else f"step {row.wrong_from_step:.0f} {row.wrong_from_phase}"
        cells[f"{row.run}: wrong from"] = since
        cells["evidence"] = "\n".join(dict.fromkeys(filter(None, [cells.get("evidence", ""), row.evidence])))
    return _of([{**{key: row[key] for key in row if key != "evidence"}, "evidence": row["evidence"]} for row in rows.values()])


def paro(frame: pd.DataFrame) -> pd.DataFrame:
    """Each strategy live: what it keeps and sends (equal to its formula, or both), and its losses beside DDP's."""
    rows = []
    for row in frame.itertuples():
        cells = {"strategy": row.title}
        for name in ("parameters", "gradients", "state", "within", "between"):
            counted, formula = float(getattr(row, name)), float(getattr(row, f"{name}_formula"))
            head = {"state": "optimizer state", "within": "sent within nodes", "between": "sent between nodes"}
            cells[head.get(name, name)] = f"{counted:,.0f}" + ("" if counted == formula else f" (formula: {formula:,.0f})")
        cells["loss differs from DDP's by"] = f"{row.loss_difference:.1e}" if row.loss_difference else "0"
        rows.append({**cells, "races": f"{row.races}"})
    return _of(rows)


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """PaRO's speed-ups beside ours, on two networks."""
    return _of(
        [
            {
                "model": row.model,
                "trained": row.trained,
                "speed-up": f"{row.strategy} of {row.against}",
                "paper": _figure(row.theirs),
                "ours, one flow of 100 Gbit/s": f"{row.ours:.2f}",
                "error": _percent(row.error),
                "ours, all 448 Gbit/s of a node": f"{row.together:.2f}",
                "error ": _percent(row.together_error),
                "equal at, Gbit/s": _figure(row.rate, ".0f") or "no rate",
            }
            for row in frame.itertuples()
        ]
    )


def scaling(frame: pd.DataFrame) -> pd.DataFrame:
    """Throughput per GPU with more GPUs, relative to the fewest."""
    return _of(
        [
            {
                "strategy": row.strategy,
                "GPUs": f"{row.ranks}",
                "paper": _figure(row.theirs),
                "ours, one flow": f"{row.ours:.2f}",
                "ours, all links": f"{row.together:.2f}",
                "closed form, nothing hidden": f"{row.closed:.2f}",
            }
            for row in frame.itertuples()
        ]
    )


TABLES = {
    "sweep": Table("sweep.csv", sweep),
    "memory": Table("memory.csv", memory),
    "memory-limits": Table("memory-limits.csv", limits),
    "paper-llama": Table("paper-llama.csv", llama),
    "paper-losses": Table("paper-losses.csv", losses),
    "paper-quantization": Table("paper-quantization.csv", quantization),
    "paper-zeropp": Table("paper-zeropp.csv", zeropp),
    "placements": Table("placements.csv", placements),
    "placements-cheapest": Table("placements-cheapest.csv", cheapest),
    "placements-sites": Table("placements-sites.csv", sites),
    "releases": Table("releases.csv", releases),
    "paro": Table("paro-live.csv", paro),
    "paro-gains": Table("paro-gains.csv", gains),
    "paro-scaling": Table("paro-scaling.csv", scaling),
}
