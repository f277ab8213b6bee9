"""Implements ``replay``: executes a timing again, of a scenario by its token or of a checked program by its folder."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags


@click.command()
@click.argument("token", metavar="TOKEN|FOLDER")
@click.option("--timing", default="", metavar="TOKEN", help="With FOLDER: the timing, such as t1,x4:stream:3.")
@click.option("--live", is_flag=True, help="Run the timing on real ranks too, and compare.")
@click.option("--times", type=click.IntRange(1), default=1, help="Repetitions; all must agree. [default: 1]")
@flags.packages()
@flags.runs("recordings are kept")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def replay(
    token: str, timing: str, live: bool, times: int, packages: tuple[str, ...], runs: Path, as_json: bool
) -> None:
    """Execute the timing TOKEN, or a recorded program, and report the effect on its values.

    The scenario is recorded first (one live run), unless a recording exists. FOLDER is a run of
    'streamrace check --record', or traces of 'streamrace device --record'. Exit status: 0 with any result, 1 if --live
    or --times differs from the replay, 2 for a token or folder that cannot be used.
    """
    if os.path.isdir(token):  # isdir: a token may be too long for a path
        from streamrace.repro.sessions.program_replay import again

        if live:
            raise click.UsageError(
                "--live runs a scenario: run your program with 'streamrace check --timing TOKEN SCRIPT'."
            )
        again(Path(token), timing, times=times, as_json=as_json)
        return
    if "/" in token and "," not in token:  # a path, and no token
        from streamrace.reports.data.loading import not_a_run

        raise not_a_run(Path(token))
    if timing:
        raise click.UsageError("--timing is for a FOLDER: the token of a scenario says its timing itself.")
    from streamrace.fuzz.confirm import confirm
    from streamrace.reports.screen import timings
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.sessions.recordings import live_run, scenario_of, subject_of, token_of
    from streamrace.repro.sessions.release import become

    console = Terminal(stderr=as_json)
    parsed = token_of(token)
    scenario = scenario_of(parsed)
    become([*packages, f"deepspeed=={scenario.deepspeed}"])
    scenario.check()
    subject, folder = subject_of(scenario, runs, console)
    chosen = subject.timing(parsed.deviations)
    outcomes = [subject.replayer.run(chosen) for _ in range(times)]
    verdict = subject.judged(outcomes[0])
    fingerprints = {zlib.crc32(repr((item.checksums, sorted(item.losses.items()))).encode()) for item in outcomes}
    confirmation = None
    if live:
        with doing(console, "running the timing live"):
            run = live_run(scenario, chosen.live(), folder.with_name(f"{folder.name}-live"))
        confirmation = confirm(subject, parsed.deviations, run)
    if as_json:
        data = timings.as_dict(verdict, confirmation)
        print(json.dumps({"token": str(parsed), **data, "fingerprint": f"{min(fingerprints):08x}"}))
    else:
        timings.show_replay(console, parsed, verdict, confirmation)
        console.print(f"Fingerprint of all values: {min(fingerprints):08x}", highlight=False)
    if len(fingerprints) > 1:
        raise click.ClickException(f"the {times} executions do not agree: this must not happen, please report it")
    if confirmation is not None and not confirmation.confirmed:
        raise SystemExit(1)
