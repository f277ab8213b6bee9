"""``streamrace explain``: each kind of race told from its run's folder alone, on the screen, as JSON and as a page."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from streamrace.device.scripts import WrongUse
from streamrace.reports.data.witnesses import WitnessesFile
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import folders
from streamrace.repro.sessions.race_selection import chosen
from streamrace.repro.sessions.verdict import judge
from streamrace.trace.records import HOST_STREAM, End, Frame, Launch, Stack
from tests.detectors.story import Story
from tests.detectors.test_find_races import write
from tests.reports.dry_folders import dry_folder
from tests.reports.run_folders import run_folder

Captured = pytest.CaptureFixture[str]


def judged(story: Story, folder: Path) -> Path:
    """The folder of a run in which the story went on."""
    what = folders.request(["train.py"], module=False, ranks=len(story.hosts), slow={})
    folders.make(folder, what, overwrite=True)
    for host in story.hosts:
        host.adds(End(100))
    write(story, folder / "trace")
    judge(folder, what, failure=None, beside=folder)
    return folder


def explained(folder: Path, capsys: Captured, race: str = "1", *more: str) -> str:
    capsys.readouterr()
    main(["explain", str(folder), race, *more])
    return capsys.readouterr().out


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def early(names: tuple[str, str] = ("compute", "side"), **how: Any) -> Story:
    """The second waits for the first, and then the first writes again."""
    story = Story()
    compute, side = story.streams(*names)
    weights = story.block()
    compute.writes(weights, at=1)
    side.waits_for(compute, at=2)
    compute.writes(weights, at=3, **how)
    side.reads(weights, at=4)
    return story


def pinned() -> Story:
    story = Story()
    compute, host = story.streams("compute", HOST_STREAM)
    batch = story.block()
    compute.reads(batch, kernel="cudaMemcpyAsync HtoD", at=1)
    host.writes(batch, kernel="aten::fill_", at=2)
    story.waits(host.records())
    return story


def reused(*, quiet: bool = True) -> Story:
    story = Story()
    compute, side = story.streams("compute", "stream 7")
    old = story.block(on=compute)
    side.reads(old, at=1)
    compute.runs(at=2)
    if not quiet:
        story.frees(old)
        return story
    story.lets_go(old)
    compute.writes(story.again(old, on=compute, at=3), at=4)
    return story


def fragile() -> Story:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights, at=1)
    story.looks_at(loss, compute, at=2)
    side.reads(weights, at=3)
    return story


def collective() -> Story:
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    for host in story.hosts:
        compute, nccl = host.streams("compute", "nccl")
        part = host.block()
        compute.writes(part, at=1)
        nccl.collective(group, reads=part, at=2)
        host.synchronizes(compute, at=3)
    return story


KINDS = {
    "a wait that comes too early": (
        early(),
        "Stream 'side' reads what stream 'compute' writes, and does not wait for it.",
        "The read is the first work of stream 'side'. It also runs after `copy_` (model.py:1) on stream 'compute': "
        "stream 'side' waits for stream 'compute' (model.py:2). So the last work before both is `copy_` "
        "(model.py:1) on stream 'compute'. The write was issued later, so this does not order the read after it. "
        "Neither stream 'side' nor the host waits for the write later. "
        "Missing: a wait of stream 'side' for stream 'compute', after the write (model.py:3) and before the read "
        "(model.py:4).",
    ),
    "the host's own access": (
        pinned(),
        "The host writes what stream 'compute' still reads, and does not wait for it.",
        "Missing: a wait of the host for stream 'compute', after the read (model.py:1) and before the host's write "
        "(model.py:2).",
    ),
    "memory that is handed out again": (
        reused(),
        "Memory that stream 7 still reads is handed out again, and stream 'compute' writes it without waiting.",
        "Then, after `add_` (model.py:2), the program frees that memory. The allocator follows stream 'compute', "
        "on which it was allocated; no record_stream names another stream. The allocator hands the memory out again, "
        "to the allocation at model.py:3 forward, without waiting for that access.",
    ),
    "memory that is freed": (
        reused(quiet=False),
        "Memory that stream 7 still reads is freed, and may be handed out at once.",
        "Missing: a record_stream for stream 7, or a wait of stream 'compute' for it, after the read (model.py:1) and "
        "before the memory is freed.",
    ),
    "what chance orders": (
        fragile(),
        "Stream 'side' reads what stream 'compute' writes; only the read at /src/model.py:2 forward makes it wait.",
        "As the program stands, the two are ordered, but by chance: the host waits for stream 'compute' (model.py:2). "
        "That wait is there for another reason: whoever removes it does not see what it orders. What follows describes "
        "the program without it.",
    ),
    "a collective of two ranks": (
        collective(),
        "Stream 'nccl' reads what stream 'compute' writes, and does not wait for it.",
        "No work comes before both. The wait for the write comes too late, after the read: the host waits for "
        "stream 'compute' (model.py:3).",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_race_has_its_telling(kind: str, tmp_path: Path, capsys: Captured) -> None:
    story, headline, telling = KINDS[kind]
    told = on_one_line(explained(judged(story, tmp_path / "it"), capsys))
    assert headline in told
    assert telling in told


def test_the_screen_draws_the_run_s_own_timing_and_says_what_it_has_not(tmp_path: Path, capsys: Captured) -> None:
    text = explained(judged(early(), tmp_path / "it"), capsys)
    lanes = [line for line in text.splitlines() if "." * 20 in line]
    assert [line.split()[0] for line in lanes] == ["compute", "side"]
    assert "1" in lanes[0] and "2" in lanes[1]
    assert "There is no picture of a timing in which it shows: the run has no witness of it." in on_one_line(text)
    assert "Not known: the run has no witness" in on_one_line(text)


def test_without_traces_it_tells_what_it_can(tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    for trace in (folder / "trace").iterdir():
        trace.unlink()
    told = on_one_line(explained(folder, capsys))
    assert "Rank 0 issues `copy_` (model.py:3 forward, called at train.py:1) on stream 'compute', which" in told
    assert "The run has no traces any more" in told
    assert "There is no picture of the run's own timing" in told


@pytest.mark.parametrize("damage", ["cut", "noise", "another run"])
def test_a_trace_that_is_damaged_is_said_to_be(damage: str, tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    (trace,) = (folder / "trace").iterdir()
    if damage == "another run":
        write(Story(), folder / "trace")
    else:
        trace.write_bytes(trace.read_bytes()[:120] if damage == "cut" else trace.read_bytes() + b"\xc1" * 90)
    told = on_one_line(explained(folder, capsys))
    assert "What precedes each access is not known here" in told or "they are of another run" in told
    assert "Missing: a wait of stream 'side'" in told


def test_json_has_the_same(tmp_path: Path, capsys: Captured) -> None:
    data = json.loads(explained(judged(early(), tmp_path / "it"), capsys, "1", "--format", "json"))
    assert (data["format"], data["number"], data["fragile"]) == ("stream-race-explanation", 1, False)
    assert data["missing"].startswith("a wait of stream 'side' for stream 'compute'")
    assert data["order"]["known"]["work"]["frame"]["line"] == 1
    assert data["told"][0]["title"] == "What happens"
    assert data["timings"]["own"]["second"]["lane"] == "side"
    assert data["timings"]["other"] is None


@pytest.mark.parametrize("race", ["1", "model.py:3", "model.py:forward,model.py:4", "/src/model.py:4"])
def test_a_race_is_named_by_its_number_or_its_places(race: str, tmp_path: Path, capsys: Captured) -> None:
    assert "Race 1 of" in explained(judged(early(), tmp_path / "it"), capsys, race)


def two() -> Story:
    story = early()
    compute, side = story.streams("compute", "side")
    other = story.block()
    compute.writes(other, at=3)
    side.reads(other, at=9)
    return story


WRONG = {
    "0": "has no race 0. It has 1: write-read, /src/model.py:3 and /src/model.py:4; 2: write-read",
    "3": "has no race 3.",
    "model.py:3": "2 races of {folder} are at model.py:3: give the number. 1: ",
    "model.py:8": "has no race at model.py:8. It has 1: ",
    "model.py:3,model.py:3": "has no race at model.py:3 and model.py:3.",
    "nonsense": "'nonsense' is no race: give its number",
    "a:1,b:2,c:3": "is no race: give its number",
}


@pytest.mark.parametrize("race", WRONG)
def test_what_is_no_race_is_one_sentence(race: str, tmp_path: Path, capsys: Captured) -> None:
    folder = judged(two(), tmp_path / "it")
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(folder), race])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert WRONG[race].format(folder=folder) in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("made", "sentence"),
    [("nothing", "there is no such folder"), ("clean", "has no race"), ("dry", "is a dry run of a job")],
)
def test_what_has_no_race_is_one_sentence(made: str, sentence: str, tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "it"
    if made == "clean":
        run_folder(folder, clean=True)
    elif made == "dry":
        dry_folder(folder)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(folder), "1"])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_scenario_s_race_is_told_as_well(tmp_path: Path, capsys: Captured) -> None:
    told = on_one_line(explained(run_folder(tmp_path / "it"), capsys))
    assert "secondary model.layers.1.mlp.up_proj.weight" in told
    assert "This run shows it: the read takes effect" in told
    assert "streamrace replay t1,main,fix=none" in told
    assert "There is no picture of the witness: the run kept only its token" in told


TOKENS = {
    "t1": "It shows in the plain timing, where nothing is made slower.",
    "t1,x4:stream:3,x2:host": "It shows when stream 3 is 4 times as slow and the host is 2 times as slow.",
    "t1,jitter:20:7,0/1/nccl::all_reduce/12@+64us": "all work takes up to 20 % longer, drawn from seed 7 and the 12th "
    "`all_reduce` on stream 'side' of rank 0 starts 64 us later.",
    "t1,1/0/aten::mm/1+64us": "It shows when the first `mm` on stream 0 of rank 1 takes 64 us longer.",
    "t1,nonsense": "It shows in the timing 't1,nonsense'.",
}


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_told_in_words(token: str, tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    found = json.loads((folder / "findings.json").read_text())
    says = {"verdict": "harmful", "says": "in the opposite order, what the host reads differs"}
    found["races"][0]["witness"] = {"token": token, "reason": "", "command": "streamrace check x.py", **says}
    (folder / "findings.json").write_text(json.dumps(found))
    told = on_one_line(explained(folder, capsys))
    assert TOKENS[token] in told
    assert "Harmful: in the opposite order, what the host reads differs." in told


# -- hostile ---------------------------------------------------------------------------------------

EVIL = "::error::x\n::set-output name=a::b \x1b[2J\u202e<script>alert(1)</script> ::warning::y " + "long" * 60


def test_no_name_changes_what_is_told(tmp_path: Path, capsys: Captured) -> None:
    story = early((f"a{EVIL}", f"b{EVIL}"), kernel=f"aten::{EVIL}")
    folder = judged(story, tmp_path / "it")
    text = explained(folder, capsys)
    assert not any(unicodedata.category(one)[0] == "C" and one != "\n" for one in text)
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())
    assert json.loads(explained(folder, capsys, "1", "--format", "json"))["number"] == 1
    assert max(map(len, text.splitlines())) < 200
    explained(folder, capsys, "1", "--report")
    page = (folder / "explain-1" / "index.html").read_text()
    assert "<script>alert" not in page and "\u202e" not in page
    assert "<script>alert" not in (folder / "explain-1" / "timings.svg").read_text()


@pytest.mark.parametrize("odd", [7, None, b"\xff", ["x"]], ids=str)
def test_a_trace_whose_fields_are_of_other_types_is_told_as_far_as_it_goes(
    odd: Any, tmp_path: Path, capsys: Captured
) -> None:
    folder = judged(early(), tmp_path / "it")
    story = early()
    for at, record in enumerate(story.trace):
        if isinstance(record, Stack):
            story.trace[at] = record._replace(frames=(Frame(odd, odd, odd), *record.frames))
        elif isinstance(record, Launch):
            story.trace[at] = record._replace(kernel=odd)
    write(story, folder / "trace")
    assert "Missing: a wait of stream 'side'" in on_one_line(explained(folder, capsys))


def kept(folder: Path, **changes: Any) -> None:
    """What a run keeps of its witness: the run's own timing stands for another here."""
    found = json.loads((folder / "findings.json").read_text())
    file = {
        **{"format": "stream-race-witnesses", "version": 1},
        "witnesses": [
            {
                **{"race": 1, "order": "reversed", "occurrence": found["races"][0]["examples"][0]},
                "window": {**window(), **changes},
            }
        ],
    }
    (folder / WitnessesFile.NAME).write_text(json.dumps(file))


