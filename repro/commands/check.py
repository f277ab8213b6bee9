"""``check``: a program of the user's own on the simulated GPU, unmodified, and what its streams do to each other."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from repro.commands import flags
from repro.sessions import child, folders, launched
from repro.sessions.child import Ended
from repro.sessions.launched import Launched
from repro.sessions.witnessed import Again, timing_of
from simgpu.dry import World
from simgpu.hardware import ProfileError
from simgpu.scripts import Program, WrongUse
from simgpu.timing import Timing
from simgpu.tokens import TokenError

DRY = "dry.json"  # what a dry run leaves beside its trace
_FAILED, _UNKNOWN, _KILLED, _INTERRUPTED = 3, 4, 128, 130


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--ranks", type=click.IntRange(1), help="Start so many ranks of the script, with a simulated GPU each.")
@click.option("--dry", is_flag=True, help="Run SCRIPT as rank 0 of --nodes x --gpus, on tensors that hold nothing.")
@click.option("--nodes", type=click.IntRange(1), help="Of a dry run: how many nodes. [default: 1]")
@click.option("--gpus", type=click.IntRange(1), help="Of a dry run: GPUs, and ranks, of each node. [default: 1]")
@click.option(
    "--hardware", default="", help="Of a dry run: a hardware profile, or a .toml file. [default: a plain model]"
)
@click.option("--network", type=float, help="Of a dry run with --hardware: Gbit/s between nodes.")
@flags.run_folder("the script's and the time")
@click.option("--report", is_flag=True, help="Make the page of 'repro report' at once.")
@click.option(
    "--record", is_flag=True, help="Record what the work is, too: 'repro replay' executes it in other timings."
)
@click.option(
    "--slow",
    multiple=True,
    metavar="PATTERN=FACTOR",
    help="Make work slower in virtual time: kernel:aten::mm=20, stream:3=50, with * for anything. What is a race does "
    "not depend on it; which values come out does.",
)
@click.option(
    "--timing",
    "token",
    default="",
    metavar="TOKEN",
    help="Run in the timing of a witness, or one of your own: t1,0/0/aten::mm/3+64us lets one kernel take longer.",
)
@click.option(
    "--witnesses",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="For so many races run SCRIPT again, with the two accesses the other way round: is that harmful? It writes "
    "its files again.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@click.pass_obj
def check(
    argument: str | None,
    module: bool,
    ranks: int | None,
    dry: bool,
    nodes: int | None,
    gpus: int | None,
    hardware: str,
    network: float | None,
    name: str | None,
    runs: Path,
    overwrite: bool,
    report: bool,
    record: bool,
    slow: tuple[str, ...],
    token: str,
    witnesses: int,
    program: tuple[str, ...],
) -> None:
    """Run SCRIPT with its own ARGUMENTS on a simulated GPU, and say which accesses to memory nothing orders.

    SCRIPT says cuda, nccl, torch.cuda.Stream, and is not changed. It also works as 'torchrun ... -m repro check
    SCRIPT', 'deepspeed --module repro check SCRIPT' and 'accelerate launch --multi_gpu -m repro check SCRIPT'.
    Exit status: 0 clean (also where that is fragile), 1 a race, 2 wrong usage, 3 the script failed, 4 unknown (no race
    was seen, but not all of the script was), 130 interrupted.
    """
    if not program:
        raise click.UsageError("Name a script, for example: repro check train.py (or with -m a module).")
    me = launched.here()
    world = _world(dry, nodes, gpus, hardware, network)
    if world and record:
        raise WrongUse("a dry run has no values, and a recording is made of them: leave --dry or --record out")
    if world and (ranks or me):
        raise WrongUse("a dry run is one process: say --nodes and --gpus, without --ranks and without a launcher")
    if ranks and me:
        raise WrongUse("--ranks starts ranks, but this is one already (WORLD_SIZE is set): leave one of the two out")
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        raise WrongUse(
            f"DS_ACCELERATOR is set to {os.environ['DS_ACCELERATOR']}, so DeepSpeed would not use the simulated GPU: "
            "unset it"
        )
    what = folders.asked(
        program,
        module=module,
        ranks=world.ranks if world else me.world if me else ranks or 1,
        slow=_slow(slow),
        timing=token,
        nodes=world.ranks // world.local if world else 0,
    )
    timing = _timing(token, what["slow"])
    words = (program[0], *([argument] if argument else []), *program[1:])
    beside = Program(program[0], module=module).folder
    began = me.began if me else datetime.now()
    folder = runs / (name or f"{folders.name_of(program)}-{began:%Y%m%d-%H%M%S}")
    if me and me.rank:
        launched.join(folder, me)
    else:
        folders.make(folder, what, overwrite=overwrite, key=me.key if me else "")

    def work() -> Ended:
        return _work(words, module, ranks or 0, folder / "trace", what["slow"], token, world, record=record)

    started = time.monotonic()
    ended = _as_a_rank(work, folder, me) if me else child.attended(work)
    if ended is None:
        return
    if ended.wrong:
        shutil.rmtree(folder, ignore_errors=True)
        raise WrongUse(ended.why)
    again = (
        None
        if world
        else Again(
            [*(["--ranks", str(ranks)] if ranks else []), *(["-m"] if module else []), *words],
            timing,
            witnesses,
            time.monotonic() - started,
            launched=me is not None,
            failed=bool(ended.status),
        )
    )
    _conclude(ended, folder, what, beside, again, report=report)


def _slow(texts: tuple[str, ...]) -> dict[str, float]:
    try:
        found = flags.factors(texts, "kernel:aten::mm=20")
    except ValueError as error:
        raise WrongUse(str(error)) from None
    for pattern, factor in found.items():
        if not pattern.startswith(("kernel:", "stream:")):
            raise WrongUse(f"--slow '{pattern}' begins with neither kernel: nor stream: (try kernel:aten::mm=20)")
        if not (factor > 0 and math.isfinite(factor)):
            raise WrongUse(f"--slow {pattern} needs a factor above 0, not {factor}")
    return found


def _timing(token: str, slow: dict[str, float]) -> Timing | None:
    try:
        return timing_of(token, slow)
    except TokenError as problem:
        raise WrongUse(str(problem)) from None


def _world(dry: bool, nodes: int | None, gpus: int | None, hardware: str, network: float | None) -> World | None:
    if not dry:
        if nodes or gpus or hardware or network:
            raise WrongUse("--nodes, --gpus, --hardware and --network are a dry run's: add --dry, or say --ranks")
        return None
    try:
        world = World((nodes or 1) * (gpus or 1), gpus or 1, hardware, network)
        world.profile()
    except (ValueError, ProfileError) as problem:
        raise WrongUse(str(problem)) from None
    return world


def _work(
    words: tuple[str, ...],
    module: bool,
    ranks: int,
    trace: Path,
    slow: dict[str, float],
    token: str,
    world: World | None,
    *,
    record: bool,
) -> Ended:
    """In the child process: run the program to its end."""
    from simgpu import launch
    from simgpu.build import BuildError
    from simgpu.ranks import RankFailed

    try:
        timing = Timing.parse(token or "t1")
        place = trace.absolute()
        status = launch.run(
            words, module=module, ranks=ranks, trace=place, slow=slow, timing=timing, record=record, dry=world
        )
        if world:
            from simgpu import memory
            from simgpu.dry import steps

            folders.put(place.with_name(DRY), {"step_ends": steps.ends(), "capacity": memory.total()})
    except (BuildError, RuntimeError, WrongUse) as problem:
        return Ended(2, str(problem), wrong=True)
    except RankFailed as failed:
        return Ended(failed.status, f"{failed}; the others were ended")
    except KeyboardInterrupt:
        return Ended(_INTERRUPTED, "it was interrupted")
    return Ended(status, f"it ended with exit status {status}" if status else "")


def _as_a_rank(work: Callable[[], Ended], folder: Path, me: Launched) -> Ended | None:
    """How all ranks ended, for rank 0 to judge; None on the others, if they ended well."""
    launched.present(folder, me)
    mine = child.attended(work, lambda: launched.failed(folder, me))
    launched.tell(folder, me, mine)
    if me.rank:
        launched.judged(folder)
        if mine.status:
            raise SystemExit(2 if mine.wrong else _FAILED)
        return None
    ended = launched.all_ended(folder, me)
    wrong = next((one for one in ended.values() if one.wrong), None)
    if wrong:
        return wrong
    bad = [(one.asked, one.status < _KILLED, one.time, rank) for rank, one in ended.items() if one.status]
    if not bad:
        return mine
    rank = min(bad)[-1]  # a kill is never what another rank's end does; else the first
    first = ended[rank]
    why = first.why.removeprefix("it ")
    return first._replace(why=f"rank {rank} {why}; the others were ended", interrupted=mine.interrupted)


def _conclude(
    ended: Ended, folder: Path, what: dict[str, Any], beside: Path, again: Again | None, *, report: bool
) -> None:
    """Judge, print, and leave with the status that says it."""
    from rich.console import Console

    from reports.data.findings import Verdict
    from reports.screen import checked as screen
    from repro.sessions.checked import judge

    interrupted = ended.interrupted and bool(ended.status)
    failure = "it was interrupted" if interrupted else ended.why or None
    found = judge(
        folder, what, failure=failure, beside=beside, witnesses=again, dry=folder / DRY if again is None else None
    )
    folders.forget_ranks(folder)
    page = None
    if report:
        from reports.pages.folders import write

        write([folder], folder / "report")
        page = folder / "report" / "index.html"
    screen.verdict(Console(), found, folder, page)
    if interrupted:
        raise SystemExit(_INTERRUPTED)
    if ended.status:
        raise SystemExit(_FAILED)
    status = {Verdict.RACE: 1, Verdict.UNKNOWN: _UNKNOWN}.get(found.verdict, 0)
    if status:
        raise SystemExit(status)
