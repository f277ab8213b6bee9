"""The wheel, installed outside the checkout: what a user has who never saw this repository."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import pytest

from streamrace.reports.formats.regression_test import EmittedTest, text
from tests.formats.checked_runs import race
from tests.package.conftest import ROOT, EnvironmentOf
from tests.packages import as_installed, tracked

pytestmark = pytest.mark.package
EXTRAS = ("", "watch", "deepspeed", "reports")

TRAINING = """
import sys
import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 4):
    x = torch.randn(16, 4)
    if step == 2:
        x[3, 1] = float("nan")
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", sys.argv[1:])
"""

WATCHED = """
import torch
from streamrace.detectors import NanWatch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with NanWatch(model, checksums=True, on_finding=["save"], folder="of a hook") as watch:
    for step in range(3):
        model(torch.full((3, 4), float("nan") if step == 1 else 1.0)).sum().backward()
        optimizer.step()
print(watch.finding.sentence())
"""

STREAMS = """
import pytest
import torch
from torch.cuda import Stream, current_stream, stream
from streamrace import watch

@pytest.mark.stream_race
@pytest.mark.parametrize("wait", [True, False])
def test_prefetcher(wait):
    side = Stream()
    with stream(side):
        batch = torch.ones(4) * 2
    if wait:
        current_stream().wait_stream(side)
    watch("loss", batch.sum())
"""

PROGRAM = """
    import torch

    side = torch.cuda.Stream()
    a = torch.ones(8, 8, device="cuda")
    b = a @ a
    # here
    with torch.cuda.stream(side):
        c = b.sum()
    torch.cuda.synchronize()
    print(c.item())
"""

NO_STREAMS = """
def test_of_somebody_else():
    pass
"""

WHERE = """
import importlib, sys
for room in ("detectors", "device", "reports"):
    print(importlib.import_module(f"streamrace.{room}").__file__)
