"""What is installed is what is tested: a wheel has all files that the packages need, the extras all that is imported.

`make test-wheel` shows the same of a wheel that was built and installed. Here it is read from the sources, and packages
that an environment would lack are taken away, in seconds.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePath
from typing import Any

import pytest
from setuptools import find_packages

from tests.packages import PACKAGES, as_installed, is_program, tracked

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
# Callbacks for trainers, and the plugin: who imports them has what they are for.
OF_OTHERS = {"transformers", "lightning", "pytorch_lightning", "pytest"}
COMES_WITH = {"pydantic_core": "pydantic"}


def packed() -> set[PurePath]:
    """What pyproject.toml gives to setuptools beside modules."""
    found: set[PurePath] = set()
    for name, patterns in SETUPTOOLS["package-data"].items():
        for package in installed() if name == "*" else {name}:
            place = ROOT.joinpath(*package.split("."))
            found |= {path.relative_to(ROOT) for pattern in patterns for path in place.glob(pattern)}
    return found


def installed() -> set[str]:
    return set(find_packages(str(ROOT), include=SETUPTOOLS["packages"]["find"]["include"]))


def brought(extra: str) -> set[str]:
    """The packages that ``pip install 'streamrace[extra]'`` names, by the names under which they are imported."""
    found: set[str] = set()
    for one in [*PROJECT["project"]["dependencies"], *EXTRAS.get(extra, [])]:
        ours = re.fullmatch(r"streamrace\[([\w,]+)\]", one)
        name = re.match(r"[\w.-]+", one)
        assert name
        found |= set().union(*map(brought, ours[1].split(","))) if ours else {name[0].lower().replace("-", "_")}
    return found


def python(code: str, *, with_extra: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where nothing of the other extras can be imported."""
    lacking = sorted(set().union(*map(brought, EXTRAS)) - brought(with_extra))
    before = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules.update(dict.fromkeys({lacking}))\n"
    return subprocess.run(
        [sys.executable, "-c", before + code], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_wheel_has_every_module() -> None:
    modules = {path for path in tracked() if path.suffix == ".py" and not is_program(path)}
    folders = {str(as_installed(path).parent).replace("/", ".") for path in modules}
    assert folders == installed()


def test_a_wheel_has_every_template_profile_and_question() -> None:
    wanted = {as_installed(path) for path in tracked() if path.suffix != ".py" or is_program(path)}
    assert {path.suffix for path in wanted} >= {".html", ".css", ".md", ".toml", ".csv"}
    assert wanted == packed()


def test_a_wheel_has_types() -> None:
    assert Path("streamrace", "py.typed") in tracked()


def test_the_licence_is_the_one_that_is_named() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    (name,) = PROJECT["project"]["license-files"]
    assert "Apache License\n                           Version 2.0" in (ROOT / name).read_text(encoding="utf-8")


def test_every_package_that_is_imported_is_in_an_extra() -> None:
    known = brought("all") | brought("triton") | OF_OTHERS | set(PACKAGES) | set(sys.stdlib_module_names)
    unknown = set()
    for path in sorted(path for path in tracked() if path.suffix == ".py" and not is_program(path)):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            tops = {name.partition(".")[0] for name in names}
            unknown |= {f"{path}: {top}" for top in tops if COMES_WITH.get(top, top) not in known}
    assert not unknown


def test_detectors_find_a_race_with_what_the_bare_package_brings() -> None:
    assert brought("") == {"msgpack", "numpy"}
    done = python(
        """
before = set(sys.modules)
from streamrace.detectors import RaceDetector
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(name for name in loaded if not name.startswith("_") and name != "cython_runtime"))
from streamrace.trace.records import Access, Alloc, Begin, Launch, Stack
both = (Access(1, 0, 8),)
detector = RaceDetector()
detector.feed(0, [
    Begin("stream-race-trace", 2, 0, 1, {}), Stack(0, ()), Alloc(1, 8, 0, 0),
    Launch(1, 0, "copy_", (), both, 0, 0, 0, 1), Launch(2, 1, "add", both, (), 0, 0, 0, 1),
])
detector.finish()
print(len(detector.races), "race")
""",
        with_extra="",
    )
    assert done.stdout.splitlines() == ["['numpy', 'streamrace']", "1 race"], done.stderr


def test_the_nan_watch_finds_and_saves_with_numpy_and_torch_alone(tmp_path: Path) -> None:
    assert brought("watch") == {"msgpack", "numpy", "torch"}
    done = python(
        """
import torch
from streamrace import NanWatch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with NanWatch(model, checksums=True, on_finding="save", folder="incidents") as watch:
    for step in range(3):
        model(torch.full((3, 4), float("nan") if step == 1 else 1.0)).sum().backward()
        optimizer.step()
print(watch.finding.cause, watch.finding.step)
""",
        with_extra="watch",
        folder=tmp_path,
    )
    assert done.stdout == "data 2\n", done.stderr
    assert (tmp_path / "incidents" / "incident-step2" / "rank-0" / "batch.safetensors").is_file()


def test_the_version_is_told_and_the_commands_are_listed_without_torch() -> None:
    version = python("from streamrace.repro.__main__ import main; main(['--version'])", with_extra="")
    assert version.stdout == f"streamrace, version {PROJECT['project']['version']}\n", version.stderr
    listed = python(
        "import sys; sys.modules.update(torch=None, numpy=None)\n"
        "from streamrace.repro.__main__ import main; main(['--help'])",
        with_extra="reports",
    )
    assert listed.returncode == 0 and "--version" in listed.stdout, listed.stderr


@pytest.mark.parametrize(
    ("extra", "command", "sentence"),
    [
        (
            "",
            "run",
            "streamrace run needs the extra deepspeed: pip install 'streamrace[deepspeed]' (there is no click ",
        ),
        ("reports", "run", "streamrace run needs the extra deepspeed: pip install 'streamrace[deepspeed]'"),
        (
            "watch",
            "compare",
            "streamrace compare needs the extras deepspeed and reports: pip install 'streamrace[deepspe",
        ),
        (
            "watch",
            "report",
            "streamrace report needs the extra reports: pip install 'streamrace[reports]' (there is no c",
        ),
        (
            "",
            "watch",
            "streamrace watch needs the extra watch: pip install 'streamrace[watch]' (there is no torch here)",
        ),
        (
            "watch",
            "--help",
            "the command line, all but 'watch' and 'doctor', needs the extra deepspeed:",
        ),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(extra: str, command: str, sentence: str) -> None:
    script = str(Path(__file__))  # to be watched; it is not reached
    done = python(f"from streamrace.repro.__main__ import main; main([{command!r}, {script!r}])", with_extra=extra)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {sentence}") and len(done.stderr.splitlines()) == 1


def test_a_module_that_is_in_no_extra_is_somebody_s_fault_and_shown_whole() -> None:
    """Python's own exit status, 1, would say of a check that a race was found."""
    begin = "sys.modules['streamrace.repro.commands.group'] = None\nsys.argv = ['repro', 'check', 'train.py']"
    done = python(f"{begin}\nfrom streamrace.repro.__main__ import run; run()", with_extra="all")
    assert done.returncode == 70
    assert done.stderr.startswith("Traceback") and "streamrace.repro.commands.group" in done.stderr
