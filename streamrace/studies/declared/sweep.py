"""Declares the study ``sweep``: one model over networks and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import pandas as pd

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.releases import PINNED, installed
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import job
from streamrace.studies import sweep as study
from streamrace.studies.declared.why import start
from streamrace.studies.lists import numbers
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan, StudyRun, listed, slack, unexercised
from streamrace.studies.sweep import PAYS, STOCK, UNFIXED, ZERO3, gain, matters_from, stops_paying
from streamrace.studies.table import Cell, Column, Table, each

_USUAL = {"hpz": 8}
_TOLD = 0.01  # part of a step from which on the effect of queries is reported


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    release = options.pop("deepspeed", PINNED)
    part = release != PINNED and installed() == release  # this process was started by the run elsewhere below
    base = job(**{**_USUAL, **options, **({"deepspeed": release} if part else {})})
    if base.hpz == 1:
        raise ScenarioError("--hpz 1 switches hpZ off, and the sweep compares it with ZeRO-3: choose a group size")
    base.check()
    networks = numbers("--networks", own["networks"], float)
    batches = numbers("--micro-batches", own["micro_batches"], int)
    title = f"{base.model}, {base.nodes} x {base.gpus} GPUs, hpZ {base.hpz}, accumulation {base.accumulation}"

    def measure(run: StudyRun) -> Frames:
        with run.counting() as progress:
            frame = study.sweep(
                base, run.folder, networks=networks, micro_batches=batches, workers=run.workers, progress=progress
            )
        if part:
            return {"sweep": frame}
        if release != PINNED:
            other = run.elsewhere(release)
            names = [*frame.configuration, *other.configuration]
            frame = study.ordered(pd.concat([frame, other], ignore_index=True), names)
        if (part_of := study.query_share(frame)) >= _TOLD:
            run.tell(
                f"In these runs no query of an event is answered, so a step may be up to {part_of:.1%} longer "
                "than in 'streamrace dry', and more pairs unordered: the column asking_us says it of each row."
            )
        return {"sweep": frame}

    return StudyPlan.of(base, measure, f"{title}: {len(networks)} networks, {len(batches)} micro-batches", part=part)


def _completed(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill the harmful pairs of an earlier sweep, in which all pairs count as harmful."""
    for name in ("harmful", "harmful_manifested", "harmful_slack_us"):
        frame[name] = frame[name].fillna(frame[name.replace("harmful_", "").replace("harmful", "pairs")])
    for configuration in (UNFIXED, STOCK, ZERO3):
        if configuration not in set(frame.configuration):
            raise ValueError(f"it has no row of {configuration}")
    settings = frame[["network", "micro_batch"]].drop_duplicates()
    twice = frame.duplicated(["configuration", "network", "micro_batch"]).any()
    if twice or len(frame) != len(settings) * frame.configuration.nunique():
        raise ValueError("its configurations do not have the same settings, each once")
    return frame


def as_released(frame: pd.DataFrame) -> list[str]:
    """Return the configurations of other releases than the pinned one."""
    own = {ZERO3, *(f"hpZ {fix}" for fix in Fix)}
    return [name for name in dict.fromkeys(frame.configuration) if name not in own]


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    frame = frames["sweep"]
    older = as_released(frame)
    verdict, tone, sentence, without, within = _races(frame[~frame.configuration.isin(older)])
    facts = [
        Fact("job", title := _title(options)),
        Fact("networks", f"{listed(sorted(frame.network))} Gbit/s between nodes", "network"),
        Fact("micro-batches", f"{listed(sorted(frame.micro_batch))} sequences per GPU", "micro-batch"),
        Fact("compared", ", ".join(dict.fromkeys(frame.configuration))),
        Fact("without a fix", without, "race"),
        Fact("with a fix", within, "fix"),
        Fact("hpZ pays", _pays(frame), "gain"),
        Fact("the synchronisation matters", _matters(frame, UNFIXED), "network"),
    ]
    for name in older:
        rows = frame[frame.configuration == name]
        shown = f"{int((rows.harmful_manifested > 0).sum())} of {len(rows)} settings"
        text = f"a harmful pair is reversed in {shown}: {_matters(frame, name)}"
        facts.append(Fact(f"DeepSpeed {name.removeprefix('hpZ ')}", text, "race"))
    if not frame.fits.all():
        facts.append(Fact("memory", f"{int((~frame.fits).sum())} of {len(frame)} runs would not fit on the GPU"))
    heading = f"Where the race shows and where hpZ pays: {title}"
    return Conclusion(heading, verdict, tone, f"{sentence}; {_speed(frame)}.", facts)