print(sys.path, sys.meta_path)
"""


def test_the_wheel_has_what_git_has_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
        assert packed == {str(as_installed(path)) for path in tracked()}
        assert {name for name in packed if file.read(name) != (ROOT / name).read_bytes()} == set()
        assert [name for name in file.namelist() if name.endswith(".dist-info/licenses/LICENSE")]


@pytest.mark.parametrize("extra", EXTRAS)
def test_nothing_comes_from_the_checkout(extra: str, environment_of: EnvironmentOf) -> None:
    environment = environment_of(extra)
    *places, search = environment.python("-c", WHERE).stdout.splitlines()
    assert [Path(place).relative_to(environment.packages).parts[:2] for place in places] == [
        ("streamrace", room) for room in ("detectors", "device", "reports")
    ]
    assert str(ROOT) not in search and "editable" not in search


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_version_is_told(extra: str, environment_of: EnvironmentOf) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    done = environment_of(extra).repro("--version")
    assert (done.returncode, done.stdout) == (0, f"streamrace, version {project['version']}\n"), done.stderr


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_doctor_runs_with_every_extra_and_says_whether_the_device_can(
    extra: str, environment_of: EnvironmentOf
) -> None:
    done = environment_of(extra).repro("doctor")
    assert (done.returncode, done.stderr) == (0 if extra else 1, ""), done.stdout
    assert "pip install 'streamrace[watch]'" in done.stdout if not extra else "a CPU build" in done.stdout


def test_the_demo_needs_the_extra_of_check_alone(environment_of: EnvironmentOf) -> None:
    done = environment_of("reports").repro("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: race" in done.stdout and "verdict: clean" in done.stdout


def test_a_run_and_its_report(environment_of: EnvironmentOf) -> None:
    """Run where DeepSpeed is and no plotting, reported where plotting is and no DeepSpeed."""
    executes, reports = environment_of("deepspeed"), environment_of("reports")
    ran = executes.repro("run", "--size", "tiny", "--steps", "2", "--fix", "none", "--name", "it")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = executes.folder / "runs" / "it"
    findings = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    assert findings["races"]

    reported = reports.repro("report", "runs/it")
    assert reported.returncode == 0, reported.stdout + reported.stderr
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert (ROOT / "reports" / "pages" / "templates" / "style.css").read_text(encoding="utf-8").strip() in page
    assert str(ROOT) not in page


def test_the_plugin_needs_the_watch_extra_alone(environment_of: EnvironmentOf) -> None:
    environment = environment_of("watch")
    (environment.folder / "test_streams.py").write_text(STREAMS, encoding="utf-8")
    done = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_streams.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout and "Traceback" not in done.stdout
    assert "Race 1 of 1: write-read, harmful" in done.stdout


def test_an_emitted_test_needs_the_watch_extra_alone(environment_of: EnvironmentOf) -> None:
    environment = environment_of("watch")
    one = EmittedTest(
        race=race(),
        program=dedent(PROGRAM),
        name="program.py",
        between=("program.py:<module>", "program.py:<module>"),
        timing="t1,0/0/aten::mm/1+64us",
        reference="t1",
        harm="harmful",
        says="what the host reads differs",
    )
    waiting = replace(one, program=one.program.replace("# here", "side.wait_stream(torch.cuda.current_stream())"))
    for each, status in ((one, 1), (waiting, 0)):
        (environment.folder / "test_emitted.py").write_text(text(each), encoding="utf-8")
        done = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_emitted.py")
        assert done.returncode == status, done.stdout + done.stderr
        told = (
            "stream race: the read by sum at program.py:9 <module> is not ordered after the write by mm at program.py:6"
        )
        assert (told in done.stdout) == bool(status)


def test_the_watch_has_msgpack_numpy_and_torch_alone(environment_of: EnvironmentOf) -> None:
    """Beside pytest, which is there for the test below, and what torch itself installs."""
    environment = environment_of("watch")
    lacking = ("click", "deepspeed", "hypothesis", "matplotlib", "pandas", "pydantic", "safetensors")
    code = f"import importlib.util as u; print([name for name in {lacking} if u.find_spec(name)])"
    assert environment.python("-c", code).stdout == "[]\n"
    (environment.folder / "watched.py").write_text(WATCHED, encoding="utf-8")
    done = environment.python("watched.py")
    assert done.returncode == 0, done.stderr
    assert "Step 2, micro-batch 1, forward, rank 0: input argument 0 of the model" in done.stdout


def test_a_script_is_watched_and_its_incident_becomes_a_page(environment_of: EnvironmentOf) -> None:
    watch, reports = environment_of("watch"), environment_of("reports")
    (watch.folder / "train.py").write_text(TRAINING, encoding="utf-8")
    done = watch.repro("watch", "--folder", "of a script", "train.py", "--its", "own")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained ['--its', 'own']\n"
    assert done.stderr.splitlines()[-1].startswith("streamrace watch: Sequential (58 parameters), 3 steps. ")

    page = reports.repro("report", "of a script/incident-step2")
    assert page.returncode == 0, page.stdout + page.stderr
    assert (watch.folder / "of a script" / "incident-step2" / "report" / "index.html").is_file()


@pytest.mark.parametrize(
    ("extra", "command", "missing"),
    [
        ("", "run", "deepspeed"),
        ("watch", "run", "deepspeed"),
        ("reports", "run", "deepspeed"),
        ("", "watch", "watch"),
        ("deepspeed", "report", "reports"),
        ("deepspeed", "compare", "deepspeed,reports"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    extra: str, command: str, missing: str, environment_of: EnvironmentOf
) -> None:
    environment = environment_of(extra)
    (environment.folder / "nothing.py").write_text("", encoding="utf-8")
    arguments = {"watch": ["nothing.py"], "report": ["."]}.get(command, [])
    done = environment.repro(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"Error: streamrace {command} needs the extra")
    assert f": pip install 'streamrace[{missing}]' (there is no " in sentence


def test_a_page_of_a_study_needs_what_the_study_is_of(environment_of: EnvironmentOf) -> None:
    environment = environment_of("reports")
    folder = environment.folder / "runs" / "sweep"
    folder.mkdir(parents=True)
    note = {"format": "stream-race-study-note", "version": 1, "study": "sweep", "command": "streamrace sweep"}
    note |= {"versions": {}, "options": {}, "hardware": ""}
    (folder / "study.json").write_text(json.dumps(note), encoding="utf-8")
    done = environment.repro("report", "runs/sweep")
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(
        "Error: streamrace report needs the extras reports and deepspeed: pip install 'streamrace["
    )


@pytest.mark.parametrize("extra", ["", "watch"])
def test_pytest_of_somebody_else_does_not_notice_the_plugin(extra: str, environment_of: EnvironmentOf) -> None:
    environment = environment_of(extra)
    (environment.folder / "test_other.py").write_text(NO_STREAMS, encoding="utf-8")
    done = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_other.py")
    assert (done.returncode, done.stdout.splitlines()[-1].split(" in ")[0]) == (0, "1 passed"), done.stdout


def test_the_plugin_without_torch_says_what_to_install(environment_of: EnvironmentOf) -> None:
    environment = environment_of("")
    body = "import pytest\n@pytest.mark.stream_race\ndef test_it():\n    pass\n"
    (environment.folder / "test_lacking.py").write_text(body, encoding="utf-8")
    done = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lacking.py")
    assert done.returncode == 1
    assert "torch is not installed in this environment: pip install 'streamrace[watch]'" in done.stdout
    assert "Traceback" not in done.stdout