def window() -> dict[str, Any]:
    def one(lane: str, start: int, end: int) -> dict[str, Any]:
        more = {"kernel": "copy_", "parameter": "", "op": 1, "kind": "kernel", "place": ""}
        return {"lane": lane, "start": start, "end": end, **more}

    both = [one("compute", 0, 50), one("side", 10, 20)]
    return {"start": 0, "end": 60, "lanes": ["compute", "side"], "slices": both, "first": both[0], "second": both[1],
            "left_out": 0}  # fmt: skip


def test_the_witness_s_timing_stands_below_the_run_s_own(tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    kept(folder)
    text = explained(folder, capsys)
    own, other = text.split("The witness, in which it shows")
    assert "This run, in which it does not show" in own
    arrows = ["".join(line for line in part.splitlines() if set(line) <= set("<- >")).strip() for part in (own, other)]
    assert arrows[0].endswith(">") and arrows[1].startswith("<")  # where it runs backwards, the race shows
    main(["explain", str(folder), "1", "--report"])
    files = {one.name for one in (folder / "explain-1").iterdir()}
    assert files == {"index.html", "explanation.json", "timings.png", "timings.svg"}


@pytest.mark.parametrize(
    "changes", [{"start": "0"}, {"start": 2**60}, {"slices": [{}]}, {"first": None}, {"lanes": [1]}], ids=str
)
def test_a_file_of_witnesses_that_no_run_writes_is_refused(
    changes: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    folder = judged(early(), tmp_path / "it")
    kept(folder, **changes)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(folder), "1"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "witnesses.json does not hold what a run writes" in said and "Traceback" not in said


def test_one_of_another_race_is_not_taken_for_it(tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    kept(folder)
    file = folder / WitnessesFile.NAME
    data = json.loads(file.read_text())
    data["witnesses"][0]["occurrence"]["hi"] += 1
    file.write_text(json.dumps(data))
    assert "The witness, in which it shows" not in explained(folder, capsys)


def test_a_page_is_not_written_through_a_link(tmp_path: Path, capsys: Captured) -> None:
    folder = judged(early(), tmp_path / "it")
    (folder / "explain-1").symlink_to(tmp_path)
    with pytest.raises(SystemExit):
        main(["explain", str(folder), "1", "--report"])
    assert "is a link" in capsys.readouterr().err


def test_who_needs_the_traces_or_a_race_says_so(tmp_path: Path) -> None:
    """A command that judges the traces again needs them; one that mends a race needs one."""
    folder = judged(early(), tmp_path / "it")
    assert chosen(folder, "1").race.kind == "write-read"
    for trace in (folder / "trace").iterdir():
        trace.unlink()
    with pytest.raises(WrongUse, match="has no traces any more"):
        chosen(folder, "1")
    only = judged(fragile(), tmp_path / "other")
    with pytest.raises(WrongUse, match="its verdict is fragile, ordered by chance"):
        chosen(only, "1")
    assert [str(one) for one in chosen(only, "1", held=True).sites] == ["the read at /src/model.py:2 forward"]
