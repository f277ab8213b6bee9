"""Implements ``run`` and ``compare``: run a scenario under one fix, or under several."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.options import Sections, chosen, scenario_options
from streamrace.repro.sessions.release import become
from streamrace.studies.lists import fixes as chosen_fixes

EXPECTATIONS = {
    "unstable": {"unstable"},
    "clean": {"clean"},
    "race": {"unstable", "hidden"},
    "stale": {"stale"},
    "uncovered": {"uncovered"},
}


@click.command(cls=Sections)
@scenario_options()
@flags.run_folder("the time")
@flags.expect(
    *EXPECTATIONS,
    text="Exit with 1 unless this is found: unstable (a race, and wrong values), clean (nothing), race (shown or not), "
    "stale, uncovered.",
)
@flags.reference_again()
def run(
    name: str | None, runs: Path, overwrite: bool, expect: str | None, reference_again: bool, **values: Any
) -> None:
    """Run a scenario on the simulated GPU, and compare it with the same program on plain gloo.

    Ends with the verdict. Exit status: 0 done (and as expected), 1 not as expected, 2 wrong usage,
    3 a rank failed, 6 a hang, 130 interrupted.
    """
    from streamrace.reports.screen import terminal
    from streamrace.reports.screen.terminal import Progress
    from streamrace.repro.sessions import folders, references, session, staging
    from streamrace.scenarios.program import preload
    from streamrace.scenarios.scenario import scenario

    console = Terminal()
    setup = scenario(**chosen(values))
    become([f"deepspeed=={setup.deepspeed}"])
    setup.check()
    folder = folders.of_scenario(runs / (name or f"{datetime.now():%Y%m%d-%H%M%S}"), setup, overwrite=overwrite)
    with Progress(console, _title(setup), setup.steps) as progress:
        progress.doing("importing DeepSpeed")
        preload()
        reference = references.kept_reference(setup, folder, progress, again=reference_again)
        findings = session.simulate(setup, folder, reference, progress)
    folder = staging.commit(folder)
    terminal.verdict(console, findings, folder)
    if expect and str(findings.verdict) not in EXPECTATIONS[expect]:
        console.print(f"Expected {expect}, found {findings.verdict}.", style="red")
        raise SystemExit(1)


@click.command(cls=Sections)
@scenario_options("fix")
@click.option(
    "--fixes",
    default="none,stream-sync",
    help="Fixes to compare, with commas ('streamrace list fixes'). [default: none,stream-sync]",
)
@flags.folder("folder for the runs", "compare", replaces="runs")
@flags.reference_again()
def compare(fixes: str, name: str, runs: Path, overwrite: bool, reference_again: bool, **values: Any) -> None:
    """Run one scenario under several fixes, and compare the verdicts; a report goes to RUNS/NAME/report."""
    from streamrace.reports.pages.folders import write
    from streamrace.reports.screen import terminal
    from streamrace.reports.screen.terminal import Progress
    from streamrace.repro.sessions import folders, references, session, staging
    from streamrace.scenarios.program import preload
    from streamrace.scenarios.scenario import scenario

    console = Terminal()
    setups = {str(word): scenario(**{**chosen(values), "fix": word}) for word in chosen_fixes(fixes)}
    first = next(iter(setups.values()))
    first.check()
    targets = {
        word: folders.of_scenario(runs / f"{name}-{word}", setup, overwrite=overwrite) for word, setup in setups.items()
    }
    findings = {}
    reference = None
    for word, setup in setups.items():
        with Progress(console, _title(setup), setup.steps) as progress:
            if reference is None:
                progress.doing("importing DeepSpeed")
                preload()
                reference = references.kept_reference(setup, targets[word], progress, again=reference_again)
            else:
                references.show(reference, progress)
            findings[word] = session.simulate(setup, targets[word], reference, progress)
        terminal.verdict(console, findings[word], runs / f"{name}-{word}")
    targets = {word: staging.commit(folder) for word, folder in targets.items()}
    terminal.comparison(console, findings, targets)
    with terminal.doing(console, "writing the report"):
        target = runs / name / "report"
        write(list(targets.values()), target, {targets[word]: result for word, result in findings.items()})
    console.print(f"Report: {target / 'index.html'}", highlight=False, soft_wrap=True)


def _title(scenario: Any) -> str:
    from streamrace.scenarios.sharding.strategy import strategy

    hpz = f"hpZ {scenario.hpz}" if scenario.hpz > 1 else "no hpZ"
    fix = f"fix: {scenario.fix}" if scenario.deepspeed == PINNED else f"DeepSpeed {scenario.deepspeed} as released"
    sharding = f"ZeRO-3, {hpz}"
    if scenario.sharding:
        sharding = f"{strategy(scenario.sharding).title} by our own engine, groups of {scenario.sharding_group}"
        fix = f"without {', '.join(scenario.without)}" if scenario.without else "all synchronisations in place"
    return (
        f"{scenario.model} {scenario.size}, {sharding}, {scenario.ranks} ranks on {scenario.nodes} nodes, "
        f"{scenario.precision}, {fix}; durations of {scenario.stands_for} on {scenario.hardware}"
    )