def _races(frame: pd.DataFrame) -> tuple[str, str, str, str, str]:
    """Return verdict, tone and sentence on the race, and the facts without and with a fix, over all settings of network
    and micro-batch.
    """
    unfixed, fixed = frame[frame.configuration == UNFIXED], frame[frame.configuration != UNFIXED]
    fixes = [name.removeprefix("hpZ ") for name in dict.fromkeys(fixed.configuration) if name != ZERO3]
    total, racing, shown = len(unfixed), int((unfixed.pairs > 0).sum()), int((unfixed.manifested > 0).sum())
    racy = fixed[fixed.pairs > 0]
    partly, features = unexercised(unfixed[unfixed.pairs == 0])
    without = f"no race in {total} settings"
    if racing:
        luck = f"{racing - shown} come out right by luck"
        without = f"the race is there in {racing} of {total} settings; {shown} show it, {luck}{_closest(unfixed)}"
    if partly:
        without += f"; in {partly} not all was exercised"
    within = f"no race in {len(fixed)} runs ({', '.join([*fixes, ZERO3])})"
    not_all = f"in {partly} of {total} settings not all was exercised ({features})"
    if len(racy):
        names = ", ".join(dict.fromkeys(racy.configuration))
        within = f"a race in {len(racy)} of {len(fixed)} runs: {names}"
        sentence = f"A race is left where none should be ({names}), so training may go wrong there"
        return "a race is left", "bad", sentence, without, within
    if racing:
        everywhere = f"each of the {total}" if racing == total else f"{racing} of {total}"
        sentence = (
            f"hpZ needs its synchronisation: without it {everywhere} settings has the race ({shown} show it, {luck}), "
            f"with {', '.join(fixes[:-1])}{' or ' if len(fixes) > 1 else ''}{fixes[-1]} none has"
        )
        sentence += f"; {not_all}" if partly else ""
        return "the synchronisation is needed, and enough", "good", sentence, without, within
    if partly == total:
        sentence = (
            f"Nothing is known of hpZ's race: in none of the {total} settings was all of it exercised ({features})"
        )
        return "not exercised", "warn", sentence, without, within
    if partly:
        return "no race where it was exercised", "warn", f"No race was found, but {not_all}", without, within
    nothing = "No race was found in any setting, with a synchronisation or without it"
    return "no race", "good", nothing, without, within


def _closest(rows: pd.DataFrame) -> str:
    manifested = rows[rows.manifested > 0]
    if manifested.empty:
        return ""
    network, batch = min(zip(manifested.network, manifested.micro_batch, strict=True))
    return f"; the slowest network that shows it has {network:g} Gbit/s (micro-batch {batch})"


def _speed(frame: pd.DataFrame) -> str:
    gains = gain(frame)
    best = float(gains.max().max())
    if best < PAYS:
        return f"hpZ does not pay here, as it is at best {best:.2f} times as fast as ZeRO-3"
    network = gains.max().idxmax()
    return f"hpZ makes a step up to {best:.2f} times as fast as ZeRO-3 (at {network:g} Gbit/s between nodes)"


