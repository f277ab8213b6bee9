"""Tables of where a race shows, why, and what orders it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from docs.cells import DATA, Cells, Table, form, name_of, rows_of
from streamrace.scenarios.catalogue.entry import CONTROLS, HANGS


def sweep(frame: pd.DataFrame) -> list[Cells]:
    """By micro-batch and network: how many times as fast as ZeRO-3 hpZ is, and whether its race shows without a fix."""
    from streamrace.studies.sweep import gain, stops_paying

    gains: Any = gain(frame)
    ends = stops_paying(frame)
    rows: dict[int, Cells] = {}
    for row in rows_of(frame[frame.configuration == "hpZ none"].sort_values("network")):
        cells = rows.setdefault(row.micro_batch, {"micro-batch": f"{row.micro_batch}"})
        mark = "&nbsp;**!**" if row.manifested == row.pairs else "&nbsp;*?*" if row.manifested else ""
        cells[f"{row.network:g}"] = f"{gains.at[row.micro_batch, row.network]:.2f}{mark}"
    return [{**rows[batch], "pays less than 5 % from": _start(float(ends[batch]))} for batch in sorted(rows)]


def sweep_releases(frame: pd.DataFrame) -> list[Cells]:
    """The pinned release without a fix, and others as released: harmful pairs that are reversed, by network."""
    from streamrace.frameworks.deepspeed.fixes import Fix
    from streamrace.studies.sweep import ZERO3, matters_from

    fixed = {ZERO3, *(f"hpZ {fix}" for fix in Fix if fix is not Fix.NONE)}
    rows = []
    for configuration in dict.fromkeys(frame.configuration):
        if configuration in fixed:
            continue
        starts = matters_from(frame, configuration)
        name = configuration.removeprefix("hpZ ").replace("none", "0.19.8, no fix")
        for batch, found in frame[frame.configuration == configuration].groupby("micro_batch"):
            cells = {"DeepSpeed": name, "micro-batch": f"{batch}"}
            for row in rows_of(found.sort_values("network")):
                bad = f"{row.harmful_manifested:.0f}/{row.harmful:.0f}"
                cells[f"{row.network:g}"] = f"**{bad}**" if row.harmful_manifested else bad
            rows.append({**cells, "reversed from": _start(starts[batch])})
    return rows


def sweep_host(frame: pd.DataFrame) -> list[Cells]:
    """The sweep whose hosts take time for Python code, beside the one whose hosts take none."""
    from streamrace.studies.sweep import STOCK, UNFIXED, ZERO3, matters_from, stops_paying

    both = pd.read_csv(DATA / "sweep.csv"), frame
    shows = [matters_from(one, UNFIXED) for one in both]
    pays = [stops_paying(one) for one in both]
    setting = ["configuration", "micro_batch", "network"]
    longer = frame.set_index(setting).step_s / both[0].set_index(setting).step_s - 1
    return [
        {
            "micro-batch": f"{batch}",
            "0.19.8 without a fix: reversed from": " / ".join(_start(one[batch]) for one in shows),
            "hpZ pays less than 5 % from": " / ".join(_start(one[batch]) for one in pays),
            **{f"{name}: step longer by": _most(longer[name][batch]) for name in (ZERO3, STOCK)},
        }
        for batch in sorted(set(frame.micro_batch))
    ]


def _most(longer: pd.Series[float]) -> str:
    return f"{longer.min():.2%} to {longer.max():.1%}"


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
        for row in rows_of(frame[frame.release == release])
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
        for row in rows_of(found.sort_values("release", kind="stable"))
    ]


def why_losses(frame: pd.DataFrame) -> list[Cells]:
    """What Trainer prints, step by step."""
    rows = []
    for release, found in frame.groupby("release", sort=False):
        cells = {"DeepSpeed": str(release)}
        for row in rows_of(found):
            norm = "NaN" if pd.isna(row.gradient_norm) else f"{row.gradient_norm:.3f}"
            cells[f"step {row.step}: loss"] = f"{row.loss:.4f}" if row.loss else "**0.0**"
            cells[f"step {row.step}: gradient norm"] = norm
        rows.append(cells)
    return rows


def _start(gbits: float) -> str:
    """The bandwidth from which on something holds, in words where it is none of the sweep's."""
    return "every" if gbits == 0 else "none" if pd.isna(gbits) else f"{gbits:.0f}"


def placements(frame: pd.DataFrame) -> list[Cells]:
    """A row for each fix: races, and how much longer than the fastest race-free one a step takes, by job."""
    frame = frame.assign(size=[model.rpartition("-")[2].upper() for model in frame.model])
    best = frame[frame.race_free].groupby(["model", "gbits"]).step_s.min()
    common = frame.groupby("gbits").model.nunique().idxmax()
    rows = []
    for fix, found in frame.groupby("fix", sort=False):
        what = ": ".join(str(word) for word in (found["where"].iloc[0], found.what.iloc[0]) if not pd.isna(word))
        racy = ", ".join(f"{row.size}: {row.races}" for row in rows_of(found[found.races > 0].drop_duplicates("model")))
        cells = {"`--fix`": f"`{fix}`", "where, and what": what, "races": f"**{racy}**" if racy else "none"}
        for row in rows_of(found):
            cells[f"{row.size} at {row.gbits:g} Gbit/s, ms"] = (
                f"{1000 * (row.step_s - best[(row.model, row.gbits)]):+.2f}"
            )
        waits = found[(found.waits > 0) & (found.gbits == common)]
        cells[f"the host waits there, at {common:g} Gbit/s"] = "<br>".join(
            f"{row.size}: {row.waits} times, {row.waited_s:.1f} s" for row in rows_of(waits)
        )
        rows.append(cells)
    return rows


