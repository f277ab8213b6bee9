"""Builds the report of a sweep: where the race shows, where hpZ pays, the cost of each fix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.reports.data.frames import each
from streamrace.reports.data.schema import does_not_hold
from streamrace.reports.pages.study_page import Study, StudyMetadata, read_table, said_of_exercise, texts, unexercised
from streamrace.reports.pages.summary import Fact
from streamrace.reports.pictures import sweep as pictures
from streamrace.reports.pictures.sweep import STOCK
from streamrace.reports.table import Cell, Column, Table
from streamrace.reports.text import slack
from streamrace.studies.sweep import PAYS, ZERO3, gain, matters_from, stops_paying

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
    "manifested": "int64",
    "slack_us": "float64",
    "harmful": "float64",
    "harmful_manifested": "float64",
    "harmful_slack_us": "float64",
    "memory_gib": "float64",
    "fits": "bool",
    "asking_us": "float64",
    "unexercised": "str",
}
_LATER = ("harmful", "harmful_manifested", "harmful_slack_us")  # columns that earlier sweeps lack
_SETTING = ["configuration", "network", "micro_batch"]
_UNFIXED = "hpZ none"
_DECIDED = ("network", "micro_batch", "fix", "stage")  # options decided by the sweep itself
_WORDS = (
    "race", "latent", "manifested", "fix", "hpZ", "ZeRO-3", "gain", "slack", "unordered pairs", "network",
    "micro-batch", "virtual time", "hardware profile", "stream", "rank",
)  # fmt: skip


def load(folder: Path, ran: StudyMetadata) -> Study:
    """Load the sweep of a folder. Raises :class:`streamrace.reports.data.loading.ReportError`."""
    frame = said_of_exercise(read_table(folder / FILE, COLUMNS, optional=(*_LATER, "asking_us", "unexercised")))
    for column in _LATER:  # if missing, all pairs count as harmful
        frame[column] = frame[column].fillna(frame[column.replace("harmful_", "").replace("harmful", "pairs")])
    for configuration in (_UNFIXED, STOCK, ZERO3):
        if configuration not in set(frame.configuration):
            raise does_not_hold(folder / FILE, f"it has no row of {configuration}")
    settings = frame[["network", "micro_batch"]].drop_duplicates()
    if frame.duplicated(_SETTING).any() or len(frame) != len(settings) * frame.configuration.nunique():
        raise does_not_hold(folder / FILE, "its configurations do not have the same settings, each once")
    return study(frame, ran)


def study(frame: pd.DataFrame, ran: StudyMetadata) -> Study:
    """Return the report of the frame of :func:`streamrace.studies.sweep.sweep`."""
    older = _released(frame)
    seen = _Seen(frame[~frame.configuration.isin(older)])
    options = texts({name: value for name, value in ran.options.items() if name not in _DECIDED})
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
        Fact("the synchronisation matters", _matters(frame, _UNFIXED), "network"),
        *(Fact(f"DeepSpeed {name.removeprefix('hpZ ')}", _as_released(frame, name), "race") for name in older),
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
        charts={"phase-diagram": pictures.phases(frame, [_UNFIXED, *older]), "throughput": pictures.throughput(frame)},
        tables=[_gains(frame), *([_releases(frame, older)] if older else []), _fixes(frame, older), _settings(frame)],
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=frame,
        words=_WORDS,
    )


class _Seen:
    """The result for the race. A setting is one network with one micro-batch."""

    def __init__(self, frame: pd.DataFrame) -> None:
        unfixed = frame[frame.configuration == _UNFIXED]
        fixed = frame[~frame.configuration.isin([_UNFIXED])]
        fixes = [name.removeprefix("hpZ ") for name in dict.fromkeys(fixed.configuration) if name != ZERO3]
        total, racing, shown = len(unfixed), int((unfixed.pairs > 0).sum()), int((unfixed.manifested > 0).sum())
        left = fixed[fixed.pairs > 0]
        partly, told = unexercised(unfixed[unfixed.pairs == 0])
        self.without = (
            f"the race is there in {racing} of {total} settings; {shown} show it, {racing - shown} come out right by "
            f"luck{_closest(unfixed)}"
            if racing
            else f"no race in {total} settings"
        )
        if partly:
            self.without += f"; in {partly} not all was exercised"
        self.within = f"no race in {len(fixed)} runs ({', '.join([*fixes, ZERO3])})"
        if len(left):
            self.within = f"a race in {len(left)} of {len(fixed)} runs: {', '.join(dict.fromkeys(left.configuration))}"
            self.verdict, self.tone = "a race is left", "bad"
            names = ", ".join(dict.fromkeys(left.configuration))
            self.sentence = f"A race is left where none should be ({names}), so training may go wrong there"
        elif not racing and partly == total:
            self.verdict, self.tone = "not exercised", "warn"
            self.sentence = (
                f"Nothing is known of hpZ's race: in none of the {total} settings was all of it exercised ({told})"
            )
        elif not racing and partly:
            self.verdict, self.tone = "no race where it was exercised", "warn"
            self.sentence = f"No race was found, but in {partly} of {total} settings not all was exercised ({told})"
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
            if partly:
                self.sentence += f"; in {partly} of {total} settings not all was exercised ({told})"


def _speed(frame: pd.DataFrame) -> str:
    gains = gain(frame)
    best = float(gains.max().max())
    if best < PAYS:
        return f"hpZ does not pay here, as it is at best {best:.2f} times as fast as ZeRO-3"
    network = gains.max().idxmax()
    return f"hpZ makes a step up to {best:.2f} times as fast as ZeRO-3 (at {network:g} Gbit/s between nodes)"


def _pays(frame: pd.DataFrame) -> str:
    """Describe up to which bandwidth hpZ pays, over all micro-batches."""
    ends = sorted((float(end), int(str(batch))) for batch, end in stops_paying(frame).dropna().items())
    if not ends:
        return "nowhere" if gain(frame).max().max() < PAYS else "up to the fastest network"
    told = [f"{end:.0f} Gbit/s (micro-batch {batch})" for end, batch in dict.fromkeys((ends[0], ends[-1]))]
    return f"{100 * (PAYS - 1):.0f} % or more, up to {' … '.join(told)}"


def _gains(frame: pd.DataFrame) -> Table:
    gains, ends = gain(frame), stops_paying(frame)
    races = {(one.network, one.micro_batch): one for one in each(frame[frame.configuration == _UNFIXED])}
    rows = []
    for batch in gains.index:
        cells = []
        for network in gains.columns:
            mark, tone = _mark(races.get((network, batch)))
            value = gains.loc[batch, network]
            cells.append(Cell(f"{value:.2f}{mark}" if math.isfinite(value) else "", tone))
        rows.append([str(batch), *cells, ends[batch]])
    networks = [Column(f"{network:g}", right=True) for network in gains.columns]
    return Table(
        "How many times as fast as ZeRO-3 hpZ is, by Gbit/s between nodes",
        ["micro-batch", *networks, Column(f"pays < {100 * (PAYS - 1):.0f} % from", ".0f")],
        rows,
        "Without a fix the race shows there: ! every unordered pair is reversed, ? some are. Elsewhere the race is "
        "there as well, and latent.",
    )


def _mark(one: Any) -> tuple[str, str]:
    if one is None or not one.manifested:
        return "", ""
    return (" !", "bad") if one.manifested == one.pairs else (" ?", "warn")


def _released(frame: pd.DataFrame) -> list[str]:
    """Return the configurations of other releases."""
    ours = {ZERO3, *(f"hpZ {fix}" for fix in Fix)}
    return [name for name in dict.fromkeys(frame.configuration) if name not in ours]


def _matters(frame: pd.DataFrame, configuration: str) -> str:
    """Describe from which bandwidth on a harmful pair is reversed, over all micro-batches."""
    starts = {int(str(batch)): float(start) for batch, start in matters_from(frame, configuration).items()}
    lowest = frame.network.min()
    everywhere = [str(batch) for batch, start in starts.items() if start == 0]
    if len(everywhere) == len(starts):
        return f"on every network from {lowest:g} Gbit/s on"
    told = [f"on every network from {lowest:g} Gbit/s on (micro-batch {', '.join(everywhere)})"] if everywhere else []
    between = sorted((start, batch) for batch, start in starts.items() if start > 0)
    if between:
        ends = dict.fromkeys((between[0], between[-1]))
        told.append("from " + " … ".join(f"{start:.0f} Gbit/s (micro-batch {batch})" for start, batch in ends) + " on")
    nowhere = [str(batch) for batch, start in starts.items() if math.isnan(start)]
    if nowhere:
        told.append(f"nowhere up to {frame.network.max():g} Gbit/s (micro-batch {', '.join(nowhere)})")
    return "; ".join(told)


def _as_released(frame: pd.DataFrame, name: str) -> str:
    rows = frame[frame.configuration == name]
    shown = int((rows.harmful_manifested > 0).sum())
    return f"a harmful pair is reversed in {shown} of {len(rows)} settings: {_matters(frame, name)}"


def _releases(frame: pd.DataFrame, older: Sequence[str]) -> Table:
    """Return the harmful pairs by network: the pinned release without a fix, and the others unmodified."""
    rows = []
    for name in (_UNFIXED, *older):
        found = frame[frame.configuration == name]
        starts = matters_from(frame, name)
        for batch, start in starts.items():
            by_network = found[found.micro_batch == batch].set_index("network")
            cells = []
            for network in sorted(frame.network.unique()):
                one = by_network.loc[network]
                bad, all_of = int(one.harmful_manifested), int(one.harmful)
                tone = "bad" if bad and bad == all_of else "warn" if bad else ""
                cells.append(Cell(f"{bad} of {all_of}", tone))
            text = "every" if start == 0 else "none" if math.isnan(start) else f"{start:.0f}"
            rows.append([f"{_release(name)}, micro-batch {batch}", *cells, text])
    networks = [Column(f"{network:g}", right=True) for network in sorted(frame.network.unique())]
    return Table(
        "Harmful pairs that are reversed, by Gbit/s between nodes",
        ["release", *networks, Column("reversed from", right=True)],
        rows,
        "A pair is harmful if the other order reads another value: new memory, or a value of before the optimizer's "
        "step. The last column is the network from which on one is reversed.",
    )


def _release(configuration: str) -> str:
    return "no fix" if configuration == _UNFIXED else f"{configuration.removeprefix('hpZ ')} as released"


def _fixes(frame: pd.DataFrame, older: Sequence[str]) -> Table:
    """Return the findings with each fix, and its cost."""
    frame = frame[~frame.configuration.isin(older)]
    stock = frame[frame.configuration == STOCK].set_index(["network", "micro_batch"]).step_s
    rows = []
    for name, found in frame.groupby("configuration", sort=False):
        more = (found.set_index(["network", "micro_batch"]).step_s / stock - 1).dropna()
        racing, manifested = int((found.pairs > 0).sum()), int((found.manifested > 0).sum())
        race = Cell(f"{racing} of {len(found)}", "bad") if racing else Cell("none", "good")
        closest = (str(manifested), slack(found.slack_us.min())) if racing else ("", "")
        rows.append([str(name), race, *closest, "" if name == STOCK or more.empty else _between(more)])
    return Table(
        "What was found with each fix, and what it costs",
        ["configuration", "settings with a race", "of them manifested", "slack", "step time against stream-sync"],
        rows,
        "The step time is virtual time, from the best setting to the worst.",
    )


def _settings(frame: pd.DataFrame) -> Table:
    """Return a table of every setting without a fix, with its throughput and ZeRO-3's."""
    plain = frame[frame.configuration == ZERO3].set_index(["network", "micro_batch"]).tokens_per_second
    rows = [
        [
            f"{one.network:g} Gbit/s, micro-batch {one.micro_batch}",
            f"{one.manifested} of {one.pairs} reversed" if one.pairs else "no race",
            slack(one.slack_us) if one.pairs else "",
            one.step_s,
            one.tokens_per_second,
            plain.get((one.network, one.micro_batch)),
            Cell(f"{one.memory_gib:.1f} GiB", *(() if one.fits else ("bad", "does not fit"))),
        ]
        for one in each(frame[frame.configuration == _UNFIXED])
    ]
    numbers = [Column("step", "{:.4g} s"), Column("tokens/s", ",.0f"), Column(f"{ZERO3}, tokens/s", ",.0f")]
    columns = ["setting", "unordered pairs", "slack", *numbers, "memory"]
    return Table("Every setting without a fix", columns, rows, brief=False)


def _between(more: pd.Series) -> str:
    low, high = (f"{round(100 * value, 2) + 0.0:+.2f} %" for value in (more.min(), more.max()))  # no -0.00
    return low if low == high else f"{low} to {high}"


def _closest(rows: pd.DataFrame) -> str:
    found = rows[rows.manifested > 0]
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
