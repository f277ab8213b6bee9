"""What a run writes has the bytes of the release before (``written/``), but for the words of its sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streamrace.detectors import Stale, Uncovered
from streamrace.detectors.live.finding import Cause, Finding, Kind
from streamrace.detectors.values.answers import Answer
from streamrace.detectors.values.divergence import Divergence, WrongLoss, WrongParameter
from streamrace.detectors.witness import Witness, judged
from streamrace.fuzz.campaign import CampaignResult, Trial
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.fuzz.witness import Reversal
from streamrace.replay.deviations import Stretch
from streamrace.replay.replayer import UsedValue
from streamrace.replay.tokens import Token
from streamrace.reports.data import known_findings, sources
from streamrace.reports.data.campaigns import TimingsFile
from streamrace.reports.data.catalogue import CatalogueFile, EntryRow, RanSide
from streamrace.reports.data.dry_program import Dry
from streamrace.reports.data.finding_kinds import KINDS
from streamrace.reports.data.findings import Cost, Findings, of_scenario
from streamrace.reports.data.fixes import FixFile
from streamrace.reports.data.known_findings import Known
from streamrace.reports.data.schema import KeptSuppression
from streamrace.reports.data.sources import SourcesFile
from streamrace.reports.data.verdict import Seen, thinned
from streamrace.reports.data.waits import WaitsFile
from streamrace.reports.data.witnesses import SeenElsewhere, WitnessesFile
from streamrace.reports.screen import timings
from streamrace.reports.window import Slice, Window
from tests.formats.checked_runs import OWN, READ, WRITE, clean, folder_of, fragile, race, run, unwritten, wrong
from tests.reports.study_folders import REDUNDANT, fix_folder, fix_row, wait_row, waits_folder
from tests.reports.test_verdict import RACES

WRITTEN = Path(__file__).parent / "written"
_SENTENCE = re.compile(r'"(sentence|says|message|missing_wait)": ".*"')
_NAN = float("nan")
_MEANT = KeptSuppression("comment", "it is meant", "train.py", 7)
_BEFORE = KeptSuppression("baseline", "it is in the baseline known.json")
_RUN = {"scenario": {"fix": "none", "ranks": 2}, "versions": {"torch": "2.13.0"}, "steps_done": 3}


def _races(folder: Path) -> None:
    folder_of(
        run(
            options={"program": "train.py --größe 3", "ranks": 2, "slow": {"kernel:a": 2.5}, "timing": "t1"},
            races=[race(), RACES[0]],
            witnesses=[
                judged("harmful", "the loss differs", "t1,x", "streamrace check a.py"),
                judged("benign", ""),
            ],
            answers=[wrong(), Answer("right", 1, "right", "all 4 elements are what they must be")],
            others=[unwritten()],
            unexercised=["stream 3 was given no work"],
            unseen=["pinned memory was given away"],
            failure="rank 1 broke off",
            failed=True,
            dry=Dry(8, 2, 3 << 30, 80 << 30, 1_500_000),
            thinned=thinned(5, 10, {0: 4}, [race(), RACES[0]]),
            seeded="The program seeds nothing",
            seen=Seen(2, 1_000, 3, 123_456),
            known=Known([_MEANT, None, None, _BEFORE]),
        ),
        folder,
    )


def _fragile(folder: Path) -> None:
    folder_of(clean(holding=fragile(), known=Known([_BEFORE], (), ["one that is gone"])), folder)


def _clean(folder: Path) -> None:
    folder_of(clean(), folder)


def _scenario(folder: Path) -> None:
    stale = Stale(2, 1, "backward", 0, "a.weight", 1, False, 3, ("a.weight",), (0, 1), float("inf"))
    divergence = Divergence(
        WrongParameter(2, 1, "backward", 0, "a.weight", (0,), 7, (0, 1)),
        WrongLoss(2, 1, 0, _NAN, 0.125),
        ("a.weight",),
        ((1, 0.0), (2, _NAN)),
        96,
    )
    watch = Finding(Cause.FORWARD, Kind.TAKEN, 2, 1, "forward", 3, 0, (0, 1), "layer", "a.weight", evidence=("x",))
    found = of_scenario(
        **_RUN,
        races=RACES[:1],
        stale=stale,
        uncovered=[Uncovered("aten::cat", READ, 3, 10_880, ("a.weight",), (0,))],
        divergence=divergence,
        cost=Cost(2_836_500_000.0, 1.5),
        failure="rank 1 failed",
        watch=watch,
        witnesses=[Witness("t1,main", "")],
        profile={"name": "a100", "rate": 0.5},
        distance=0.12345,
    )
    found.write(folder)


def _rests(folder: Path) -> None:
    right = Divergence(None, None, (), ((1, 0.0),), 96)
    found = of_scenario(
        **_RUN, races=(), stale=None, uncovered=(), divergence=right, cost=None, holding=fragile(), unexercised=["a"]
    )
    found.write(folder)


def _plain(folder: Path) -> None:
    of_scenario(**_RUN, races=RACES[:1], stale=None, uncovered=(), divergence=None, cost=None).write(folder)


def _waits(folder: Path) -> None:
    redundant = wait_row(**REDUNDANT, pair=wait_row().races[0], by_chance=True, why="größer")
    waits_folder(
        folder, wait_row(), redundant, together=["a.py:3"], together_live="agrees", together_says="it is clean"
    )


def _fix(folder: Path) -> None:
    fix_folder(folder, fix_row(), fix_row(how="device synchronisation", holds=False, why="ä", longer_ns=-3))


def _catalogue(folder: Path) -> None:
    row = EntryRow(
        id="hpz", library="DeepSpeed", title="größer", mechanism="m", threads=["t"], kind="race", known="k", program="p"
    )
    side = RanSide(ran="deepspeed 0.19.8", verdict="race", sentence="A race.", races=1, lines=["a", "b"])
    rows = [row, row.model_copy(update={"affected": side, "fixed": side, "differs": ["the race is benign"]})]
    CatalogueFile(versions={"torch": "2.13.0"}, entries=rows).write(folder)


def _witnesses(folder: Path) -> None:
    one = Slice("compute", "add_ \udc80 ä", "w", 3, 9, 4, "kernel", "train.py:7")
    window = Window(-5, 100, ("host", "compute"), (one,), one, replace(one, lane="host", op=-1, kind="wait"), 2)
    kept = SeenElsewhere(race=1, order="reversed", occurrence=RACES[0].examples[0], window=window)
    WitnessesFile(witnesses=[kept]).write(folder)


def _sources(folder: Path) -> None:
    (folder / "train.py").write_text("".join(f"line {number} ä\n" for number in range(1, 30)), encoding="utf-8")
    sources.write([race(second=WRITE)], folder, (folder,))


def _baseline(folder: Path) -> None:
    found = known_findings.findings(
        [race()], [(one.sites, one.races) for one in fragile().held], [wrong()], OWN, {KINDS[0]: [unwritten()]}
    )
    (folder / "known.json").write_text(known_findings.text(found, [None, None, _MEANT, _BEFORE]), encoding="utf-8")


def _campaign(folder: Path) -> None:
    look = UsedValue(1, 4, 2, 1, "backward", "use", "a.weight")
    wrong, right = (ReplayVerdict(places, look, 7, _NAN, True, None) for places in ((3, 5), ()))
    late = (Stretch("stream:compute", 2),)
    found = CampaignResult(
        (Trial(1, (), right, own=False), Trial(2, late, wrong)), late, True, 5, 1, False, False, twice=1
    )
    harmful = Reversal(RACES[0], RACES[0].examples[0], late, "", wrong)
    none = Reversal(RACES[0], RACES[0].examples[0], (), "no timing does", None)
    token = Token("hpz", {}, late)
    timings.write(folder, {"fix": "none"}, found, token, [harmful, none], [token, token], None, {"torch": "2.13.0"})


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "races.json": (_races, "findings.json"),
    "fragile.json": (_fragile, "findings.json"),
    "clean.json": (_clean, "findings.json"),
    "scenario.json": (_scenario, "findings.json"),
    "rests.json": (_rests, "findings.json"),
    "plain.json": (_plain, "findings.json"),
    "waits.json": (_waits, "waits.json"),
    "fix.json": (_fix, "fix.json"),
    "catalogue.json": (_catalogue, "catalogue.json"),
    "witnesses.json": (_witnesses, "witnesses.json"),
    "sources.json": (_sources, "sources.json"),
    "baseline.json": (_baseline, "known.json"),
    "timings.json": (_campaign, "timings.json"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_has_the_bytes_of_before(name: str, tmp_path: Path) -> None:
    write, file = CASES[name]
    write(tmp_path)
    assert _shape(tmp_path / file) == _shape(WRITTEN / name)


@pytest.mark.parametrize("name", ["scenario.json", "races.json", "fragile.json", "rests.json"])
def test_findings_are_written_as_they_were_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_bytes((WRITTEN / name).read_bytes())
    found = Findings.read(tmp_path)
    assert found.text() == (WRITTEN / name).read_text(encoding="utf-8")
    assert found == Findings.read(tmp_path) or name == "scenario.json"  # a loss in it is no number


def test_every_other_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    for kind in (WaitsFile, FixFile, CatalogueFile, WitnessesFile, SourcesFile, TimingsFile):
        text = (WRITTEN / kind.NAME).read_text(encoding="utf-8")
        (tmp_path / kind.NAME).write_text(text, encoding="utf-8")
        text = text.replace("\\udc80", "\\\\udc80")  # half a character is read as its code
        assert kind.read(tmp_path).text() == text


def _shape(file: Path) -> str:
    return _SENTENCE.sub(r'"\1": ""', file.read_text(encoding="utf-8"))
