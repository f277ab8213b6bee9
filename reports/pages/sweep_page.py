"""The report of a sweep: where the race shows, where hpZ pays, what each fix costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reports.charts import sweep_plots as plots
from reports.data.schema import does_not_hold
from reports.pages.study_folder import Ran, said, table
from reports.pages.study_page import Cell, Study, Table
from reports.pages.summary import Fact
from studies.sweep import PAYS, ZERO3, gain, stops_paying

FILE = "sweep.csv"
COLUMNS = {
    "configuration": "str",
    "network": "float64",
    "micro_batch": "int64",
    "step_s": "float64",
    "tokens_per_second": "float64",
    "tflops_per_gpu": "float64",
    "races": "int64",
    "pairs": "int64",
    "shown": "int64",
    "margin_us": "float64",
    "memory_gib": "float64",
    "fits": "bool",
}
_UNFIXED, _STOCK = "hpZ none", "hpZ stream-sync"
_DECIDED = ("network", "micro_batch", "fix", "stage")  # by the sweep itself
_WORDS = (
    "race", "hidden", "shown", "fix", "hpZ", "ZeRO-3", "gain", "margin", "unordered pairs", "network", "micro-batch",
    "virtual time", "hardware profile", "stream", "rank",
)  # fmt: skip


def load(folder: Path, ran: Ran) -> Study:
    """The sweep of a folder. Raises :class:`reports.data.loading.ReportError`."""
    frame = table(folder / FILE, COLUMNS)
    for configuration in (_UNFIXED, _STOCK, ZERO3):
        if configuration not in set(frame.configuration):
            raise does_not_hold(folder / FILE, f"it has no row of {configuration}")
    return study(frame, ran)


def study(frame: pd.DataFrame, ran: Ran) -> Study:
    """What the frame of :func:`studies.sweep.sweep` tells."""
    seen = _Seen(frame)
    options = said({name: value for name, value in ran.options.items() if name not in _DECIDED})
    title = _title(options)
    networks, batches = sorted(frame.network.unique()), sorted(frame.micro_batch.unique())
    facts = [
        Fact("asked", "Where does the race show, and where does hpZ pay?"),
        Fact("job", title),
        Fact("networks", f"{_range(networks)} Gbit/s between nodes", "network"),
        Fact("micro-batches", f"{_range(batches)} sequences per GPU", "micro-batch"),
        Fact("compared", ", ".join(dict.fromkeys(frame.configuration))),
        Fact("without a fix", seen.without, "race"),
        Fact("with a fix", seen.within, "fix"),
        Fact("hpZ pays", _pays(frame), "gain"),
    ]
    if not frame.fits.all():
        facts.append(Fact("memory", f"{int((~frame.fits).sum())} of {len(frame)} runs would not fit on the GPU"))
    if ran.hardware:
        facts.append(Fact("hardware profile", f"{options.get('hardware', '')}: {ran.hardware}", "hardware profile"))
    return Study(
        kind="sweep",
        title=f"Where the race shows and where hpZ pays: {title}",
        verdict=seen.verdict,
        sentence=f"{seen.sentence}; {_speed(frame)}.",
        tone=seen.tone,
        facts=facts,
        charts=plots.draw(frame, _UNFIXED),
        tables=[_gains(frame), _fixes(frame)],
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=frame,
        words=_WORDS,
    )


class _Seen:
    """What became of the race. A setting is one network with one micro-batch."""

    def __init__(self, frame: pd.DataFrame) -> None:
        unfixed = frame[frame.configuration == _UNFIXED]
        fixed = frame[~frame.configuration.isin([_UNFIXED])]
        fixes = [name.removeprefix("hpZ ") for name in dict.fromkeys(fixed.configuration) if name != ZERO3]
        total, racing, shown = len(unfixed), int((unfixed.pairs > 0).sum()), int((unfixed.shown > 0).sum())
        left = fixed[fixed.pairs > 0]
        self.without = (
            f"the race is there in {racing} of {total} settings; {shown} show it, {racing - shown} come out right by "
            f"luck{_closest(unfixed)}"
            if racing
            else f"no race in {total} settings"
        )
        self.within = f"no race in {len(fixed)} runs ({', '.join([*fixes, ZERO3])})"
        if len(left):
            self.within = f"a race in {len(left)} of {len(fixed)} runs: {', '.join(dict.fromkeys(left.configuration))}"
            self.verdict, self.tone = "a race is left", "bad"
            names = ", ".join(dict.fromkeys(left.configuration))
            self.sentence = f"A race is left where none should be ({names}), so training may go wrong there"
        elif not racing:
            self.verdict, self.tone = "no race", "good"
            self.sentence = "No race was found in any setting, with a synchronisation or without it"
        else:
            self.verdict, self.tone = "the synchronisation is needed, and enough", "good"
            everywhere = f"each of the {total}" if racing == total else f"{racing} of {total}"
            self.sentence = (
                f"hpZ needs its synchronisation: without it {everywhere} settings has the race ({shown} show it, "
                f"{racing - shown} come out right by luck), with {_either(fixes)} none has"
            )


def _speed(frame: pd.DataFrame) -> str:
    gains = gain(frame)
    best = float(gains.max().max())
    if best < PAYS:
        return f"hpZ does not pay here, as it is at best {best:.2f} times as fast as ZeRO-3"
    network = gains.max().idxmax()
    return f"hpZ makes a step up to {best:.2f} times as fast as ZeRO-3 (at {network:g} Gbit/s between nodes)"


def _pays(frame: pd.DataFrame) -> str:
    """Up to which bandwidth, over all micro-batches."""
    ends = sorted((float(end), int(str(batch))) for batch, end in stops_paying(frame).dropna().items())
    if not ends:
        return "nowhere" if gain(frame).max().max() < PAYS else "up to the fastest network"
    told = [f"{end:.0f} Gbit/s (micro-batch {batch})" for end, batch in dict.fromkeys((ends[0], ends[-1]))]
    return f"{100 * (PAYS - 1):.0f} % or more, up to {' … '.join(told)}"


def _gains(frame: pd.DataFrame) -> Table:
    gains, ends = gain(frame), stops_paying(frame)
    races = {(row["network"], row["micro_batch"]): row for row in _rows(frame[frame.configuration == _UNFIXED])}
    rows = []
    for batch in gains.index:
        cells = [Cell(str(batch))]
        for network in gains.columns:
            one = races.get((network, batch))
            mark, tone = _mark(one)
            value = gains.loc[batch, network]
            cells.append(Cell(f"{value:.2f}{mark}" if math.isfinite(value) else "", tone))
        rows.append([*cells, Cell(f"{ends[batch]:.0f}" if math.isfinite(ends[batch]) else "")])
    return Table(
        "How many times as fast as ZeRO-3 hpZ is, by Gbit/s between nodes",
        ["micro-batch", *(f"{network:g}" for network in gains.columns), f"pays < {100 * (PAYS - 1):.0f} % from"],
        rows,
        "Without a fix the race shows there: ! every unordered pair is reversed, ? some are. Elsewhere it is there, "
        "too, and hidden.",
    )


def _mark(row: Mapping[str, Any] | None) -> tuple[str, str]:
    if row is None or not row["shown"]:
        return "", ""
    return (" !", "bad") if row["shown"] == row["pairs"] else (" ?", "warn")


def _fixes(frame: pd.DataFrame) -> Table:
    """What was found with each, and what it costs."""
    stock = frame[frame.configuration == _STOCK].set_index(["network", "micro_batch"]).step_s
    rows = []
    for name, found in frame.groupby("configuration", sort=False):
        more = (found.set_index(["network", "micro_batch"]).step_s / stock - 1).dropna()
        racing, shown = int((found.pairs > 0).sum()), int((found.shown > 0).sum())
        rows.append(
            [
                Cell(str(name)),
                Cell(f"{racing} of {len(found)}" if racing else "none", "bad" if racing else "good"),
                Cell(str(shown) if racing else ""),
                Cell(plots.margin(found.margin_us.min()) if racing else ""),
                Cell("" if name == _STOCK or more.empty else _between(more)),
            ]
        )
    return Table(
        "What was found with each fix, and what it costs",
        ["configuration", "settings with a race", "of them shown", "margin", "step time against stream-sync"],
        rows,
        "The step time is virtual time, from the best setting to the worst.",
    )


def _between(more: pd.Series) -> str:
    low, high = (f"{round(100 * value, 2) + 0.0:+.2f} %" for value in (more.min(), more.max()))  # no -0.00
    return low if low == high else f"{low} to {high}"


def _closest(rows: pd.DataFrame) -> str:
    found = rows[rows.shown > 0]
    if found.empty:
        return ""
    network, batch = min(zip(found.network, found.micro_batch, strict=True))
    return f"; the slowest network that shows it has {network:g} Gbit/s (micro-batch {batch})"


def _title(options: Mapping[str, str]) -> str:
    parts = [
        str(options.get("model", "a model")),
        f"{options.get('nodes', '?')} nodes of {options.get('gpus', '?')} GPUs",
        f"hpZ {options.get('hpz', '?')}",
        f"accumulation {options.get('accumulation', '?')}",
        f"sequence {options.get('sequence', '?')}",
    ]
    return ", ".join(parts + (["gradient checkpointing"] if options.get("checkpointing") == "true" else []))


def _range(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _either(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" or " if len(names) > 1 else "") + names[-1]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