def releases(frame: pd.DataFrame) -> list[Cells]:
    """A row for each release, with both of its runs."""
    rows = []
    for release, found in frame.groupby("release", sort=False):
        cells = {"release": str(release)}
        for row in rows_of(found):
            causes = [name for name in ("race", "stale", "uncovered") if getattr(row, name)]
            cells[row.run] = ", ".join(causes) or ("wrong values" if row.wrong_values else "clean")
            if not row.ran:
                cells[row.run] = f"does not run: {row.failure}"
            never = pd.isna(row.wrong_from_step)
            cells[f"{row.run}: wrong from"] = "never" if never else f"step {row.wrong_from_step:g}"
            cells[f"{row.run}: evidence"] = "" if pd.isna(row.evidence) else row.evidence
        rows.append(cells)
    return rows


def catalogue(frame: pd.DataFrame, kinds: tuple[str, ...]) -> list[Cells]:
    """A row for each entry of these kinds, with both sides."""
    rows = []
    for name, found in frame[frame.kind.isin(kinds)].fillna("").groupby("id", sort=False):
        affected, fixed = rows_of(found)
        row = {"id": f"`{name}`", "bug": affected.title}
        if affected.kind == "not-shown":
            rows.append({**row, "what was tried": affected.tried})
            continue
        row["affected"] = f"{affected.ran}: **{affected.verdict}**"
        row["fixed"] = f"{fixed.ran}: {fixed.verdict}" + (
            f" ({affected.cost:+.1%} of time)" if affected.cost != "" else ""
        )
        if affected.kind == "open":
            row["bug"] = f"{affected.title}. {affected.mechanism}"
        if affected.harm:
            row |= {
                "both lines": affected.lines.replace(" | ", "<br>"),
                "witness": f"{affected.harm}<br>`{affected.token}`",
            }
        else:
            row["evidence"] = affected.evidence
        rows.append(row)
    return rows


def reach(frame: pd.DataFrame) -> list[Cells]:
    """Make a row for the public programs with the same packages and the same result."""
    same = ["packages", "result", "why", "verdict"]
    return [
        {
            "packages": str(packages),
            "programs": ", ".join(found.program).replace("/", "/<wbr>"),
            "result": f"{result}: {why}" if why else str(result),
            "verdict": str(verdict),
        }
        for (packages, result, why, verdict), found in frame.fillna("").groupby(same, sort=False)
    ]


def reach_counts(frame: pd.DataFrame) -> list[Cells]:
    """Count the public programs by what came of them."""
    counts = Counter(frame.result)
    return [
        {"result": result, "programs": str(count), "share": f"{count / len(frame):.0%}"}
        for result, count in counts.most_common()
    ]


def peers(frame: pd.DataFrame, by: str) -> list[Cells]:
    """Make a row for each suite of the peers' tests, with the counts by a column; what passes stands in front."""
    first = [told not in ("passed", "on both") for told in frame[by]]
    return [
        {"suite": str(suite), "tests": str(found.tests.sum())}
        | {str(told): str(same.tests.sum()) for told, same in found.groupby(by, sort=False)}
        for suite, found in frame.assign(first=first).sort_values("first", kind="stable").groupby("suite", sort=False)
    ]


def peers_reasons(frame: pd.DataFrame, by: str) -> list[Cells]:
    """Make a row for each reason for which tests of the peers do not pass."""
    rest = frame[~frame[by].isin(["passed", "on both", "skipped by the test"])].sort_values(by, kind="stable")
    return [
        {
            by: str(told),
            "why": str(why),
            "tests": str(found.tests.sum()),
            "for example": f"`{found.example.iloc[0].rpartition('::')[2]}`",
        }
        for (told, why), found in rest.groupby([by, "why"], sort=False)
    ]


RACES: dict[str, Table] = {
    "reach": Table("reach.csv", reach),
    "reach-counts": Table("reach.csv", reach_counts),
    "peers": Table("peers.csv", partial(peers, by="result")),
    "peers-reasons": Table("peers.csv", partial(peers_reasons, by="result")),
    "peers-real-build": Table("peers-real-build.csv", partial(peers, by="passes")),
    "peers-real-build-reasons": Table("peers-real-build.csv", partial(peers_reasons, by="passes")),
    "catalogue": Table("catalogue.csv", partial(catalogue, kinds=("race",))),
    "catalogue-open": Table("catalogue.csv", partial(catalogue, kinds=("open",))),
    "catalogue-hangs": Table("catalogue.csv", partial(catalogue, kinds=HANGS)),
    "catalogue-controls": Table("catalogue.csv", partial(catalogue, kinds=CONTROLS)),
    "catalogue-missing": Table("catalogue.csv", partial(catalogue, kinds=("not-shown",))),
    "sweep": Table("sweep.csv", sweep),
    "sweep-releases": Table("sweep.csv", sweep_releases),
    "sweep-host": Table("sweep-host.csv", sweep_host),
    "sweep-releases-2-nodes": Table("sweep-2-nodes.csv", sweep_releases),
    "why-releases": Table("why.csv", why_releases),
    "why-losses": Table("why-losses.csv", why_losses),
    "why-0.13.4": Table("why.csv", partial(why, release="0.13.4")),
    "why-0.19.8": Table("why.csv", partial(why, release="0.19.8")),
    "placements": Table("placements.csv", placements),
    "placements-cheapest": Table(
        "placements-cheapest.csv",
        {
            "model": name_of,
            "Gbit/s": form("gbits", "g"),
            "cheapest race-free": lambda row: f"`{row.fix}`",
            "seconds a step": form("step_s", ".4f"),
            "of which the host is blocked": form("host_blocked_s", ".4f"),
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
}
