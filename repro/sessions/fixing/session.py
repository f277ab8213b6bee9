"""Finds fixes for a race of a run: candidates, their proof and price, and a diff that was tried live."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from streamrace.detectors.order.races import Race
from streamrace.device import overlay
from streamrace.device.packages import folder_of_releases, names
from streamrace.device.packages.installing import place_of
from streamrace.device.scripts import Program, WrongUse
from streamrace.replay.retiming import end_of
from streamrace.reports.data import sources
from streamrace.reports.data.checkout import portable
from streamrace.reports.data.fixes import FixFile, FixRow
from streamrace.reports.data.waits import RacePair
from streamrace.repro.sessions.fixing import statements
from streamrace.repro.sessions.fixing.candidates import HOST, Candidate, candidates
from streamrace.repro.sessions.fixing.live_trial import AskedAgain, Trying, asked_again, work_of
from streamrace.repro.sessions.fixing.proof import Proof, Prover
from streamrace.repro.sessions.fixing.statements import Module
from streamrace.repro.sessions.race_selection import Chosen
from streamrace.trace.records import TraceError
from streamrace.trace.untrusted import visible

Tell = Callable[[str], None]
_HOWS: Final = ("event", "stream wait", "record_stream", *HOST)
_ENDLESS = 1 << 62
_NAMES = 2  # names tried for a tensor
_NO_END = "\\ No newline at end of file"  # the text of diff and patch


def fix(chosen: Chosen, folder: Path, *, tries: int, tell: Tell) -> FixFile:
    """Return all candidates for a race; up to ``tries`` are tried live, the best first, until one is clean.

    ``folder`` holds the live runs while they run. Raises :class:`WrongUse`,
    :class:`streamrace.trace.records.TraceError`.
    """
    request, race = asked_again(chosen), chosen.race
    together = _together(chosen)
    files = _Files(chosen, request)
    try:
        prover = Prover(chosen.trace)
    except (TypeError, ValueError, LookupError, AttributeError) as error:  # field types are not checked on reading
        raise TraceError(f"the traces in {chosen.folder} are damaged ({error})") from error
    if not prover.has(race):
        raise WrongUse(
            f"the traces in {chosen.folder} do not have that race: run the program again with 'streamrace check'"
        )
    fixes = candidates(race, files.module, files.script, prover.users(race))
    proofs = []
    for number, candidate in enumerate(fixes, 1):
        tell(f"{number} of {len(fixes)} in the trace: {candidate.words}")
        proofs.append(prover.prove(race, candidate, together))
    proofs.sort(key=lambda proof: _turn(race, proof))
    untried = _cannot(request)
    trying = None
    if request is not None and not untried and tries:
        records = prover.records
        trying = Trying(request, race, chosen.run.file.races, work_of(records), end_of(records))
        proofs = _named(proofs, trying, prover.formers(race), folder, tell)
    rows = [_row(proof, files) for proof in proofs]
    best = None
    if trying is not None:
        writable = [at for at, proof in enumerate(proofs) if proof.holds and proof.candidate.patch is not None]
        for number, at in enumerate(writable[:tries], 1):
            tell(f"{number} of at most {min(tries, len(writable))} live: {rows[at].words}")
            patch = proofs[at].candidate.patch
            assert patch is not None
            with _aside(folder) as place:
                tried = trying.run(patch, place)
            rows[at] = rows[at].model_copy(
                update={"live": tried.live, "says": tried.says, "live_longer_ns": tried.longer_ns}
            )
            if tried.live == "clean":
                best = at
                break
    if best is not None:  # those tried before it come after it
        rows.insert(0, rows.pop(best))
        best = 0
    return FixFile(
        run=chosen.folder.name,
        number=chosen.number,
        race=RacePair.of(race),
        missing=race.missing_wait,
        asked=dict(chosen.asked),
        versions=dict(chosen.run.file.versions),
        end_ns=prover.end_ns,
        no_schedule=prover.no_schedule,
        untried=untried,
        rows=rows,
        best=best,
    )


def _together(chosen: Chosen) -> Sequence[Race]:
    """Return the races that lack the same wait as the chosen one, itself included."""
    found = chosen.run.file.found if not chosen.sites else []
    return next((group.races for group in found if chosen.number in group.numbers), (chosen.race,))


def _named(
    proofs: Sequence[Proof], trying: Trying, blocks: set[tuple[int, int]], folder: Path, tell: Tell
) -> list[Proof]:
    """Name the tensor of the first record_stream for which a live run reports names."""
    result: list[Proof] = []
    named = False
    for proof in proofs:
        names: list[tuple[str, bool]] = []
        if proof.holds and proof.candidate.at is not None and not named:
            tell(f"a live run that reports names for: {proof.candidate.words}")
            with _aside(folder) as place:
                names = trying.names(proof.candidate, blocks, place)
        named = named or bool(names)
        several = [
            replace(proof, candidate=proof.candidate.for_tensor(expression, listed=listed))
            for expression, listed in names[:_NAMES]
        ]
        result += several or [proof]
    return result


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Provide a folder for a live run, removed afterwards."""
    place = folder / "live"
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _turn(race: Race, proof: Proof) -> tuple[bool | int, ...]:
    """Sort key: proofs that hold, of the whole finding, for any next owner and not by chance, writable, cheap, weak
    come first.
    """
    weak: int = _HOWS.index(proof.candidate.how)
    if race.kind in ("reused", "freed") and proof.candidate.how == "record_stream":
        weak = -1
    cost = _ENDLESS if proof.longer_ns is None else proof.longer_ns
    words = proof.candidate.patch is None and proof.candidate.at is None
    return (
        *(not proof.holds, proof.left, proof.this_owner, proof.by_chance, words),
        *(cost, weak, bool(proof.candidate.supposes)),
    )


