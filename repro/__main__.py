"""The entry point of ``streamrace``. Imports only the standard library until the command is known."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from streamrace.device.extras import elsewhere
from streamrace.repro.sessions import sentences
from streamrace.trace.untrusted import visible

if TYPE_CHECKING:
    from streamrace.repro.commands.table import CommandLine

_OLDEST = (3, 11)  # oldest supported Python
_AGAIN = ("check", "fix", "waits", "explain", "emit-test")  # commands that run a program more than once
_FAULT = 70  # exit status of an internal error (EX_SOFTWARE); Python's own is 1, which 'check' uses for a race


def run(program: CommandLine | None = None) -> None:
    """Run the command line as a process. ``program``: replaces ``streamrace``, as in :func:`main`."""
    _in_one_order()
    try:
        main(program=program)
    except Exception:
        if _launched(sys.argv[1:])[1][:1] in (["watch"], ["device"]):  # these end as the script that they run ends
            raise
        import traceback

        traceback.print_exc()
        sys.exit(_FAULT)


def _in_one_order() -> None:
    """Re-execute with a fixed hash seed, so that sets of strings keep their order for programs that run repeatedly.

    Not among the ranks of a launcher: they have no witness, and on hardware each rank has an order of its own.
    """
    again = _launched(sys.argv[1:])[1][:1]
    if again and again[0] in _AGAIN and not ({"PYTHONHASHSEED", "WORLD_SIZE"} & {*os.environ} or sys.flags.isolated):
        from streamrace.process.lifetime import module

        python, *words = module("streamrace", *sys.argv[1:])
        flags = [f"-W{option}" for option in sys.warnoptions]
        os.execve(python, [python, *flags, *words], {**os.environ, "PYTHONHASHSEED": "0"})


def main(arguments: list[str] | None = None, program: CommandLine | None = None) -> None:
    """Run the command line. A user's mistake is reported in one sentence, never by a traceback."""
    if sys.version_info[:2] < _OLDEST:  # the modules imported below need a newer Python
        print("Error: Python 3.11 or newer is needed: 'make setup' makes an environment", file=sys.stderr)
        sys.exit(2)
    if sys.platform == "win32" and (sentence := elsewhere()):  # file locks already differ there
        print(f"Error: {sentence}", file=sys.stderr)
        sys.exit(2)
    launched, words = _launched(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _obey(launched, words, program)
        sys.stdout.flush()  # a failure at the interpreter's exit could not be reported
    except KeyboardInterrupt as interrupt:
        _say("Interrupted.", interrupt)
        status = 130
    except ModuleNotFoundError as error:
        status = _missing(error, words, program)
    except Exception as error:
        status = _explain(error)
    if status:
        sys.exit(status)


def _launched(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split off the argument that DeepSpeed's launcher puts after the module's name (``--local_rank=0``)."""
    first = arguments[0] if arguments else ""
    if first.startswith("--local_rank="):
        return first, arguments[1:]
    if first == "--local_rank" and len(arguments) > 1:
        return f"{first}={arguments[1]}", arguments[2:]
    return None, list(arguments)


def _obey(launched: str | None, words: list[str], program: CommandLine | None) -> int | None:
    if words[:1] == ["--version"]:
        from streamrace.device.extras import version

        print(f"streamrace, version {version()}")
        return None
    from streamrace.repro.commands.table import STREAMRACE

    program = program or STREAMRACE
    if words and words[0] in program.commands and program.commands[words[0]].plain:
        from importlib import import_module

        module = import_module(f"{program.package}.{program.commands[words[0]].module}")
        status: int | None = module.run(words[1:], launched)
        return status
    from streamrace.process.interrupts import concluding

    with concluding():
        from streamrace.repro.commands import group

        return group.run(words, launched, program)


def _missing(error: ModuleNotFoundError, words: list[str], program: CommandLine | None) -> int:
    from streamrace.device.extras import lacking, outside
    from streamrace.repro.commands.table import STREAMRACE

    program = program or STREAMRACE
    command = program.commands.get(words[0]) if words else None
    subject = f"{program.name} {words[0]}" if command else "the command line, all but 'watch' and 'doctor',"
    sentence = lacking(error, subject, command.extras if command else "deepspeed")
    if sentence is None and (hint := outside()) is not None:
        sentence = f"{hint} (there is no {error.name} here)"
    if sentence is None:
        raise error
    _say(f"Error: {sentence}", error)
    return 2


def _say(sentence: str, error: BaseException) -> None:
    """Print on standard error, unless it is closed, as by a closed terminal; append notes on the run's folder.

    Names of files and their content are untrusted: control characters are shown escaped.
    """
    with suppress(OSError):
        print(visible(" ".join([sentence, *getattr(error, "__notes__", ())])), file=sys.stderr)


def _explain(error: Exception) -> int:
    if sentences.is_one(error, ("streamrace.repro.sessions.session", "Interrupted")):
        done, cause = error.findings.steps_done, error.cause  # type: ignore[attr-defined]
        _say(f"Ended after {done} whole steps: {error}. What was found is written.", error)
        return 130 if cause is None else 2 if cause.full else 6 if error.findings.verdict == "hang" else 3  # type: ignore[attr-defined]
    if sentences.failed(error):
        full = getattr(error, "full", False)
        _say(f"{'Error' if full else 'Failed'}: {error}", error)
        return 2 if full else 3
    if isinstance(error, OSError):
        return _no_place(error)
    if sentences.refused(error):
        unknown = sentences.is_one(error, ("streamrace.replay.names", "UnknownOperation"))
        why = "; the token is of another program, or of another state of it" if unknown else ""
        _say(f"Error: {error}{why}", error)
        return 2
    raise error


def _no_place(error: OSError) -> int:
    sentence = sentences.no_place(error)
    if sentence is None:
        raise error
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter would try again at its exit, and complain
        sentence = f"cannot write standard output: {error.strerror}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended
        return 141
    _say(f"Error: {sentence}", error)
    return 2


if __name__ == "__main__":
    run()
