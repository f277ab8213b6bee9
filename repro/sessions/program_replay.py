"""Replays a recorded program from its run's folder, to find the effect of another timing on its values."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamrace.device.timing import Timing
from streamrace.replay.faults import ReplayError
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import READ, Replayer, ReplayOutcome
from streamrace.repro.sessions.folders import MARK
from streamrace.trace import wording
from streamrace.trace.records import Begin, Call, Collective, Frame, Launch, Stack, TraceRecord
from streamrace.trace.untrusted import visible


def again(folder: Path, token: str, *, times: int, as_json: bool) -> None:
    """Replay the recording in ``folder`` in the timing of ``token`` (empty: as recorded), and print the result.

    Raises :class:`ReplayError` for a folder without a recording, :class:`streamrace.device.tokens.TokenError` for an
    invalid token, and :class:`streamrace.replay.names.UnknownOperation` for the token of another program.
    """
    timing = Timing.parse(token or "t1")
    replayer = Replayer(_load(folder))
    replayer.verify()
    chosen = replayer.recording.deviated(timing.deviations)
    outcomes = [replayer.run(chosen) for _ in range(times)]
    fingerprints = {zlib.crc32(repr(outcome.checksums).encode()) for outcome in outcomes}
    result = _compared(replayer, outcomes[0])
    if as_json:
        print(json.dumps({"timing": str(timing), **result, "fingerprint": f"{min(fingerprints):08x}"}))
    else:
        _print(folder, timing, result)
        print(f"Fingerprint of all values: {min(fingerprints):08x}")
    if len(fingerprints) > 1:
        raise click.ClickException(f"the {times} executions do not agree: this must not happen, please report it")


def _load(folder: Path) -> Recording:
    trace = folder / "trace" if (folder / "trace").is_dir() else folder
    if (folder / MARK).exists() and not _recorded(trace):
        raise ReplayError(f"{folder} records times of work, not values: check the program with --record")
    return Recording.load(trace)


def _recorded(trace: Path) -> bool:
    from streamrace.trace.files import TraceReader, file_of
    from streamrace.trace.records import TraceError

    try:
        reader = TraceReader(file_of(trace, 0))
    except TraceError:
        return True  # loading the recording reports the error
    first = next(iter(reader.read()), None)
    reader.close()
    return not isinstance(first, Begin) or bool(first.info.get("recorded"))


def _compared(replayer: Replayer, outcome: ReplayOutcome) -> dict[str, Any]:
    probes = list(zip(replayer.looks, outcome.checksums, replayer.recorded, strict=True))
    read = [now != then for probe, now, then in probes if probe.kind == READ]
    blocks = [now != then for probe, now, then in probes if probe.kind != READ]
    departure = None
    if outcome.departure is not None:
        name = outcome.departure.operation
        records = replayer.recording.records[name.rank]
        kernel, frame = _place(records, replayer.recording.names.number(name))
        departure = {"rank": name.rank, "kernel": kernel, "file": frame.file, "line": frame.line}
    return {
        "ranks": replayer.recording.world,
        "operations": len(replayer.graph.ends),
        "read": len(read),
        "read_otherwise": sum(read),
        "blocks": len(blocks),
        "blocks_otherwise": sum(blocks),
        "departure": departure,
    }


def _place(records: Sequence[TraceRecord], op: int) -> tuple[str, Frame]:
    """Return an operation's name, and the place in the program that issued it."""
    work = next(rec for rec in records if isinstance(rec, (Launch, Collective)) and rec.op == op)
    frames = next((rec.frames for rec in records if isinstance(rec, Stack) and rec.id == work.stack), ())
    called = next((rec.function for rec in records if isinstance(rec, Call) and rec.op == op and rec.host), "")
    return called.rpartition(".")[0] or work.kernel, frames[0] if frames else Frame("?", 0, "?")


def _print(folder: Path, timing: Timing, result: dict[str, Any]) -> None:
    ranks = wording.count(result["ranks"], "rank")
    _say(f"{folder}: {result['operations']} operations of {ranks}, and the replay reproduces their bits.")
    if not timing.deviations:
        return
    if not result["read_otherwise"] and not result["blocks_otherwise"]:
        _say(f"In {timing} the program reads the same values, and its memory holds the same at the end.")
        return
    _say(
        f"In {timing} {result['read_otherwise']} of {result['read']} values that the host reads differ, and "
        f"{result['blocks_otherwise']} of {result['blocks']} blocks of memory differ at the end."
    )
    if (first := result["departure"]) is not None:
        _say(
            f"The first value read that differs: {first['kernel']} at {first['file']}:{first['line']}, rank "
            f"{first['rank']}. The program might have gone another way from there on."
        )


def _say(sentence: str) -> None:
    """Print a sentence; escape its control characters, as its names come from the recording."""
    print(visible(sentence))