def _pays(frame: pd.DataFrame) -> str:
    """Describe up to which bandwidth hpZ pays, over all micro-batches."""
    ends = sorted((float(end), int(str(batch))) for batch, end in stops_paying(frame).items() if end > 0)
    if not ends:
        return "nowhere" if gain(frame).max().max() < PAYS else "up to the fastest network"
    return f"{100 * (PAYS - 1):.0f} % or more, up to {_ends(ends)}"


def _ends(points: Sequence[tuple[float, int]]) -> str:
    """Return the lowest and the highest bandwidth of a sorted list, with their micro-batches."""
    return " … ".join(
        f"{gbits:.0f} Gbit/s (micro-batch {batch})" for gbits, batch in dict.fromkeys((points[0], points[-1]))
    )


def _matters(frame: pd.DataFrame, configuration: str) -> str:
    """Describe from which bandwidth on a harmful pair is reversed, over all micro-batches."""
    starts = {int(str(batch)): float(start) for batch, start in matters_from(frame, configuration).items()}
    lowest = f"on every network from {frame.network.min():g} Gbit/s on"
    everywhere = [str(batch) for batch, start in starts.items() if start == 0]
    if len(everywhere) == len(starts):
        return lowest
    parts = [f"{lowest} (micro-batch {', '.join(everywhere)})"] if everywhere else []
    if between := sorted((start, batch) for batch, start in starts.items() if start > 0):
        parts.append(f"from {_ends(between)} on")
    if nowhere := [str(batch) for batch, start in starts.items() if math.isnan(start)]:
        parts.append(f"nowhere up to {frame.network.max():g} Gbit/s (micro-batch {', '.join(nowhere)})")
    return "; ".join(parts)


def _title(options: Mapping[str, str]) -> str:
    get = options.get
    return (
        f"{get('model', 'a model')}, {get('nodes', '?')} nodes of {get('gpus', '?')} GPUs, hpZ {get('hpz', '?')}, "
        f"accumulation {get('accumulation', '?')}, sequence {get('sequence', '?')}"
        + (", gradient checkpointing" if get("checkpointing") == "true" else "")
    )


def _tables(frames: Frames) -> list[Table]:
    frame = frames["sweep"]
    older = as_released(frame)
    return [_gains(frame), *([_releases(frame, older)] if older else []), _fixes(frame, older), _settings(frame)]


def _by_network(frame: pd.DataFrame) -> list[Column]:
    return [Column(f"{network:g}", right=True) for network in sorted(frame.network.unique())]


def _gains(frame: pd.DataFrame) -> Table:
    gains, ends = gain(frame), stops_paying(frame)
    cells: dict[int, list[Any]] = {}
    for row in each(frame[frame.configuration == UNFIXED].sort_values(["micro_batch", "network"])):
        mark, tone = (" !", "bad") if row.manifested == row.pairs else (" ?", "warn")
        mark, tone = (mark, tone) if row.manifested else ("", "")
        text = f"{gains.loc[row.micro_batch, row.network]:.2f}{mark}"
        cells.setdefault(row.micro_batch, [str(row.micro_batch)]).append(Cell(text, tone))
    return Table(
        "How many times as fast as ZeRO-3 hpZ is, by Gbit/s between nodes",
        ["micro-batch", *_by_network(frame), Column(f"pays < {100 * (PAYS - 1):.0f} % from", right=True)],
        [[*row, start(ends[batch])] for batch, row in cells.items()],
        "Without a fix the race shows there: ! every unordered pair is reversed, ? some of them are. Elsewhere the "
        "race is there as well, and latent: right by luck.",
    )


