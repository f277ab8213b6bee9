"""Implements ``watch``: runs the NaN watch on an unmodified training script.

Options are read with argparse, unlike those of most commands: the watch has to run with numpy and torch alone, so
without click.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from streamrace.device.scripts import Program, WrongUse, fail
from streamrace.repro.commands.plain import Parser

_EPILOG = """\
SCRIPT runs as if python had started it, with its own ARGUMENTS. Launchers work too: 'torchrun ... -m streamrace
watch SCRIPT' and 'deepspeed --module streamrace watch SCRIPT'. torch is imported before the script, so set variables
that torch reads at that moment (OMP_NUM_THREADS) outside the script.

Exit status: the script's own; 1 after a finding with raise or stop; 2 wrong usage.
"""


def options() -> Parser:
    """Return the parser of the command's options, and of SCRIPT with its own."""
    parser = Parser(
        prog="streamrace watch",
        usage="streamrace watch [OPTIONS] SCRIPT [ARGUMENTS]...",
        description="Run the training SCRIPT, and find where the first NaN, Inf or wrong value comes from.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # AutoWatch decides the defaults
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", default=False, help="SCRIPT is a module's name, as for python -m.")
    add(
        "--watch",
        type=_words,
        metavar="WORDS",
        help="Values to look at, with commas: inputs, outputs, loss, gradients, parameters, partitions, optimizer. "
        "[default: all]",
    )
    add(
        "--checksums",
        action="store_true",
        default=True,
        help="Follow each parameter's bits from its partition to its use: tells race, stale, uncovered and corruption "
        "apart. [default]",
    )
    add("--no-checksums", dest="checksums", action="store_false", help="Do not follow parameters' bits.")
    add("--bound", type=float, metavar="FLOAT", help="The largest absolute value that is good. [default: none]")
    add("--modules", metavar="PATTERN", help="Module paths whose outputs are watched. [default: *]")
    add(
        "--on-finding",
        type=_words,
        action="append",
        metavar="WORDS",
        help="What to do, with commas: warn, raise, stop, save. [default: warn,save]",
    )
    add("--folder", type=Path, metavar="PATH", help="Where incidents go. [default: incidents]")
    add("--record", type=Path, metavar="PATH", help="A folder for the values that each step computes.")
    add("--history", type=_count, metavar="STEPS", help="Steps whose statistics an incident holds. [default: 4]")
    # One argument takes the script and everything after it, as options there are the script's. Options before it are
    # ours, so an unknown option is a mistake and is not passed on.
    add("program", nargs=argparse.PARSER, metavar="SCRIPT", help=argparse.SUPPRESS)
    return parser


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not in the range x>=1")
    return number


def run(arguments: list[str], launched: str | None = None) -> None:
    """Watch the script that ``arguments`` name. ``launched``: argument that DeepSpeed's launcher adds to its own.

    Returns or exits as the script does. Raises :class:`WrongUse` before the script starts.
    """
    settings = vars(options().options(arguments))
    module, (script, *rest) = settings.pop("module"), settings.pop("program")
    program = Program(script, (*([launched] if launched else []), *rest), module=module)
    _ = program.folder  # refuse a missing script early
    settings["on_finding"] = list(chain.from_iterable(settings.get("on_finding", []))) or ["warn", "save"]
    if not settings.get("watch", True):  # only commas: nothing was named
        del settings["watch"]

    from streamrace.detectors.live.auto import AutoWatch, StopTraining
    from streamrace.detectors.live.engines import WatchError
    from streamrace.detectors.live.incident import IncidentError

    try:
        auto = AutoWatch(**settings)
    except (WatchError, IncidentError, ValueError) as error:
        raise WrongUse(str(error)) from None
    program.find()
    try:
        with auto:
            program.run()
    except StopTraining:
        sys.exit(1)
    except SystemExit as error:
        if error.code or not auto.failed:
            raise
    except BaseException as error:
        sys.exit(
            fail(error, ("streamrace.detectors.live.", "streamrace.repro.commands.watch", "streamrace.device.scripts"))
        )
    if auto.failed:
        sys.exit(1)
