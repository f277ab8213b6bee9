"""The answer to a finding: one per missing wait, what goes wrong by the program's lines, its effect, cure and bug."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from streamrace.detectors.missing_waits import missing_waits
from streamrace.reports.data.cures import CuresFile
from streamrace.reports.data.findings import Findings
from tests.check.conftest import Checking, Done

THREE_PRODUCERS = """
    import torch

    side = torch.cuda.Stream()
    a, b, c = (torch.zeros(1024, device="cuda") for _ in range(3))
    torch.cuda.synchronize()
    for step in range(3):
        a += 1
        b *= 2
        c.sub_(2)
        with torch.cuda.stream(side):
            total = torch.cat([a, b, c])
        torch.cuda.current_stream().wait_stream(side)
        print(total.sum().item())
"""

TWO_GROUPS = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    a = torch.zeros(8, device="cuda")
    dist.all_reduce(a, group=groups[rank // 2], async_op=True)
    a += 1
    torch.cuda.synchronize()
"""

TWO_WAITS = """
    import torch

    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    a += 1
    with torch.cuda.stream(side):
        a * 2
    b += 1
    with torch.cuda.stream(other):
        b * 2
"""


BEFORE_THE_MODEL_RUNS = """
    import torch

    side = torch.cuda.Stream()
    model = torch.nn.Linear(8, 8, device="cuda")
    kept = torch.empty_like(model.weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        kept.copy_(model.weight.detach())
    {before}
    for step in range(3):
        model(torch.ones(8, 8, device="cuda")).sum().backward()
    {behind}
"""


def found(done: Done) -> list[list[int]]:
    return [wait["races"] for wait in done.findings["missing_waits"]]


def test_races_that_one_wait_would_order_are_one_finding_everywhere(check: Checking) -> None:
    check.script(THREE_PRODUCERS)
    done = check("--format", "sarif", "--output", "it.sarif", "--write-baseline", "known.json", "train.py")
    assert len(done.findings["races"]) == 3 and found(done) == [[1, 2, 3]]
    assert "3 races, one missing wait" in done.told and "Races 2 and 3 lack the same wait." in done.told
    assert "Race 2:" not in done.told, "folded"

    (run,) = json.loads((check.folder / "it.sarif").read_text())["runs"]
    (result,) = run["results"]
    places = [*result["locations"], *result["relatedLocations"]]
    lines = {place["physicalLocation"]["region"]["startLine"] for place in places}
    assert lines == {7, 8, 9, 11}, "the places of all pairs"
    assert "The same wait would order 2 more pairs" in result["message"]["text"]

    (entry,) = json.loads((check.folder / "known.json").read_text())["findings"]
    assert len(entry["races"]) == 2
    again = check("--overwrite", "--baseline", "known.json", "--witnesses", "0", "train.py")
    assert again.status == 0 and [race["suppressed"]["kind"] for race in again.findings["races"]] == ["baseline"] * 3


def test_a_cure_of_the_finding_is_shown_as_a_diff_that_can_be_applied(check: Checking) -> None:
    check.script(THREE_PRODUCERS)
    done = check("--witnesses", "1", "train.py")
    (cure,) = CuresFile.read(check.folder / "runs" / "it").cures
    assert cure.diff in done.out and cure.diff.count("\n+") == 2, "one line more, and none of it is wrapped"
    assert f"Apply: {cure.apply}" in done.out
    where = "Cure of race 1, as the trace proves it:"
    assert done.out[: done.out.index(where)].count("\n") <= 25
    assert "streamrace fix runs/it 1" in done.out

    subprocess.run(cure.apply, shell=True, cwd=check.folder, check=True, capture_output=True)
    assert check("--overwrite", "train.py").status == 0, "the cure mends the whole finding"


def test_the_sentence_names_the_lines_and_the_values(check: Checking) -> None:
    check.script(THREE_PRODUCERS)
    done = check("--witnesses", "1", "train.py")
    assert (
        "train.py:11 reads memory on stream 1 while train.py:7 may still be writing it on stream 'default': stream 1 "
        "does not wait for that." in done.told
    )
    assert "Race 1 is harmful: in the opposite order, what the host reads by" in done.told
    assert "differs (-1024 becomes 0)" in done.told, done.told


def test_a_race_that_lies_before_the_first_forward_pass_is_said_to(check: Checking) -> None:
    sentence = "The two race only before the model's first forward pass."
    check.script(BEFORE_THE_MODEL_RUNS.format(before="kept.sum()", behind=""))
    assert sentence in check("--witnesses", "0", "train.py").told
    check.script(BEFORE_THE_MODEL_RUNS.format(before="", behind="kept.sum()"))
    assert sentence not in check("--overwrite", "--witnesses", "0", "train.py").told, "its second access is behind it"
    check.script(BEFORE_THE_MODEL_RUNS.format(before="kept.sum()", behind="").partition("for step")[0])
    assert sentence not in check("--overwrite", "--witnesses", "0", "train.py").told, "no model ran"


def test_a_rank_that_calls_no_module_is_not_said_to_race_before_its_first_forward_pass(check: Checking) -> None:
    check.script(
        """
        import os
        import torch

        if os.environ["RANK"] == "0":
            torch.nn.Linear(8, 8, device="cuda")(torch.ones(8, 8, device="cuda"))
        else:
            side, a = torch.cuda.Stream(), torch.zeros(8, device="cuda")
            a += 1
            with torch.cuda.stream(side):
                a * 2
        """
    )
    done = check("--ranks", "2", "--witnesses", "0", "train.py")
    assert done.status == 1 and "first forward pass" not in done.told


def test_the_same_lines_on_ranks_of_two_groups_are_one_finding(check: Checking) -> None:
    check.script(TWO_GROUPS)
    done = check("--ranks", "4", "--witnesses", "0", "train.py")
    assert {race["first"]["stream"] for race in done.findings["races"]} == {"nccl 0,1", "nccl 2,3"}
    assert found(done) == [[1, 2, 3, 4]], "the collective's read and write, on both groups"


def test_races_that_lack_two_waits_are_two_findings(check: Checking) -> None:
    check.script(TWO_WAITS)
    done = check("--witnesses", "0", "train.py")
    assert found(done) == [[1], [2]]
    assert "2 races: streams use the same memory" in done.told


def test_a_folder_of_an_earlier_version_is_grouped_as_it_is_read(check: Checking) -> None:
    check.script(THREE_PRODUCERS)
    check("--witnesses", "0", "train.py")
    file = check.folder / "runs" / "it" / Findings.NAME
    data = json.loads(file.read_text())
    del data["missing_waits"]
    file.write_text(json.dumps(data))
    findings = Findings.read(file.parent)
    assert [group.numbers for group in findings.found] == [(1, 2, 3)]
    assert [wait.where for wait in missing_waits(findings.races)] == [findings.found[0].where]
    data["missing_waits"] = [{"where": "behind", "races": [1, 7]}]  # of another run
    file.write_text(json.dumps(data))
    assert [group.numbers for group in Findings.read(file.parent).found] == [(1, 2, 3)]


def test_a_bug_of_the_catalogue_is_recognised_by_its_places(check: Checking, tmp_path: Path) -> None:
    """The program of ds-second-race stands for a user's own: the race lies in the library, at the places of the bug."""
    from streamrace.scenarios.catalogue import entry

    path = next(one.path for one in entry.entries() if one.id == "ds-second-race")
    (check.folder / "train.py").write_text(path.read_text())
    done = check("--ranks", "2", "--witnesses", "0", "train.py")
    assert done.status == 1, done.err
    assert "Known: ds-second-race, " in done.told and "no release mends it yet" in done.told
