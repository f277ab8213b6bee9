"""``python -m repro``. Needs nothing but Python itself until it knows what it is asked for."""

from __future__ import annotations

import sys

from simgpu.untrusted import visible

# Errors that are one sentence, by module and class. Looked up by name: none of these modules is imported to say that
# something went wrong elsewhere, and what is not imported cannot have raised.
_SENTENCES = (
    ("detectors.live.incident", "IncidentError"),
    ("detectors.values.recordings", "RecordingError"),
    ("reports.data.schema", "ReportError"),
    ("frameworks.deepspeed.releases", "ReleaseError"),
    ("replay.faults", "ReplayError"),
    ("replay.names", "UnknownOperation"),
    ("simgpu.tokens", "TokenError"),
    ("simgpu.trace", "TraceError"),
    ("scenarios.base", "ScenarioError"),
    ("scenarios.sharding.strategy", "ShardingError"),
    ("simgpu.build", "BuildError"),
    ("simgpu.scripts", "WrongUse"),
)
_FAILURES = (("fuzz.engines", "EngineError"), ("simgpu.ranks.cluster", "RankFailed"))


def main(arguments: list[str] | None = None) -> None:
    """The command line. One sentence for what goes wrong, never a traceback for the user's mistake."""
    launched, given = _launched(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _obey(launched, given)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        status = 130
    except ModuleNotFoundError as error:
        status = _missing(error, given)
    except Exception as error:
        status = _explain(error)
    if status:
        sys.exit(status)


def _launched(arguments: list[str]) -> tuple[str | None, list[str]]:
    """What DeepSpeed's launcher puts behind the module's name (``--local_rank=0``), and what the user wrote."""
    first = arguments[0] if arguments else ""
    if first.startswith("--local_rank="):
        return first, arguments[1:]
    if first == "--local_rank" and len(arguments) > 1:
        return f"{first}={arguments[1]}", arguments[2:]
    return None, list(arguments)


def _obey(launched: str | None, given: list[str]) -> int | None:
    if given[:1] == ["--version"]:
        from simgpu.extras import version

        print(f"repro, version {version()}")
        return None
    if given[:1] == ["watch"]:
        from repro.commands import watch

        watch.run(given[1:], launched)
        return None
    from repro.commands import group

    return group.run(given, launched)


def _missing(error: ModuleNotFoundError, given: list[str]) -> int:
    from repro.commands.table import COMMANDS
    from simgpu.extras import lacking

    command = COMMANDS.get(given[0]) if given else None
    what = f"repro {given[0]}" if command else "the command line, all but 'repro watch',"
    sentence = lacking(error, what, command.extras if command else "deepspeed")
    if sentence is None:
        raise error
    print(f"Error: {sentence}", file=sys.stderr)
    return 2


def _explain(error: Exception) -> int:
    if _is_one(error, (("repro.sessions.session", "Interrupted"),)):
        done, cause = error.findings.steps_done, error.cause  # type: ignore[attr-defined]
        _say(f"Ended after {done} whole steps: {error}. What was found is written.")
        return 3 if cause else 130
    if _is_one(error, _FAILURES):
        _say(f"Failed: {error}")
        return 3
    if _is_one(error, _SENTENCES):
        unknown = _is_one(error, (("replay.names", "UnknownOperation"),))
        why = "; the token is of another program, or of another state of it" if unknown else ""
        _say(f"Error: {error}{why}")
        return 2
    raise error


def _say(sentence: str) -> None:
    """Names of files, and what stands in them, may be anything: control characters of theirs are shown as codes."""
    print(visible(sentence), file=sys.stderr)


def _is_one(error: Exception, known: tuple[tuple[str, str], ...]) -> bool:
    modules = ((sys.modules.get(module), name) for module, name in known)
    return isinstance(error, tuple(getattr(module, name, ()) for module, name in modules if module is not None))


if __name__ == "__main__":
    main()
