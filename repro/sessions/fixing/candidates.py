"""Generates the lines that could order two racing accesses, from the weakest, and their source text.

The effect of a line on the run's order is computed by :mod:`streamrace.detectors.confidence.edges`, its possible places
by :mod:`.statements`. Places are the innermost calls of both accesses, and a call further out if the current stream is
the same in that call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from streamrace.detectors.confidence.edges import CURRENT, Act, EdgeLine, Spot, by_autograd
from streamrace.detectors.order.races import Race, Side
from streamrace.detectors.streams import stream_named
from streamrace.device import naming
from streamrace.device.overlay import Insertion
from streamrace.repro.sessions.fixing.statements import Module, SourceBlock, Statement, find, is_own
from streamrace.trace import wording
from streamrace.trace.records import HOST_STREAM, Frame

How = Literal["event", "stream wait", "record_stream", "event synchronisation", "stream synchronisation",
              "device synchronisation"]  # fmt: skip
HOST: Final[tuple[How, ...]] = ("event synchronisation", "stream synchronisation", "device synchronisation")
_DEFAULT = "default"  # the name of the stream that always exists
_DEEPEST = 6  # calls of a stack that are searched
_MOST = 2  # places for each access
_NAMELESS = "no name of the tensor is known there"
_PASSING = ("contextlib.py", "functools.py", "threading.py")

Patch = Mapping[Path, Sequence[Insertion]]


@dataclass(frozen=True)
class Candidate:
    """A possible fix. ``lines``: its effect on the trace. ``words``: description, without a full stop.

    ``patch``: insertions by file; None: it cannot be written, for the reason ``why``. ``supposes``: an assumption that
    no trace can confirm; only a live run can.
    """

    how: How
    lines: tuple[EdgeLine, ...]
    words: str
    patch: Patch | None = None
    why: str = ""
    supposes: str = ""
    files: Mapping[Path, Module] = field(default_factory=dict)
    at: Statement | None = None  # of a record_stream whose tensor has no name yet

    def asking(self, file: Path) -> Patch:
        """Return a patch that reports names of tensors at its place into ``file`` (:mod:`streamrace.device.naming`)."""
        assert self.at is not None
        patch = _Patch()
        patch.put(self.at, naming.line(file, self.at.tensors()), behind=self.lines[0].behind)
        return patch.candidate(self.how, self.lines, self.words).patch or {}

    def for_tensor(self, expression: str, *, listed: bool) -> Candidate:
        """Return this candidate applied to that tensor, or to the tensors of that list."""
        assert self.at is not None
        behind, patch = self.lines[0].behind, _Patch()
        stream = f"{patch.torch(self.at.module)}.cuda.current_stream()"
        if listed:
            patch.put(self.at, f"for _used in {expression}:", behind=behind)
            patch.put(self.at, f"    _used.record_stream({stream})", behind=behind)
        else:
            patch.put(self.at, f"{expression}.record_stream({stream})", behind=behind)
        each = "each of " if listed else ""
        where = f"{'after' if behind else 'before'} {_at(self.at)}"
        words = f"record_stream of the current stream on {each}{expression}, {where}"
        return patch.candidate(self.how, self.lines, words, self.supposes)


def candidates(
    race: Race, module_of: Callable[[str], Module | None], script: Path | None, users: Sequence[Side] = ()
) -> list[Candidate]:
    """Return all candidates, from the weakest. ``module_of``: of a frame's file. ``script``: cannot be imported by
    name. ``users``: other accesses by the first stream to memory that was freed.
    """
    return list(_Candidates(race, module_of, script, users).all())


class _Candidates:
    def __init__(
        self, race: Race, module_of: Callable[[str], Module | None], script: Path | None, users: Sequence[Side]
    ) -> None:
        self._race, self._module_of, self._script, self._users = race, module_of, script, users
        first, second = (side.stack for side in (race.first, race.second))
        captured = [frames for frames in (first, second) if any(map(wording.is_captured, frames))]
        # Within one replay of a CUDA graph only a line of the capture can stand between the two.
        self._within = len(captured) == 2 and _replay(first) == _replay(second)
        self._first = self._places(race.first, lambda statement: statement.behind)
        self._second = self._places(race.second, lambda statement: statement.front)

    def all(self) -> Iterator[Candidate]:
        """Yield all candidates. Accesses by the host itself are ordered only by waits of the host."""
        reused = self._race.kind in ("reused", "freed")
        if self._race.second.stream != HOST_STREAM:
            if reused:
                yield from self._record_stream()
            yield from self._events("wait")
            yield from self._stream_waits()
        if self._within:  # no capture allows a wait of the host
            return
        yield from self._events("synchronize event")
        for statement in self._first:
            yield self._host(statement, self._race.first, "synchronize stream", behind=True)
        for statement in self._second:
            yield self._host(statement, self._race.second, "synchronize device", behind=False)
        for statement in self._first:
            yield self._host(statement, self._race.first, "synchronize device", behind=True)
        if not (self._first and self._second):
            yield from self._in_words()

    def _in_words(self) -> Iterator[Candidate]:
        """Yield candidates in words only, where an access has no place for a line."""
        sides = self._race.first, self._race.second
        if not all(map(self._frames, sides)):
            return
        first, second = (self._frames(side)[0] for side in sides)
        lacking = [frame for frame, places in ((first, self._first), (second, self._second)) if not places]
        why = "; ".join(
            f"{_line(frame)} is run by autograd, at no line of the program"
            if by_autograd(frame)
            else f"no line can be added at {_line(frame)}"
            for frame in lacking
        )
        spots = [Spot(frame.file, frame.line, frame.line, frame.function) for frame in (first, second)]
        acts: tuple[tuple[How, Act], ...] = (("event", "wait"), ("event synchronisation", "synchronize event"))
        for how, act in acts[self._race.second.stream == HOST_STREAM : 1 if self._within else 2]:
            lines = (
                EdgeLine(spots[0], True, "record", sides[0].kernel),
                EdgeLine(spots[1], False, act, sides[1].kernel),
            )
            waits = "the current stream waits" if act == "wait" else "the host waits"
            words = f"an event after the work of {_line(first)}, for which {waits} before that of "
            yield Candidate(how, lines, f"{words}{_line(second)}", why=why)

    # -- places ---------------------------------------------------------------------------------------

    def _places(self, side: Side, has_room: Callable[[Statement], bool]) -> list[Statement]:
        """Return the statements of the access's calls, innermost first, at which its stream is current."""
        places: list[Statement] = []
        frames = self._frames(side)
        if not frames or by_autograd(frames[0]):
            return places
        for depth, frame in enumerate(filter(self._counts, frames[:_DEEPEST])):
            statement = self._statement(frame)
            if statement is not None and has_room(statement):
                places.append(replace(statement, outer=depth > 0))
            if len(places) == _MOST or statement is None or statement.switches:
                break
        return places

    def _frames(self, side: Side) -> tuple[Frame, ...]:
        """Return the frames at which a line can be added: of a replay or, within one, of the capture."""
        return (
            tuple(frame for frame in side.stack if wording.is_captured(frame)) if self._within else _replay(side.stack)
        )

    def _statement(self, frame: Frame) -> Statement | None:
        module = self._module_of(frame.file)
        return find(frame, module) if module else None

    @staticmethod
    def _counts(frame: Frame) -> bool:
        """Check whether a frame has lines of the user's to change; Python's own only pass a call on."""
        return is_own(frame) and frame.file not in _PASSING

    def _switched(self, side: Side) -> Statement | None:
        """Return the access's innermost statement within a ``with`` that makes a stream current."""
        frames = self._frames(side)
        if not frames or by_autograd(frames[0]):
            return None
        for frame in filter(self._counts, frames[:_DEEPEST]):
            statement = self._statement(frame)
            if statement is None or statement.switches or statement.inner:
                return statement and replace(statement, switches=(*statement.inner, *statement.switches))
        return None

    # -- candidates -----------------------------------------------------------------------------------

    def _events(self, act: Act) -> Iterator[Candidate]:
        race = self._race
        how: How = "event" if act == "wait" else "event synchronisation"
        waits = "the current stream waits" if act == "wait" else "the host waits"
        for first in self._first:
            for second in self._second:
                lines = (
                    EdgeLine(_spot(first), True, "record", race.first.kernel),
                    EdgeLine(_spot(second), False, act, race.second.kernel),
                )
                words = f"an event recorded after {_at(first)}, for which {waits} before {_at(second)}"
                yield self._with_event(how, lines, words, first, second, act)

    def _with_event(
        self, how: How, lines: tuple[EdgeLine, ...], words: str, first: Statement, second: Statement, act: Act
    ) -> Candidate:
        torch = "torch" if second.module.torch is None else second.module.torch[0]
        supposes = self._supposed((first, self._race.first), *([(second, self._race.second)] * (act == "wait")))
        name = self._name(first, second)

        def awaited(event: str) -> str:
            return f"{torch}.cuda.current_stream().wait_event({event})" if act == "wait" else f"{event}.synchronize()"

        patch = _Patch()
        if first.always_before(second):
            patch.torch(second.module)
            patch.behind(first, f"{name} = {torch}.cuda.current_stream().record_event()")
            patch.front(second, awaited(name))
            return patch.candidate(how, lines, words, supposes)
        if first.module.path == second.module.path or self._importable(first.module):
            home = first.module
        elif self._importable(second.module):
            home = second.module
        else:
            why = "the two places share no module in which both would find the event"
            return Candidate(how, lines, words, why=why, supposes=supposes)
        home_torch = home.torch[0] if home.torch else "torch"
        patch.top(home, f"{name} = {home_torch}.cuda.Event()")
        for statement in (first, second):
            if statement.module.path != home.path:
                text = f"from {_dotted(home.name)} import {name}"
                patch.behind(statement, text) if statement is first else patch.front(statement, text)
        patch.torch(second.module)
        patch.behind(first, f"{name}.record()")
        patch.front(second, awaited(name))
        return patch.candidate(how, lines, words, supposes)

    @staticmethod
    def _supposed(*places: tuple[Statement, Side]) -> str:
        """Return the assumption that these streams are current, where the statements do not guarantee it."""
        clauses = [
            f"{stream_named(side.issuer or side.stream)} is the current one at {_at(statement)}"
            for statement, side in places
            if statement.other_stream
        ]
        return f"that {' and '.join(clauses)}" if clauses else ""

    def _importable(self, module: Module) -> bool:
        parts = module.name.removesuffix(".py").split("/")
        return module.path != self._script and module.name.endswith(".py") and all(map(str.isidentifier, parts))

    @staticmethod
    def _name(first: Statement, second: Statement) -> str:
        function = first.function.rpartition(".")[2].strip("_<>") or "access"
        name, number = f"_{function}_done", 2
        while name in first.module.names | second.module.names | first.module.globals | second.module.globals:
            name, number = f"_{function}_done_{number}", number + 1
        return name

    def _stream_waits(self) -> Iterator[Candidate]:
        race = self._race
        first_name, second_name = race.first.stream, race.second.issuer or race.second.stream
        done, waiting = self._switched(race.first), self._switched(race.second)
        for second in self._second:  # before the second access, for the first's stream
            lines = (EdgeLine(_spot(second), False, "wait for stream", race.second.kernel, awaited=first_name),)
            words = f"before {_at(second)} the current stream waits for {stream_named(first_name)}"
            expression = self._stream(first_name, done, second)
            yield self._line(
                lines,
                words,
                second,
                f"TORCH.cuda.current_stream().wait_stream({expression})",
                expression,
                supposes=self._supposed((second, race.second)),
            )
        for first in self._first:  # after the first access, the second's stream
            lines = (EdgeLine(_spot(first), True, "wait for stream", race.first.kernel, stream=second_name),)
            words = f"after {_at(first)} {stream_named(second_name)} waits for the current stream"
            expression = self._stream(second_name, waiting, first)
            yield self._line(
                lines,
                words,
                first,
                f"{expression}.wait_stream(TORCH.cuda.current_stream())",
                expression,
                behind=True,
                supposes=self._supposed((first, race.first)),
            )
        if waiting is not None and waiting.switches and waiting.switches[0].block.front:
            block = waiting.switches[0].block
            lines = (
                EdgeLine(_spot(waiting, block), False, "wait for stream", race.second.kernel, second_name, first_name),
            )
            words = f"before the with at {waiting.frame.file}:{block.first} its stream waits for the current one"
            expression = waiting.switches[0].stream
            yield self._line(
                lines,
                words,
                waiting,
                f"{expression}.wait_stream(TORCH.cuda.current_stream())",
                expression,
                block=block,
                supposes=f"that {stream_named(first_name)} is the current one there",
            )
        if done is not None and done.switches and done.switches[0].block.behind:
            block = done.switches[0].block
            lines = (EdgeLine(_spot(done, block), True, "wait for stream", race.first.kernel, second_name, first_name),)
            words = f"after the with at {done.frame.file}:{block.first} the current stream waits for that of the with"
            expression = done.switches[0].stream
            yield self._line(
                lines,
                words,
                done,
                f"TORCH.cuda.current_stream().wait_stream({expression})",
                expression,
                behind=True,
                block=block,
                supposes=f"that {stream_named(second_name)} is the current one there",
            )

    def _stream(self, name: str, of: Statement | None, place: Statement) -> str:
        """Return the expression for a stream at a place; empty if none is known.

        What runs on the default stream in a replay was captured on another one.
        """
        if name == _DEFAULT and not self._within:
            return "TORCH.cuda.default_stream()"
        expression = of.switches[0].stream if of is not None and of.switches else ""
        return expression if of is not None and expression and place.may_say(expression, of) else ""

    def _record_stream(self) -> Iterator[Candidate]:
        seen: set[tuple[str, int, bool]] = set()
        for side in (self._race.first, *self._users):
            places = [(stmt, True) for stmt in self._places(side, lambda stmt: stmt.behind)]
            for stmt, behind in [*places, *((stmt, False) for stmt in self._places(side, lambda stmt: stmt.front))]:
                key = stmt.frame.file, stmt.first, behind
                if key in seen or len(seen) == 2 * _MOST:
                    continue
                seen.add(key)
                lines = (EdgeLine(_spot(stmt), behind, "record_stream", side.kernel),)
                where = "after" if behind else "before"
                words = f"record_stream of the current stream on what is used {where} {_at(stmt)}"
                supposes = self._supposed((stmt, side))
                yield Candidate("record_stream", lines, words, why=_NAMELESS, supposes=supposes, at=stmt)

    def _host(self, statement: Statement, side: Side, act: Act, *, behind: bool) -> Candidate:
        stream = act == "synchronize stream"
        text = f"TORCH.cuda{'.current_stream()' if stream else ''}.synchronize()"
        how: How = "stream synchronisation" if stream else "device synchronisation"
        where = "after" if behind else "before"
        words = f"the host waits for {'the current stream' if stream else 'the device'} {where} {_at(statement)}"
        lines = (EdgeLine(_spot(statement), behind, act, side.kernel, CURRENT),)
        supposes = self._supposed((statement, side)) if stream else ""
        return self._line(lines, words, statement, text, "TORCH", behind=behind, how=how, supposes=supposes)

    def _line(
        self, lines: tuple[EdgeLine, ...], words: str, statement: Statement, text: str, expression: str,
        *, behind: bool = False, block: SourceBlock | None = None, supposes: str = "", how: How = "stream wait",
    ) -> Candidate:  # fmt: skip
        """Return a candidate of one line. ``expression``: the object's name at the place; without a name, no patch."""
        if not expression:
            return Candidate(how, lines, words, why="no name of that stream is known there", supposes=supposes)
        patch = _Patch()
        name = patch.torch(statement.module) if "TORCH" in text else ""
        span = block or statement
        (patch.behind if behind else patch.front)(statement, text.replace("TORCH", name), span)
        return patch.candidate(how, lines, words, supposes)


