"""The output of several ranks, folded: a line that rank 0 printed is not repeated for the others, nor is a warning.

All lines go to a file. Errors are never folded: lines that name one, and all of a rank's stream from a traceback on.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from streamrace.trace import wording

FOLDED = "folded.txt"  # beside the file with all lines: what was not shown
PATIENCE_S = 10.0  # a line of another rank is held back for so long, as rank 0 may print it, too
_LOOK_S = 0.1
_STREAMS = (1, 2)
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?")
_WARNING = re.compile(r"warning", re.IGNORECASE)
_ERROR = re.compile(r"error|exception|traceback|fatal|abort|terminate called|segmentation|killed", re.IGNORECASE)


class _Waiting(NamedTuple):
    since: float
    stream: int
    text: str
    key: str


class FoldedOutput:
    """Decides which lines of the ranks are shown. ``show``: prints a text on a stream (1, 2); ``keep``: gets each line.

    A line of another rank than 0 waits until rank 0 prints the same (it is dropped then), or for ``PATIENCE_S``.
    """

    def __init__(
        self, show: Callable[[int, str], None], keep: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show, self._keep, self._clock = show, keep, clock
        self._first: Counter[str] = Counter()  # lines of rank 0
        self._matched: dict[int, Counter[str]] = {}
        self._waiting: dict[int, list[_Waiting]] = {}
        self._warned: set[str] = set()
        self._failing: set[tuple[int, int]] = set()  # rank and stream, from a traceback on
        self._after_warning: set[tuple[int, int]] = set()
        self.lines = self.repeated = 0
        self.same: Counter[int] = Counter()  # by rank

    def line(self, rank: int, stream: int, text: str, shown: int = 0) -> None:
        """Take a line without its end. ``shown``: characters of it that are on the screen already."""
        self.lines += 1
        self._keep(f"rank {rank}: {text}\n")
        if "Traceback (most recent call last)" in text:
            self._failing.add((rank, stream))
        if rank and (_ERROR.search(text) or (rank, stream) in self._failing):
            self._flush(rank)
            self._show(stream, _prefixed([rank], text))
            return
        key = _TIME.sub("", text)
        if not rank:
            self._first[key] += 1
            if shown or (0, stream) in self._failing or _ERROR.search(text) or not self._warned_before(0, stream, key):
                self._show(stream, f"{text[shown:]}\n")
            for other in self._waiting:
                self._settle(other)
            return
        self._waiting.setdefault(rank, []).append(_Waiting(self._clock(), stream, text, key))
        self._settle(rank)

    def tick(self) -> None:
        """Show the lines that have waited long enough."""
        before = self._clock() - PATIENCE_S
        for rank, waiting in self._waiting.items():
            while waiting and waiting[0].since <= before:
                self._told(waiting.pop(0), [rank])

    def close(self) -> None:
        """Show the lines that rank 0 did not print: each once, with all ranks that printed it."""
        ranks = sorted(self._waiting)
        for at, rank in enumerate(ranks):
            while waiting := self._waiting[rank]:
                line, alike = waiting.pop(0), [rank]
                for other in ranks[at + 1 :]:
                    twin = next((held for held in self._waiting[other] if held.key == line.key), None)
                    if twin is not None:
                        self._waiting[other].remove(twin)
                        alike.append(other)
                self._told(line, alike)

    def summary(self) -> str:
        """Return what was not shown, the end of a sentence; empty if all was."""
        parts = []
        if same := self.same.total():
            parts.append(f"{wording.count(same, 'line')} of {_ranks(sorted(self.same))} that rank 0 printed as well")
        if self.repeated:
            parts.append(wording.count(self.repeated, "repeated warning"))
        return f"all {self.lines:,} lines; not shown: {' and '.join(parts)}" if parts else ""

    def _settle(self, rank: int) -> None:
        matched, left = self._matched.setdefault(rank, Counter()), []
        for held in self._waiting[rank]:
            if matched[held.key] < self._first[held.key]:
                matched[held.key] += 1
                self.same[rank] += 1
            else:
                left.append(held)
        self._waiting[rank][:] = left

    def _flush(self, rank: int) -> None:
        for held in self._waiting.pop(rank, ()):
            self._told(held, [rank])

    def _told(self, line: _Waiting, ranks: list[int]) -> None:
        if line.text.strip() and not self._warned_before(ranks[0], line.stream, line.key):
            self._show(line.stream, _prefixed(ranks, line.text))

    def _warned_before(self, rank: int, stream: int, key: str) -> bool:
        """Check whether the line is a warning that was shown, or the source line below it, and count the warning."""
        at = rank, stream
        if at in self._after_warning:
            self._after_warning.discard(at)
            if key.startswith("  "):
                return True
        if not _WARNING.search(key):
            return False
        if key in self._warned:
            self.repeated += 1
            self._after_warning.add(at)
            return True
        self._warned.add(key)
        return False


class OutputPump:
    """Reads the output of ``ranks`` and prints it folded. ``file``: gets all of it; ``note``: what was folded."""

    def __init__(self, ranks: Sequence[int], file: Path, note: Path) -> None:
        self._pipes = {(rank, stream): os.pipe() for rank in ranks for stream in _STREAMS}
        self._file, self._note = file, note
        self._kept: int | None = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._folded = FoldedOutput(self._show, self._keep)
        self._broken: set[int] = set()  # streams whose reader is gone
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def enter(self, rank: int) -> None:
        """Make this process, a fork, print into the pipes of its rank."""
        for stream in _STREAMS:
            os.dup2(self._pipes[rank, stream][1], stream)
        for ends in self._pipes.values():
            for end in ends:
                os.close(end)

    def begin(self) -> None:
        """Start to read, once all ranks are forked."""
        for _, writer in self._pipes.values():
            os.close(writer)
        self._thread.start()

    def end(self) -> None:
        """Print the rest, once all ranks have ended."""
        if self._thread.ident is None:  # not all ranks were forked
            return
        self._stop.set()
        self._thread.join()
        if summary := self._folded.summary():
            self._note.write_text(summary, encoding="utf-8")

    def _run(self) -> None:
        readers = {reader: at for at, (reader, _) in self._pipes.items()}
        parts = dict.fromkeys(readers, b"")
        shown = dict.fromkeys(readers, 0)
        while readers:
            stopping = self._stop.is_set()
            ready, _, _ = select.select(list(readers), [], [], 0 if stopping else _LOOK_S)
            for reader in ready:
                rank, stream = readers[reader]
                chunk = os.read(reader, 1 << 16)
                *lines, parts[reader] = (parts[reader] + (chunk or b"\n" * bool(parts[reader]))).split(b"\n")
                for line in lines:
                    self._folded.line(rank, stream, _text(line), shown[reader])
                    shown[reader] = 0
                if not chunk or stream in self._broken:  # closed for the rank, too: it learns that nobody reads
                    del readers[reader]
                    os.close(reader)
            if ready:
                continue
            if stopping:
                break
            for reader, (rank, stream) in readers.items():
                if not rank and len(text := _text(parts[reader])) > shown[reader]:  # a prompt, a progress bar
                    self._show(stream, text[shown[reader] :])
                    shown[reader] = len(text)
            self._folded.tick()
        for reader, (rank, stream) in readers.items():  # held open by a process that outlives its rank
            if parts[reader]:
                self._folded.line(rank, stream, _text(parts[reader]), shown[reader])
            os.close(reader)
        self._folded.close()
        if self._kept is not None:
            os.close(self._kept)

    def _show(self, stream: int, text: str) -> None:
        if stream not in self._broken and not _written(stream, text):
            self._broken.add(stream)

    def _keep(self, text: str) -> None:
        if self._kept is not None and not _written(self._kept, text):
            os.close(self._kept)
            self._kept = None


def _written(descriptor: int, text: str) -> bool:
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _prefixed(ranks: list[int], text: str) -> str:
    """Return the line with the ranks in front of it, unless it begins with its rank itself."""
    named = len(ranks) == 1 and re.match(rf"\W*rank\W?{ranks[0]}\b", text, re.IGNORECASE)
    return f"{text}\n" if named else f"{_ranks(ranks)}: {text}\n"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {wording.every(ranks)}"
