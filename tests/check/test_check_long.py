"""A long run is judged while it runs, of its traces the beginning is kept, and what went is never called clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrace.repro.__main__ import main
from tests.check.conftest import Checking, Done
from tests.faults import limited
from tests.warm import shell, with_simulated_gpu

FEW = "0.05"  # MiB: some six hundred operations, and the batch with which that is reached
KEPT = 52429 + 100_000  # bytes
STEPS = 3000

LOOP = """
    import os, signal, sys
    import torch

    steps, how = int(sys.argv[1]), sys.argv[2]
    side = torch.cuda.Stream()
    a, b = (torch.ones(64, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    for step in range(steps):
        racing = how == "races" or (how == "at its end" and step == steps - 1)
        a.add_(1)
        if not racing:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b.copy_(a)
        torch.cuda.current_stream().wait_stream(side)
        if how == "rests on a read":
            with torch.cuda.stream(side):
                b.add_(1)
                b.sum().item()
            a.add_(b)
    if how == "is killed":
        torch.cuda.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    torch.cuda.synchronize()
"""


def sizes(check: Checking) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (check.folder / "runs" / "it" / "trace").iterdir()}


def run(check: Checking, how: str, keep: str, steps: int = STEPS) -> Done:
    return check("--overwrite", "--keep-trace", keep, check.script(LOOP), str(steps), how)


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def here(check: Checking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(check.folder)
    monkeypatch.setenv("COLUMNS", "400")


def test_what_is_found_does_not_depend_on_what_is_kept(
    check: Checking, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    thinned = run(check, "races", FEW)
    assert sizes(check).keys() == {"rank0.trace"} and sizes(check)["rank0.trace"] < KEPT
    assert "Kept of the traces: the first" in thinned.told and "that was removed" not in thinned.told
    main(["explain", "runs/it", "1"])  # of an occurrence that is kept
    assert "In the part of the traces that is kept" in " ".join(capsys.readouterr().out.split())
    assert "was thinned: it holds the first" in refused(["fix", "runs/it", "1", "--tries", "0"], capsys)
    whole = run(check, "races", "0")
    assert sizes(check)["rank0.trace"] > 2 * KEPT and "Kept of the traces" not in whole.told
    assert thinned.findings["races"] == whole.findings["races"] != []
    about = thinned.findings["checked"].pop("thinned")
    assert thinned.findings == whole.findings
    assert (about["of"], about["ends"][0]["rank"]) == (2 * STEPS + 2, 0) and 100 < about["operations"] < STEPS


def test_a_race_in_what_went_is_told_and_nothing_calls_the_rest_clean(
    check: Checking, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The beginning of the traces, which is kept, has no race."""
    done = run(check, "at its end", FEW)
    assert (done.status, done.findings["verdict"]) == (1, "race")
    assert "Race 1 is in the part of the traces that was removed: only what stands here is left of it." in done.told
    main(["explain", "runs/it", "1"])
    told = " ".join(capsys.readouterr().out.split())
    assert "Both are in the part of the run's traces that was removed" in told
    assert "was thinned: it holds the first" in refused(["fix", "runs/it", "1", "--tries", "0"], capsys)
    main(["report", "runs/it"])
    page = (check.folder / "runs" / "it" / "report" / "index.html").read_text()
    assert "is in the part of the traces that was removed" in page
    kept = json.loads((check.folder / "runs" / "it" / "findings.json").read_text())
    assert kept["verdict"] == "race" and kept["races"][0]["occurrences"] == 1


def test_what_a_long_run_rests_on_is_told_without_its_traces(check: Checking) -> None:
    done, whole = (run(check, "rests on a read", keep, steps=1000) for keep in (FEW, "0"))
    assert done.findings["verdict"] == whole.findings["verdict"] == "fragile"
    told, of_all = (
        [race for one in held["checked"]["held"] for race in one["races"]] for held in (done.findings, whole.findings)
    )
    assert told == of_all != []


def test_a_long_program_that_is_killed_is_judged_by_all_that_it_wrote(check: Checking) -> None:
    done = run(check, "is killed", FEW)
    assert done.findings["verdict"] == "unknown" and "SIGKILL" in done.findings["failure"]
    assert sizes(check).keys() == {"rank0.trace"}
    assert int(done.findings["checked"]["seen"].split()[0].replace(",", "")) > STEPS


def test_what_was_found_until_the_disk_was_full_is_told(check: Checking) -> None:
    """There is no verdict, and no folder; the race is said all the same."""
    words = ["check", "--name", "it", "--witnesses", "0", check.script(LOOP), str(STEPS), "races"]
    status, said = limited(with_simulated_gpu(), 150_000, *words, folder=check.folder, environment=shell())
    assert status == 2 and not (check.folder / "runs" / "it").exists()
    assert said[-1].startswith("Error: the trace cannot be written: ")
    write, read = "write by add (train.py:10 <module>)", "read by copy_ (train.py:14 <module>)"
    assert f"Until then a race: {write} on stream 'default' and {read} on stream 1" in said[-1]


def test_ranks_of_a_launcher(check: Checking) -> None:
    """Rank 0's command judges and thins out what the others write."""
    first, other = check.ranks(2, "--keep-trace", FEW, check.script(LOOP), str(STEPS), "races")
    assert first.status == 1 and other.status == 0, first.err + other.err
    assert sizes(check).keys() == {"rank0.trace", "rank1.trace"}
    assert all(size < KEPT for size in sizes(check).values())
    assert first.findings["checked"]["thinned"]["of"] == 2 * (2 * STEPS + 2)


def test_a_recording_is_kept_whole(check: Checking) -> None:
    done = check("--record", "--keep-trace", FEW, check.script(LOOP), str(STEPS), "races")
    assert "thinned" not in done.findings["checked"] and sizes(check)["rank0.trace"] > KEPT


@pytest.mark.wide
def test_a_race_of_a_thinned_run_has_its_witness(check: Checking) -> None:
    """A second run, which began like it, stands for the one whose traces went."""
    script = check.script(LOOP)
    thinned, whole = (
        check("--overwrite", "--witnesses", "1", "--keep-trace", keep, script, str(STEPS), "races")
        for keep in (FEW, "0")
    )
    of = [one.findings["races"][0]["witness"] for one in (thinned, whole)]
    assert of[0] == of[1] and of[0]["verdict"] != "not confirmed"


@pytest.mark.wide
@pytest.mark.parametrize(("how", "ranks", "witnesses"), [("clean", 1, 0), ("clean", 2, 0), ("racy", 1, 8)])
def test_memory_of_a_hundred_thousand_operations(tmp_path: Path, how: str, ranks: int, witnesses: int) -> None:
    """... is that of ten thousand: of the ranks and of the command that judges."""
    from benchmarks.long import checked

    few, many = (checked(how, count, ranks, tmp_path / str(count), witnesses=witnesses) for count in (10_000, 100_000))
    assert many.largest < 1.1 * few.largest
    assert many.command < 1.1 * few.command


HANDED_ON = """
    import torch

    kept = None
    for i in range(60):
        a = torch.zeros(64 + 8 * (i % 5), 96, device="cuda")
        b = a[:, ::2] + 1
        kept = (b * 2)[:, :3].clone()
"""


def test_strided_accesses_to_memory_that_is_handed_on_and_on_are_judged(check: Checking) -> None:
    """Each block is cut out of former ones: whoever keeps all they did for each part has twice as much each time."""
    done = check(check.script(HANDED_ON))
    assert done.status == 0, done.err
    assert done.findings["verdict"] == "clean"
