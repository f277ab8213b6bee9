"""Implements ``fuzz``: executes a scenario under many timings."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.options import Sections, chosen, scenario_options
from streamrace.scenarios.registry import NAMED, named


@click.command(cls=Sections)
@click.argument("name", metavar="SCENARIO", default="hpz")
@click.option("--examples", type=click.IntRange(1), default=200, help="Timings to execute. [default: 200]")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this time.")
@flags.workers("Processes that execute them.", default=2, most=256)
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Run here, or on a Ray cluster.")
@click.option("--random", "seed", type=click.IntRange(0), default=0, help="Seed of the random timings. [default: 0]")
@click.option(
    "--database",
    type=click.Path(path_type=Path),
    help="Hypothesis' example database. [default: examples, under --runs]",
)
@click.option("--live", is_flag=True, help="Run the smallest failing timing on real ranks too, and compare.")
@flags.expect("diverged", "clean")
@flags.packages()
@flags.runs()
@scenario_options(usual=NAMED["hpz"].options)
def fuzz(
    name: str,
    examples: int,
    seconds: float | None,
    workers: int,
    engine: str,
    seed: int,
    database: Path | None,
    live: bool,
    expect: str | None,
    packages: tuple[str, ...],
    runs: Path,
    **values: Any,
) -> None:
    """Execute SCENARIO under many timings, and find the smallest timing under which training goes wrong.

    SCENARIO is hpz, hpz-short, hpz-long, hpz-falcon, hpz-accumulation, zero3 or main; its options can be changed. The
    defaults below are those of hpz.
    One live run is recorded. Then the recorded work is executed many times, each time in another order that the
    ordering edges allow. A failing timing is tried first the next time. Exit status: 0 done (and as expected), 1 not
    as expected, 2 wrong usage, 3 a rank or a worker failed, 130 interrupted.
    """
    from streamrace.fuzz.campaign import campaign
    from streamrace.fuzz.confirm import confirm
    from streamrace.fuzz.engines import shares
    from streamrace.fuzz.witness import witness
    from streamrace.process.interrupts import held
    from streamrace.reports.pages.folders import write
    from streamrace.reports.screen import timings
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.sessions import staging, witnesses
    from streamrace.repro.sessions.recordings import live_run, subject_of
    from streamrace.repro.sessions.release import become, versions, with_deepspeed

    console = Terminal()
    scenario = named(name, chosen(with_deepspeed(values, packages)))
    become([*packages, f"deepspeed=={scenario.deepspeed}"])
    scenario.check()
    target = runs / f"fuzz-{name}"
    staging.exclusive(target)
    subject, folder = subject_of(scenario, runs, console)
    target.mkdir(parents=True, exist_ok=True)
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(runs / ".hypothesis")  # not in the working folder

    with doing(console, "building a witness for each race"):
        found_witnesses = [witness(subject, race) for race in subject.races]
    tokens = [witnesses.token(scenario, witness.deviations) for witness in found_witnesses]
    if found_witnesses:
        timings.races(console, found_witnesses, tokens)
    else:
        console.print("Happens-before finds no race: no timing should change anything.", highlight=False)

    explore = None
    if engine == "ray":
        from streamrace.fuzz.engines.rayed import on_ray

        explore = on_ray(folder / "trace")
    elif workers > 1:
        from streamrace.fuzz.engines.local import local

        explore = local(subject)
    elsewhere = None if explore is None else partial(explore, shares(examples, workers, seconds, seed))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("executing timings", total=examples)

        def advance(done: int, diverged: int) -> None:
            bar.update(task, completed=done, description=f"executing timings, {diverged} diverged")
            if not console.is_terminal and done % max(examples // 4, 1) == 0:
                console.print(f"  {done} of {examples} timings, {diverged} diverged", highlight=False)

        result = campaign(
            subject,
            examples=examples,
            seconds=seconds,
            seed=seed,
            database=database or runs / "examples",
            progress=advance,
            elsewhere=elsewhere,
        )
    token = None if result.smallest is None else witnesses.token(scenario, result.smallest)
    timings.campaign(console, name, result, token)
    confirmation = None
    if live and result.smallest is not None and not result.interrupted:
        with doing(console, "running the smallest timing live"):
            run = live_run(scenario, subject.live_timing(result.smallest), target / "live")
        confirmation = confirm(subject, result.smallest, run)
        console.print(timings.confirmed(confirmation), highlight=False)
    with held() if result.interrupted else nullcontext():  # a closing terminal signals twice
        timings.write(
            target, scenario.model_dump(mode="json"), result, token, found_witnesses, tokens, confirmation, versions()
        )
    console.print(f"Files: {target}/timings.json, timings.csv", highlight=False)
    with doing(console, "writing the report"):
        write([target], target / "report")
    console.print(f"Report: {target / 'report' / 'index.html'}", highlight=False, soft_wrap=True)
    if result.failure is not None:
        raise result.failure
    if result.interrupted:
        raise KeyboardInterrupt
    diverged = result.diverged > 0 or any(witness.harmful for witness in found_witnesses)
    if expect and (expect == "diverged") != diverged:
        console.print(f"Expected {expect}.", style="red")
        raise SystemExit(1)
    if confirmation is not None and not confirmation.confirmed:
        raise SystemExit(1)