def _releases(frame: pd.DataFrame, older: Sequence[str]) -> Table:
    """Return the harmful pairs by network: the pinned release without a fix, and the others unmodified."""
    rows, counts = [], ["harmful_manifested", "harmful"]
    for name in (UNFIXED, *older):
        starts = matters_from(frame, name)
        release = "no fix" if name == UNFIXED else f"{name.removeprefix('hpZ ')} as released"
        for batch, runs in frame[frame.configuration == name].groupby("micro_batch"):
            cells = [
                Cell(f"{bad} of {harmful}", "bad" if bad and bad == harmful else "warn" if bad else "")
                for bad, harmful in runs.sort_values("network")[counts].astype(int).to_numpy()
            ]
            rows.append([f"{release}, micro-batch {batch}", *cells, start(starts[batch])])
    return Table(
        "Harmful pairs that are reversed, by Gbit/s between nodes",
        ["release", *_by_network(frame), Column("reversed from", right=True)],
        rows,
        "A pair is harmful if the other order reads another value: new memory, or a value of before the optimizer's "
        "step. The last column is the network from which on one is reversed.",
    )


def _fixes(frame: pd.DataFrame, older: Sequence[str]) -> Table:
    """Return the findings with each fix, and its cost."""
    setting = ["network", "micro_batch"]
    stock = frame[frame.configuration == STOCK].set_index(setting).step_s
    rows = []
    for name, runs in frame[~frame.configuration.isin(older)].groupby("configuration", sort=False):
        more = (runs.set_index(setting).step_s / stock - 1).dropna()
        racing, manifested = int((runs.pairs > 0).sum()), int((runs.manifested > 0).sum())
        race = Cell(f"{racing} of {len(runs)}", "bad") if racing else Cell("none", "good")
        closest = (str(manifested), slack(runs.slack_us.min())) if racing else ("", "")
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
            f"{row.network:g} Gbit/s, micro-batch {row.micro_batch}",
            f"{row.manifested} of {row.pairs} reversed" if row.pairs else "no race",
            slack(row.slack_us) if row.pairs else "",
            row.step_s,
            row.tokens_per_second,
            plain.get((row.network, row.micro_batch)),
            Cell(f"{row.memory_gib:.1f} GiB", *(() if row.fits else ("bad", "does not fit"))),
        ]
        for row in each(frame[frame.configuration == UNFIXED])
    ]
    numbers = [Column("step", "{:.4g} s"), Column("tokens/s", ",.0f"), Column(f"{ZERO3}, tokens/s", ",.0f")]
    columns = ["setting", "unordered pairs", "slack", *numbers, "memory"]
    return Table("Every setting without a fix", columns, rows, brief=False)


def _between(more: Iterable[float]) -> str:
    low, high = (f"{round(100 * value, 2) + 0.0:+.2f} %" for value in (min(more), max(more)))  # no -0.00
    return low if low == high else f"{low} to {high}"


_NETWORKS, _MICRO_BATCHES = (listed(values).replace(" ", "") for values in (study.NETWORKS, study.MICRO_BATCHES))
STUDY = Study(
    question="Where does the race show, and where does hpZ pay?",
    text="""Find where the race shows and hpZ pays: hpZ with each fix, and ZeRO-3, over networks and micro-batches.

    Writes a table (sweep.csv) and a report, with the phase diagram of the race and throughput against bandwidth.
    With --deepspeed that unmodified release is compared with the pinned one.
    """,
    columns={"sweep": study.COLUMNS},
    later=("harmful", "harmful_manifested", "harmful_slack_us", "asking_us", "unexercised"),
    completed=_completed,
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    options=(
        click.option("--networks", default=_NETWORKS, help=f"Gbit/s between nodes. [default: {_NETWORKS}]"),
        click.option("--micro-batches", default=_MICRO_BATCHES, help=f"Sequences per GPU. [default: {_MICRO_BATCHES}]"),
    ),
    decided=("network", "micro_batch", "fix", "stage", "steps"),
    usual=_USUAL,
    release="--deepspeed",
    takes="table and pictures",
    replaces="a sweep",
    words=(
        "race", "latent", "manifested", "fix", "hpZ", "ZeRO-3", "gain", "slack", "unordered pairs", "network",
        "micro-batch", "virtual time", "hardware profile", "stream", "rank",
    ),
)  # fmt: skip
