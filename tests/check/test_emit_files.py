"""An emitted test brings the files that its program opens, or names them, and fails by the race and not for want of a
file.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamrace import check_program
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.testing import programs
from streamrace.fuzz.testing.programs import StreamRaceWarning
from streamrace.reports.data.opened_files import noted
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import regression_test
from tests.check.conftest import Checking
from tests.warm import shell

RACE = """
    side = torch.cuda.Stream()
    a = torch.ones(8, 8, device="cuda")
    b = a @ a * factor
    with torch.cuda.stream(side):
        c = b.sum()
    torch.cuda.synchronize()
    print(c.item())
"""
CURE = "side.wait_stream(torch.cuda.default_stream())\n"
BETWEEN = ("train.py:<module>", "train.py:<module>")
TEST = "test_sum_in_the_program_waits_for_mul_in_the_program"


@pytest.fixture(scope="module")
def one() -> Iterator[Runner]:
    with Runner(variables={**shell(), "DS_ACCELERATOR": None}) as runner:
        yield runner


@pytest.fixture
def runner(one: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The one process in which all programs of these tests run."""

    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[Runner]:
        yield one

    monkeypatch.setattr(regression_test, "Runner", shared)
    monkeypatch.setattr(programs, "Runner", shared)
    return one


def fails_by_the_race(file: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="stream race: the read by sum at train.py"):
        runpy.run_path(str(file))[TEST]()


def test_the_files_lie_in_the_test_and_those_that_cannot_are_named(
    check: Checking, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project, outside = tmp_path / "project", tmp_path / "words.txt"
    check.folder = project
    (project / "data").mkdir(parents=True)
    (project / "config.json").write_text('{"lr": 0.5}\n')
    (project / "data" / "scale.bin").write_bytes(b"\x02\x00\xff")
    (project / "large.csv").write_text("1\n" * 40_000)
    (project / "state.txt").write_text("2")
    outside.write_text("1")
    check.script(
        f"""
    import json
    import torch
    from pathlib import Path
    Path("own.txt").write_text("1")
    torch.save(torch.ones(1), "own.pt")
    state = int(open("state.txt").read())
    Path("state.txt").write_text("3")
    factor = json.load(open("config.json"))["lr"]
    factor *= Path(__file__).parent.joinpath("data", "scale.bin").read_bytes()[0]
    factor *= int(open("large.csv").readline()) * int(open("{outside}").read()) * state
    factor *= int(open("own.txt").read()) * torch.load("own.pt").item()
    {RACE.lstrip()}
    """
    )
    assert check("train.py").status == 1
    monkeypatch.chdir(project)
    main(["emit-test", "runs/it", "1", "--trials", "0"])
    assert f"Not in the file, and opened (see there): large.csv, {outside}\n" in capsys.readouterr().out
    text = Path("runs/it/test_race_1.py").read_text()
    assert 'CONFIG_JSON = """{"lr": 0.5}\n"""' in text
    assert 'DATA_SCALE_BIN = b64decode(\n    """\nAgD/\n"""\n)' in text
    assert 'STATE_TXT = """2"""' in text  # as it was read
    assert "It opens large.csv: copy that into the folder of this file." in text
    assert f"It opens {outside}: that has to be there." in " ".join(text.split())
    assert '"own' not in text.partition("def test_")[2]

    empty = tmp_path / "empty"
    empty.mkdir()
    alone = (project / "runs" / "it" / "test_race_1.py").rename(empty / "test_it.py")
    large = (project / "large.csv").rename(empty / "large.csv")
    monkeypatch.chdir(empty)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(empty), "test_it.py"]
    done = subprocess.run(command, env=shell(), capture_output=True, text=True)
    assert done.returncode == 1 and "stream race: the read by sum at train.py" in done.stdout, done.stdout + done.stderr
    alone.write_text(text.replace("    c = b.sum()", f"    {CURE}    c = b.sum()"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamRaceWarning)
        runpy.run_path(str(alone))[TEST]()
    large.unlink()
    with pytest.raises(pytest.fail.Exception, match=r"nothing is known of the race: .*/large.csv, which is not there"):
        runpy.run_path(str(alone))[TEST]()


def test_a_program_below_the_working_folder_finds_both_kinds_of_files(
    check: Checking, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One counts from the working folder, one from the program's. Two ranks open each once, as far as the test goes."""
    (check.folder / "scripts").mkdir()
    (check.folder / "configs").mkdir()
    (check.folder / "configs" / "ds.json").write_text('{"lr": 2}')
    (check.folder / "scripts" / "words.txt").write_text("3")
    head = """
    import json
    import torch
    from pathlib import Path
    factor = json.load(open("configs/ds.json"))["lr"] * int(Path(__file__).with_name("words.txt").read_text())
    """
    script = check.script(f"{head}{RACE.lstrip()}", "scripts/train.py")
    assert check("--ranks", "2", script).status == 1
    record = check.folder / "runs" / "it" / "opened.jsonl"
    assert len(record.read_text().splitlines()) == 4
    assert [(file.name, file.data) for file in noted(record)] == [
        ("configs/ds.json", b'{"lr": 2}'),
        ("words.txt", b"3"),
    ]
    monkeypatch.chdir(check.folder)
    main(["emit-test", "runs/it", "1", "--trials", "0"])
    fails_by_the_race(Path("runs/it/test_race_1.py"))

    record.write_text("no line of a record\n" + json.dumps({"path": "/x", "name": "../x", "data": "AAAA"}))
    with pytest.raises(SystemExit, match="2"):
        main(["emit-test", "runs/it", "1"])
    assert "Error: a program's file cannot lie at '../x': its path is relative, without '..'" in capsys.readouterr().err
    record.unlink()  # a run of an earlier release
    with pytest.raises(SystemExit, match="2"):
        main(["emit-test", "runs/it", "1"])
    assert "No such file or directory: 'configs/ds.json'" in capsys.readouterr().err


def test_what_the_smaller_program_does_not_open_any_more_is_not_in_the_test(
    check: Checking, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check.folder / "factor.txt").write_text("2")
    (check.folder / "notes.txt").write_text("not needed")
    check.script(
        f"""
    import torch
    factor = int(open("factor.txt").read())
    {RACE.lstrip()}
    print(open("notes.txt").read())
    """
    )
    assert check("train.py").status == 1
    monkeypatch.chdir(check.folder)
    main(["emit-test", "runs/it", "1", "--trials", "1"])
    text = Path("runs/it/test_race_1.py").read_text()
    assert 'files={\n            "factor.txt": FACTOR_TXT,\n        },' in text
    assert "notes" not in text and "NOTES" not in text
    fails_by_the_race(Path("runs/it/test_race_1.py"))


@pytest.mark.parametrize("path", ["/etc/hosts", "../x", "a/../../x", "", ".", "a\0b"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="its path is relative, without '..'"):
        check_program("", between=BETWEEN, files={path: "x"})


@pytest.mark.parametrize("path", ["program.py", "./near.py", "near.py/x", "a/b/c"])
def test_a_path_that_another_file_has_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="another one is there"):
        check_program("", between=BETWEEN, modules={"near.py": ""}, files={path: b"", "a/b": ""})