def _cannot(request: AskedAgain | None) -> str:
    """Return why the program is not run again, or an empty string."""
    if request is None:
        return "a scenario has no script to run again"
    if request.dry_on_nodes:
        return "a dry run cannot be run live"
    if request.on_gpu:
        return "it ran on a GPU, where no run shows that a race is gone"
    # The folder is untrusted: nothing is installed because of it.
    lacking = [package for package in request.asked_for if _lacks(names.parse(package))]
    if lacking:
        return f"{', '.join(lacking)} is not in {folder_of_releases()}: run 'streamrace check' with it here"
    return ""


def _lacks(package: names.Package) -> bool:
    return not (place_of(package, folder_of_releases()).is_dir() or _is_ours(package))


def _is_ours(package: names.Package) -> bool:
    """Check whether the environment itself has the package in this version, so that no other folder has it."""
    return package.is_(names.installed(package.name))


def _row(proof: Proof, files: _Files) -> FixRow:
    candidate = proof.candidate
    return FixRow(
        how=candidate.how,
        words=candidate.words,
        holds=proof.holds,
        why=proof.why,
        supposes=candidate.supposes,
        longer_ns=proof.longer_ns,
        more=proof.more,
        left=proof.left,
        by_chance=proof.by_chance,
        this_owner=proof.this_owner,
        diff=files.diff(candidate),
        unwritten=candidate.why,
    )


class _Files:
    """Locates the source files of a run on this machine."""

    def __init__(self, chosen: Chosen, request: AskedAgain | None) -> None:
        self._chosen = chosen
        self._own: Mapping[str, str] = chosen.run.file.checked.own if chosen.run.file.checked else {}
        self.script: Path | None = None
        self._folders: list[Path] = []
        if request is not None:
            self._of_program(request.words)
            replaced = [package for text in request.packages if not _is_ours(package := names.parse(text))]
            self._folders += [place_of(package, folder_of_releases()) for package in replaced]
        self.module: Callable[[str], Module | None] = cache(self._module)

    def _of_program(self, words: Sequence[str]) -> None:
        module = words[:1] == ["-m"]
        program = Program(words[1] if module else words[0], module=module)
        try:
            self._folders.append(program.folder)
        except WrongUse as problem:
            raise WrongUse(
                f"{problem}: 'fix' runs the program again, so call it where 'streamrace check' was called"
            ) from None
        if not module:
            self.script = Path(program.name).resolve()

    def _module(self, name: str) -> Module | None:
        """Return the parsed module. Raises :class:`WrongUse` if the file has changed since the run."""
        path = sources.file_of(name, self._folders)
        module = statements.read(name, path.resolve()) if path else None
        if module is None:
            return None
        for source in self._chosen.run.sources.values():
            if source.file == name:
                current = [
                    line[: len(old)] for line, old in zip(module.lines[source.first - 1 :], source.text, strict=False)
                ]
                if current != list(source.text):
                    raise WrongUse(f"{name} is not what it was in that run: run 'streamrace check' again")
        return module

    def diff(self, candidate: Candidate) -> str:
        """Return a unified diff, for ``patch -p1`` in the folder to which the file's name is relative."""
        if candidate.patch is None:
            return ""
        text: list[str] = []
        for path, insertions in candidate.patch.items():
            module = candidate.files[path]
            patched, _ = overlay.put_in(module.lines, insertions)
            name = visible(self._own.get(module.name) or portable(module.name, self._own), lines=False)
            before, behind = (_with_ends(lines, module.lines, module.ended) for lines in (module.lines, patched))
            text += difflib.unified_diff(before, behind, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in text)


def _with_ends(lines: Sequence[str], original: Sequence[str], ended: bool) -> list[str]:
    """Add line ends, except to a last line that had none."""
    ended_lines = [f"{line}\n" for line in lines]
    if not ended and lines[-1] == original[-1]:
        ended_lines[-1] = lines[-1]
    return ended_lines