class _Patch:
    """Collects insertions by file."""

    def __init__(self) -> None:
        self._of: dict[Path, list[Insertion]] = {}
        self._files: dict[Path, Module] = {}
        self._imported: set[Path] = set()

    def front(self, statement: Statement, text: str, block: SourceBlock | None = None) -> None:
        span = block or statement
        self._put(statement.module, Insertion(span.first, f"{span.indent}{text}", span.first))

    def put(self, statement: Statement, text: str, *, behind: bool) -> None:
        (self.behind if behind else self.front)(statement, text)

    def behind(self, statement: Statement, text: str, block: SourceBlock | None = None) -> None:
        span = block or statement
        self._put(statement.module, Insertion(span.last + 1, f"{span.indent}{text}", span.last))

    def torch(self, module: Module) -> str:
        """Return the module's name for torch; insert an import if it has none."""
        if module.torch:
            return module.torch[0]
        if module.path not in self._imported:
            self._imported.add(module.path)
            self._put(module, Insertion(module.top, "import torch", max(1, module.top - 1)), first=True)
        return "torch"

    def top(self, module: Module, text: str) -> None:
        """Insert a top-level line, after the module's import of torch."""
        self.torch(module)
        line = module.torch[1] if module.torch else module.top
        self._put(module, Insertion(line, text, max(1, line - 1)))

    def candidate(self, how: How, lines: tuple[EdgeLine, ...], words: str, supposes: str = "") -> Candidate:
        return Candidate(how, lines, words, self._of, "", supposes, self._files)

    def _put(self, module: Module, insertion: Insertion, *, first: bool = False) -> None:
        insertions = self._of.setdefault(module.path, [])
        insertions.insert(0 if first else len(insertions), insertion)
        self._files[module.path] = module


def _replay(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames in which the host issued the work: without those of a CUDA graph's capture."""
    return tuple(frame for frame in stack if not wording.is_captured(frame))


def _spot(statement: Statement, block: SourceBlock | None = None) -> Spot:
    span = block or statement
    return Spot(statement.frame.file, span.first, span.last, statement.frame.function)


def _at(statement: Statement) -> str:
    return f"{statement.frame.file}:{statement.first}"


def _dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _line(frame: Frame) -> str:
    return wording.line(frame.file, frame.line, path=True)
