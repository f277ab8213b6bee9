"""Implements ``check``: runs a program of the user's own, unmodified, on the simulated GPU, and reports its races."""

from __future__ import annotations

import math
import os
import time
from datetime import datetime
from pathlib import Path

import click

from streamrace.device.dry import World
from streamrace.device.hardware import ProfileError
from streamrace.device.scripts import Program, WrongUse
from streamrace.device.timing import Timing
from streamrace.device.tokens import TokenError
from streamrace.repro.commands import flags
from streamrace.repro.sessions import checking, child, folders, launched, staging
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.repro.sessions.witnessed import WitnessRequest, timing_of

KEPT_MIB = 16.0
NODES = GPUS = 1  # defaults of a dry run


def _places(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        if not all(one.rpartition(":")[::2]) or "/" in one:
            raise click.BadParameter(f"'{one}' is no place: it is file.py:function or file.py:line")
    return value


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--ranks", type=click.IntRange(1), help="Start so many ranks of the script, with a simulated GPU each.")
@click.option("--dry", is_flag=True, help="Run SCRIPT as rank 0 of --nodes x --gpus, on tensors that hold nothing.")
@click.option("--nodes", type=click.IntRange(1), help=f"Of a dry run: how many nodes. [default: {NODES}]")
@click.option("--gpus", type=click.IntRange(1), help=f"Of a dry run: GPUs, and ranks, of each node. [default: {GPUS}]")
@click.option(
    "--hardware", default="", help="Of a dry run: a hardware profile, or a .toml file. [default: a plain model]"
)
@click.option("--network", type=float, help="Of a dry run with --hardware: Gbit/s between nodes.")
@flags.packages()
@flags.run_folder("the script's and the time")
@click.option("--report", is_flag=True, help="Make the page of 'streamrace report' at once.")
@click.option(
    "--record", is_flag=True, help="Record what the work is, too: 'streamrace replay' executes it in other timings."
)
@click.option(
    "--keep-trace",
    "keep",
    type=click.FloatRange(0),
    default=KEPT_MIB,
    show_default=True,
    metavar="MIB",
    help="So much of each rank's trace is kept, for reports and further commands: its beginning. What comes then is "
    "judged like it, and thinned out. 0, or with --record: all is kept.",
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
    help="For so many races run SCRIPT again, with the two accesses the other way round: is that harmful? And where it "
    "reads memory that nothing wrote, with other bytes there. It writes its files again.",
)
@click.option(
    "--witness-of",
    "of",
    multiple=True,
    metavar="PLACE",
    callback=_places,
    help="Only for races with an access there: file.py:function or file.py:line. Twice: for both accesses.",
)
@flags.formats()
@click.option(
    "--baseline", type=flags.PATH, help="A file with findings that are known: they do not fail. What is gone is told."
)
@click.option(
    "--write-baseline", "keep_in", type=flags.PATH, help="Write what is found into this file; it does not fail then."
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
    packages: tuple[str, ...],
    name: str | None,
    runs: Path,
    overwrite: bool,
    report: bool,
    record: bool,
    keep: float,
    slow: tuple[str, ...],
    token: str,
    witnesses: int,
    of: tuple[str, ...],
    form: str,
    output: Path | None,
    baseline: Path | None,
    keep_in: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run SCRIPT with its own ARGUMENTS on a simulated GPU, and say which accesses to memory nothing orders.

    SCRIPT says cuda, nccl, torch.cuda.Stream, and is not changed. It also works as 'torchrun ... -m streamrace check
    SCRIPT', 'deepspeed --module streamrace check SCRIPT' and 'accelerate launch --multi_gpu -m streamrace check
    SCRIPT'. A line that ends with '# stream-race: ok REASON' says that a race there is known, and does not count. Exit
    status: 0 clean (also where that is fragile), 1 a race, 2 wrong usage, 3 the script failed, 4 unknown (no race was
    seen, but not all of the script was), 5 no race, and values that the script says are wrong or that
    nobody wrote, 130 interrupted.
    """
    if not program:
        raise click.UsageError("Name a script, for example: streamrace check train.py (or with -m a module).")
    me = launched.launcher_context()
    if dry or me:  # defaults from pyproject.toml are not meant for these
        ranks, record = None if _by_file("ranks") else ranks, record and not (dry and _by_file("record"))
    world = _world(dry, nodes, gpus, hardware, network)
    if world and record:
        raise WrongUse("a dry run has no values, and a recording is made of them: leave --dry or --record out")
    if world and (ranks or me):
        raise WrongUse("a dry run is one process: say --nodes and --gpus, without --ranks and without a launcher")
    if ranks and me:
        raise WrongUse("--ranks starts ranks, but this is one already (WORLD_SIZE is set): leave one of the two out")
    telling = _telling(form, output, baseline, keep_in, report=report)
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        raise WrongUse(
            f"DS_ACCELERATOR is set to {os.environ['DS_ACCELERATOR']}, so DeepSpeed would not use the simulated GPU: "
            "unset it"
        )
    what = folders.asked(
        program,
        module=module,
        ranks=world.ranks if world else me.world if me else ranks or 1,
        slow=slowed(slow),
        timing=token,
        nodes=world.ranks // world.local if world else 0,
        packages=in_place(packages),
    )
    timing = timed(token, what["slow"])
    words = (program[0], *([argument] if argument else []), *program[1:])
    beside = Program(program[0], module=module).folder
    began = me.began if me else datetime.now()
    folder = runs / (name or f"{folders.name_of(program)}-{began:%Y%m%d-%H%M%S}")
    if me and me.rank:
        folder = launched.join([folder, staging.staging_path(folder)], me)
    else:
        folder = folders.make(folder, what, overwrite=overwrite, key=me.key if me else "")

    def work() -> ProgramEnd:
        staging.cleanup()
        return checking.work(
            words,
            module,
            ranks or 0,
            folder / "trace",
            what["slow"],
            token,
            world,
            record=record,
            aside=telling.aside,
            keep=math.ceil(keep * 2**20),
        )

    started = time.monotonic()
    meanwhile = checking.Meanwhile(folder, what, dry=world is not None)
    ended = (
        checking.as_a_rank(work, folder, me, meanwhile.poll) if me else child.attended(work, meanwhile=meanwhile.poll)
    )
    if ended is None:
        return
    if ended.wrong:
        raise WrongUse(f"{ended.why}{meanwhile.until_then()}")
    again = (
        None
        if world
        else WitnessRequest(
            [*(["--ranks", str(ranks)] if ranks else []), *(["-m"] if module else []), *words],
            timing,
            witnesses,
            time.monotonic() - started,
            launched=me is not None,
            failed=bool(ended.status),
            of=of,
            packages=packages,
        )
    )
    checking.conclude(ended, folder, meanwhile, beside, again, telling)


def _telling(
    form: str, output: Path | None, baseline: Path | None, keep_in: Path | None, *, report: bool
) -> checking.Telling:
    """Check the output options, so that mistakes are reported before the program runs."""
    for option, file in (("--output", output), ("--write-baseline", keep_in)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            what = "is a folder" if file.is_dir() else "lies in a folder that is not there"
            raise WrongUse(f"{option} {file} {what}: name a file")
    before = None
    if baseline is not None:
        from streamrace.reports.data.known import load

        before = load(baseline)
    return checking.Telling(form, output, report, before, keep_in)


def _by_file(option: str) -> bool:
    """Check whether the option comes from pyproject.toml and not from the command line."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.DEFAULT_MAP


def in_place(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the replaced packages; restart this process with them if needed."""
    if not packages:
        return {}
    from streamrace.repro.sessions.release import become, ran_with

    become(packages)
    return ran_with(packages)


def slowed(texts: tuple[str, ...]) -> dict[str, float]:
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


def timed(token: str, slow: dict[str, float]) -> Timing | None:
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
        world = World((nodes or NODES) * (gpus or GPUS), gpus or GPUS, hardware, network)
        world.profile()
    except (ValueError, ProfileError) as problem:
        raise WrongUse(str(problem)) from None
    return world
