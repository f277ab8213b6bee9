"""The programs in examples/ run by the command that stands in them, and end with the verdict that stands in them."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import notebook
import pytest

from tests.fuzz.gpu_sessions import GpuSession
from tests.warm import ROOT, Warm, shell, with_simulated_gpu

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "frames.ipynb"
MOST_LINES = 60


@dataclass
class Done:
    """What a command left."""

    status: int
    out: str
    err: str
    findings: dict[str, Any]

    @property
    def told(self) -> str:
        """What was printed, on one line and without the frame."""
        return " ".join(self.out.replace("│", " ").split())


def python(*words: str, folder: Path = ROOT, of: Warm | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**shell(), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return (of or with_simulated_gpu()).run(*words, folder=folder, environment=environment)


@pytest.fixture(scope="module")
def with_deepspeed() -> Iterator[Warm]:
    """Four ranks need seconds each to import it."""
    modules = ["deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer", "torch._inductor.compile_fx"]
    warm = Warm(modules, environment={**shell(), "OMP_NUM_THREADS": "1"}, of=with_simulated_gpu())
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def racy(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return checked("racy_prefetcher.py", tmp_path_factory.mktemp("racy"))


def docstring(program: Path) -> str:
    return ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""


def command(program: Path) -> list[str]:
    """The words of the command in the program's docstring."""
    (line,) = re.findall(r"^    ((?:python|streamrace) .+)$", docstring(program), flags=re.MULTILINE)
    return shlex.split(line)


def checked(name: str, runs: Path, of: Warm | None = None) -> Done:
    """As its docstring says it is checked; but for the folder that takes the run."""
    ours, check, *rest = command(EXAMPLES / name)
    assert (ours, check) == ("streamrace", "check")
    done = python("-m", "streamrace", "check", "--runs", str(runs), "--name", "it", *rest, of=of)
    findings = json.loads((runs / "it" / "findings.json").read_text(encoding="utf-8"))
    return Done(done.returncode, done.stdout, done.stderr, findings)


def line_of(name: str, part: str) -> int:
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, start=1) if part in line)
    return number


def losses(out: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)$", out, flags=re.MULTILINE)]


# -- all of them -----------------------------------------------------------------------------------


def test_there_are_six_programs() -> None:
    assert len(PROGRAMS) == 6


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_is_short_and_says_its_command_and_its_verdict(program: Path) -> None:
    assert len(program.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert f"examples/{program.name}" in command(program)
    assert re.search(r"^(Verdict|Cause): .*exit status \d\.", docstring(program), flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_a_row_for_each_with_its_command() -> None:
    rows = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    commands = {
        name: told
        for row in rows
        for name, told in re.findall(r"^\| `(\S+)` \|.*\| `((?:python|streamrace) .+?)`.* \|", row)
    }
    assert commands.pop(NOTEBOOK.name) in NOTEBOOK.read_text(encoding="utf-8")
    assert commands == {program.name: shlex.join(command(program)) for program in PROGRAMS}


# -- streamrace check -----------------------------------------------------------------------------------


def test_the_racy_prefetcher_has_a_race_between_its_copy_and_the_model(racy: Done) -> None:
    assert (racy.status, racy.findings["verdict"]) == (1, "race"), racy.err
    first = racy.findings["races"][0]
    copy, use = (
        line_of("racy_prefetcher.py", 'batch.to("cuda"'),
        line_of("racy_prefetcher.py", "(model(batch) - batch)"),
    )
    assert [first[side]["stack"][0]["line"] for side in ("first", "second")] == [copy, use]
    assert f"racy_prefetcher.py:{copy} Prefetcher.fetch" in racy.told
    assert f"racy_prefetcher.py:{use} <module>" in racy.told
    assert "Missing: stream 'default' never waits for stream 1 after cudaMemcpyAsync HtoD" in racy.told
    assert "Race 1 is harmful" in racy.told
    assert {race["kind"] for race in racy.findings["races"]} == {"write-read", "reused"}  # what record_stream is for


def test_the_fixed_prefetcher_is_clean_and_gives_the_same_losses(racy: Done, tmp_path: Path) -> None:
    fixed = checked("fixed_prefetcher.py", tmp_path)
    assert (fixed.status, fixed.findings["verdict"], fixed.findings["races"]) == (0, "clean", []), fixed.err
    assert len(losses(fixed.out)) == 4
    assert losses(fixed.out) == losses(racy.out)  # the race did not show, by luck


def test_stock_deepspeed_with_hpz_is_clean_and_hpz_was_exercised(with_deepspeed: Warm, tmp_path: Path) -> None:
    done = checked("deepspeed_hpz.py", tmp_path, with_deepspeed)
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.err
    assert done.findings["checked"]["unexercised"] == []
    assert len(losses(done.out)) == 3


def test_stock_fsdp2_is_clean(tmp_path: Path) -> None:
    done = checked("fsdp2.py", tmp_path)
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.err
    assert "4 streams of 2 ranks" in done.findings["checked"]["seen"]
    assert len(losses(done.out)) == 3


# -- the watch, pytest, the notebook ---------------------------------------------------------------


def test_the_watch_says_that_the_batch_of_step_3_was_bad() -> None:
    done = python(*command(EXAMPLES / "nan_watch.py")[1:])
    assert done.returncode == 0, done.stderr
    assert [loss == loss for loss in losses(done.stdout)] == [True, True, False, False, False]
    assert "BadValueWarning: Bad data. Step 3, micro-batch 1, forward, rank 0: input argument 0" in done.stderr
    assert "The batch itself holds it." in done.stderr


def test_of_the_pytest_file_the_racy_test_fails_with_both_lines(gpu: GpuSession) -> None:
    name = "test_prefetcher.py"
    _, module, pytest_, file = command(EXAMPLES / name)
    assert (module, pytest_, file) == ("-m", "pytest", f"examples/{name}")
    shutil.copy(EXAMPLES / name, gpu.folder)
    told = gpu.run(name, passed=1, failed=1)
    assert "test_that_nobody_waits_for_the_copy" in told.rpartition("FAILED")[2]
    for line in (line_of(name, 'batch.to("cuda"'), line_of(name, "arrived * 2")):
        assert f"{name}:{line} double" in told
    assert "harmful race: stream 'default' never waits for stream 1 after cudaMemcpyAsync HtoD" in told


def test_the_cells_of_the_notebook_print_what_was_saved_with_it(tmp_path: Path) -> None:
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    (line,) = re.findall(r"^streamrace (.+)$", "".join("".join(cell["source"]) for cell in book["cells"]), re.MULTILINE)
    made = python("-m", "streamrace", *shlex.split(line), folder=tmp_path)
    assert made.returncode == 0, made.stderr
    (folder := tmp_path / "examples").mkdir()

    def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return python(str(script), folder=folder)

    assert notebook.printed(book, folder, tmp_path / "frames.py", run) == notebook.kept(book)
