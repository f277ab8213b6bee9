"""Implements ``check``: runs a program of the user's own, unmodified, on the simulated GPU, and reports its races."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import click

from streamrace.device.dry import World
from streamrace.device.options import EAGER, GPUS, HELP, dry_world, whole_timing
from streamrace.device.scripts import WrongUse
from streamrace.repro.commands import flags
from streamrace.repro.commands.programs import ProgramOptions
from streamrace.repro.sessions import check_run, child, folders, launcher_rank, staging, varied
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.repro.sessions.dry_metrics import TOGETHER
from streamrace.repro.sessions.folders import ON_GPU
from streamrace.repro.sessions.witness_runs import WitnessRequest

KEPT_MIB = 16.0


def _places(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for place in value:
        if not all(place.rpartition(":")[::2]) or "/" in place:
            raise click.BadParameter(f"'{place}' is no place: it is file.py:function or file.py:line")
    return value


@dataclass(frozen=True, kw_only=True)
class CheckOptions(ProgramOptions):
    """Also a dry run, the witnesses, and the form of the findings."""

    dry: bool = flags.option("--dry", is_flag=True, help=HELP["dry"])
    on_gpu: bool = flags.option(
        "--on-gpu",
        is_flag=True,
        help="Run SCRIPT on this machine's GPU and judge what torch gives to it. Nothing is simulated: no witnesses.",
    )
    nodes: int | None = flags.option("--nodes", type=click.IntRange(1), help=HELP["nodes"])
    hardware: str = flags.option("--hardware", default="", help=HELP["hardware"])
    network: float | None = flags.option("--network", type=float, help=HELP["network"])
    record: bool = flags.option("--record", is_flag=True, help=HELP["record"])
    keep: float = flags.option(
        "--keep-trace",
        type=click.FloatRange(0),
        default=KEPT_MIB,
        show_default=True,
        metavar="MIB",
        help="Keep the beginning of each rank's trace, up to this size, for reports and further commands. The rest is "
        "judged too, and then removed. 0, or with --record: keep all.",
    )
    slow: tuple[str, ...] = flags.option(
        "--slow",
        multiple=True,
        metavar="PATTERN=FACTOR",
        help="Make work slower in virtual time: kernel:aten::mm=20, stream:3=50, with * for anything. This changes the "
        "computed values, but not the races.",
    )
    token: str = flags.option(
        "--timing",
        default="",
        metavar="TOKEN",
        help="Run in the timing of a witness, or in your own: t1,0/0/aten::mm/3+64us makes one kernel take longer.",
    )
    witnesses: int = flags.option(
        "--witnesses",
        type=click.IntRange(0),
        default=8,
        show_default=True,
        help="Run SCRIPT again for this many races, with the two accesses in the opposite order, to see if that is "
        "harmful; and, for reads of uninitialised memory, with other bytes in it. SCRIPT writes its files again.",
    )
    of: tuple[str, ...] = flags.option(
        "--witness-of",
        multiple=True,
        metavar="PLACE",
        callback=_places,
        help="Witnesses only for races with an access at file.py:function or file.py:line. Twice: for both accesses.",
    )
    vary: bool = flags.option(
        "--vary",
        is_flag=True,
        help="With --ranks: run each rank in an interpreter of its own, with its own hash seed and host speed. Ranks "
        "whose collectives depend on the order of a set, or on time, then hang or may hang.",
    )
    form: str
    output: Path | None
    baseline: Path | None = flags.option(
        "--baseline",
        type=flags.PATH,
        help="A file with known findings, which do not fail the check. Findings that are gone are named.",
    )
    strict: bool = flags.option(
        "--strict", is_flag=True, help="Also fail if only chance orders two accesses (fragile): exit status 1."
    )
    keep_in: Path | None = flags.option(
        "--write-baseline",
        type=flags.PATH,
        help="Write the findings into this file; they then do not fail the check.",
    )

    def world(self) -> World | None:
        """Return the world of a dry run. Raise :class:`WrongUse`."""
        return dry_world(self.nodes, self.gpus, self.hardware, self.network, dry=self.dry)

    def check_on_gpu(self) -> None:
        """Refuse the options that only a simulated GPU has. Raise :class:`WrongUse`."""
        simulated = {
            "--dry": self.dry, "--ranks": self.ranks is not None and not _by_file("ranks"), "--record": self.record,
            "--slow": bool(self.slow), "--timing": bool(self.token), "--vary": self.vary, "--gpus": self.gpus != GPUS,
            "--package": bool(self.packages), "--scale-limits": self.scale_limits, "--compile": self.compile != EAGER,
            "--witness-of": bool(self.of),
        }  # fmt: skip
        if given := next((name for name, is_given in simulated.items() if is_given), None):
            instead = ": start the ranks with torchrun" if given == "--ranks" else ""
            raise WrongUse(f"{given} is for a simulated GPU: leave it out, or leave --on-gpu out{instead}")

    def telling(self) -> check_run.Telling:
        """Check the output options, so that mistakes are reported before the program runs."""
        for option, file in (("--output", self.output), ("--write-baseline", self.keep_in)):
            if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
                problem = "is a folder" if file.is_dir() else "is in a folder that does not exist"
                raise WrongUse(f"{option} {file} {problem}: name a file")
        before = None
        if self.baseline is not None:
            from streamrace.reports.data.known_findings import load

            before = load(self.baseline)
        return check_run.Telling(self.form, self.output, self.report, before, self.keep_in)


@click.command(context_settings={"allow_interspersed_args": False})
@flags.options(CheckOptions)
@flags.packages()
@flags.run_folder("the script's and the time")
@flags.formats()
@click.pass_obj
def check(argument: str | None, options: CheckOptions) -> None:
    """Run SCRIPT with its own ARGUMENTS on a simulated GPU, and report accesses to memory that nothing orders.

    SCRIPT uses cuda, nccl, torch.cuda.Stream, and is not changed. Launchers work too: 'torchrun ... -m streamrace check
    SCRIPT', 'deepspeed --module streamrace check SCRIPT' and 'accelerate launch --multi_gpu -m streamrace check
    SCRIPT'. A race at a line that ends with '# stream-race: ok REASON' is known, and does not count. Exit status: 0
    clean or fragile, 1 a race (with --strict also a fragile pair), 2 wrong usage, 3 the script failed, 4 unknown (no
    race was found, but not all of the script was seen), 5 no race, but a value is wrong by the script's own statement
    or depends on uninitialised memory, a Triton kernel has a defect inside, or a CUDA graph uses another tensor's
    memory, 130 interrupted.
    """
    me = launcher_rank.launcher_context()
    if options.on_gpu:
        options.check_on_gpu()
    if options.vary and options.dry:
        raise WrongUse("a dry run has one rank, which the others repeat: leave --vary or --dry out")
    if options.vary and me is None:
        raise SystemExit(varied.run(options.ranks))
    if options.vary and me is not None:
        options = replace(options, ranks=None, token=varied.timing(options.token, me.world))
    if options.dry or me or options.on_gpu:  # defaults from pyproject.toml are not meant for these
        options = replace(
            options,
            ranks=None if _by_file("ranks") else options.ranks,
            record=options.record and not ((options.dry or options.on_gpu) and _by_file("record")),
        )
    launch = options.launch(
        "check", argument, options.world(), record=options.record, keep=math.ceil(options.keep * 2**20)
    )
    telling = options.telling()
    dry = launch.dry
    request = options.request(launch, dry.ranks if dry else me.world if me else options.ranks or 1)
    request |= {"vary": True} if options.vary else {}
    request |= {TOGETHER: launch.ranks} if dry and launch.ranks else {}
    request |= {ON_GPU: True} if options.on_gpu else {}
    beside = launch.program.folder
    began = me.began if me else datetime.now()
    folder = options.runs / (options.name or f"{folders.name_of(options.program)}-{began:%Y%m%d-%H%M%S}")
    if me and me.rank:
        folder = launcher_rank.join([folder, staging.staging_path(folder)], me)
    else:
        folder = folders.make(folder, request, overwrite=options.overwrite, key=me.key if me else "")

    def work() -> ProgramEnd:
        staging.cleanup()
        do = check_run.work_on_gpu if options.on_gpu else check_run.work
        return do(launch, folder, aside=telling.aside)

    started = time.monotonic()
    meanwhile = check_run.Meanwhile(folder, request, dry=dry is not None, strict=options.strict)
    ended = (
        check_run.as_a_rank(work, folder, me, meanwhile.poll) if me else child.attended(work, meanwhile=meanwhile.poll)
    )
    if ended is None:
        return
    if ended.wrong:
        raise WrongUse(f"{ended.why}{meanwhile.until_then()}")
    again = (
        None
        if dry or options.on_gpu
        else WitnessRequest(
            [*(["--ranks", str(launch.ranks)] if launch.ranks else []), *launch.words],
            whole_timing(launch.timing, launch.slow),
            options.witnesses,
            time.monotonic() - started,
            launched=me is not None,
            failed=bool(ended.status),
            of=options.of,
            packages=options.packages,
        )
    )
    check_run.conclude(ended, folder, meanwhile, beside, again, telling)


def _by_file(option: str) -> bool:
    """Check whether the option comes from pyproject.toml and not from the command line."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.DEFAULT_MAP
