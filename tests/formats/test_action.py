"""The Action and the hook that lie in this repository, by running their steps as GitHub and pre-commit do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from streamrace.repro.commands.check import check
from tests.check.test_check import SUMS
from tests.formats import sarif_standard
from tests.warm import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK = ROOT / ".pre-commit-hooks.yaml"
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{ *inputs\.([a-z-]+) *\}\}")

# In place of python: it writes down how it was called, and for the command's own name does no more.
STUB = """#!/bin/sh
case "$*" in
  -c*) exec {python} "$@" ;;
esac
for one in "$@"; do printf '%s\\n' "$one"; done >> "$CALLS"
exit "${{STATUS:-0}}"
"""


class Ran(NamedTuple):
    status: int
    said: str
    calls: list[str]
    output: str


def step(name: str, folder: Path, inputs: Mapping[str, str] | None = None, **environment: str) -> Ran:
    """Run a step of the Action in bash, as a runner does: inputs by their expressions, and the files that it has."""
    given = {key: one.get("default", "") for key, one in ACTION["inputs"].items()} | dict(inputs or {})
    one = STEPS[name]
    shell = {key: EXPRESSION.sub(lambda match: given[match[1]], value) for key, value in one.get("env", {}).items()}
    files = {key: folder / key for key in ("GITHUB_OUTPUT", "RUNNER_TEMP", "CALLS")}
    files["RUNNER_TEMP"].mkdir(exist_ok=True)
    script = folder / "step.sh"
    script.write_text(one["run"])
    known = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
        cwd=folder,
        env={**known, "GITHUB_ACTION_PATH": str(ROOT), **{k: str(file) for k, file in files.items()}, **shell}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    texts = [files[key].read_text() if files[key].exists() else "" for key in ("CALLS", "GITHUB_OUTPUT")]
    return Ran(done.returncode, done.stdout + done.stderr, texts[0].splitlines(), texts[1])


def stubbed(folder: Path) -> str:
    """A PATH on which python and our command are the stub."""
    place = folder / "bin"
    place.mkdir()
    for name in ("python", "streamrace"):
        (place / name).write_text(STUB.format(python=sys.executable))
        (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


def test_nothing_that_a_workflow_says_is_ever_text_of_a_script() -> None:
    assert ACTION["runs"]["using"] == "composite"
    runs = [one for one in STEPS.values() if "run" in one]
    assert len(runs) == 2
    for one in runs:
        assert "${{" not in one["run"] and one["shell"] == "bash"
    used = set(EXPRESSION.findall(json.dumps(ACTION["runs"])))
    named = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(ACTION["runs"])))
    assert used <= named == set(ACTION["inputs"])
    assert ACTION["outputs"]["status"]["value"] == "${{ steps.check.outputs.status }}"


def test_the_check_is_called_with_the_words_that_were_given(tmp_path: Path) -> None:
    inputs = {
        "program": "a b.py",
        "arguments": "--steps 3 'two words' $(touch gone) `touch gone`",
        "options": "--witnesses 0 --slow 'kernel:aten::mm=20'",
        "ranks": "2",
        "baseline": "known.json",
        "output": "x; touch gone",
    }
    ran = step("Check", tmp_path, inputs, PATH=stubbed(tmp_path), STATUS="4")
    assert ran.status == 4 and ran.output == "status=4\n", ran.said
    assert ran.calls == [
        *("check", "--format=sarif", "--witnesses", "0", "--slow", "kernel:aten::mm=20"),
        *("--ranks=2", "--output=x; touch gone", "--baseline=known.json", "--", "a b.py"),
        *("--steps", "3", "two words", "$(touch", "gone)", "`touch", "gone`"),
    ]
    assert not (tmp_path / "gone").exists()
    context = check.make_context("check", ran.calls[1:])  # which is one that the command line takes
    assert context.params["program"] == ("a b.py", *ran.calls[-7:])
    assert context.params["form"] == "sarif" and context.params["ranks"] == 2


def test_annotations_go_to_the_log_and_broken_quotes_fail_before_anything_runs(tmp_path: Path) -> None:
    path = stubbed(tmp_path)
    ran = step("Check", tmp_path, {"program": "train.py", "format": "github"}, PATH=path)
    assert ran.calls == ["check", "--format=github", "--", "train.py"] and ran.status == 0
    (tmp_path / "CALLS").unlink()
    ran = step("Check", tmp_path, {"program": "train.py", "arguments": "'"}, PATH=path)
    assert ran.status != 0 and ran.calls == []


def test_this_package_is_installed_with_the_extra_of_the_command(tmp_path: Path) -> None:
    ran = step("Install", tmp_path, PATH=stubbed(tmp_path))
    assert ran.status == 0 and ran.calls[-1] == f"{ROOT}[reports]"


@pytest.mark.wide
def test_a_workflow_from_installation_to_the_file(tmp_path: Path) -> None:
    """In an environment that has the dependencies, and pip among them, so that nothing is fetched."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    packages = next(Path(one) for one in sys.path if one.endswith("site-packages"))
    (target,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (target / "dependencies.pth").write_text(f"{packages}\n")
    checkout = tmp_path / "action"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", checkout], check=True)
    environment = {
        "PATH": f"{tmp_path / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTION_PATH": str(checkout),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's word for: do not isolate
        "PIP_NO_INDEX": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    installed = step("Install", work, **environment)
    assert installed.status == 0, installed.said
    (work / ".git").mkdir()
    (work / "train.py").write_text(_script(SUMS))
    ran = step("Check", work, {"program": "train.py", "options": "--witnesses 0"}, **environment)
    assert ran.status == 1 and ran.output == "status=1\n" and "verdict: race" in ran.said, ran.said
    (result,) = sarif_standard.held_to((work / "streamrace.sarif").read_text()).results
    assert result.locations[0].physical_location.artifact_location.uri == "train.py"


def _script(text: str) -> str:
    from textwrap import dedent

    return dedent(text).lstrip()


def committed(folder: Path) -> str:
    """Make the folder a repository with all that is in it; gives its commit."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(folder)]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def hooked(folder: Path, program: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """pre-commit itself, with the hook of this repository and a program to check."""
    hooks, work = folder / "hooks", folder / "work"
    hooks.mkdir()
    shutil.copy(HOOK, hooks)
    work.mkdir()
    (work / "train.py").write_text(_script(program))
    config: dict[str, Any] = {
        "repos": [
            {
                "repo": str(hooks),
                "rev": committed(hooks),
                "hooks": [{"id": "streamrace", "args": ["--witnesses", "0", "train.py"]}],
            }
        ]
    }
    (work / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    committed(work)
    known = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"}
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never"],
        cwd=work,
        env={**known, "PRE_COMMIT_HOME": str(folder / "home"), "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_hook_is_one_that_pre_commit_takes_and_calls(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    done = hooked(tmp_path, SUMS, stubbed(tmp_path), CALLS=str(calls), STATUS="1")
    assert done.returncode == 1 and "Failed" in done.stdout, done.stdout + done.stderr
    words = calls.read_text().splitlines()
    assert words == [*("check", "--name", "pre-commit", "--overwrite", "--witnesses", "0", "train.py")]
    assert check.make_context("check", words[1:]).params["program"] == ("train.py",)


@pytest.mark.wide
@pytest.mark.parametrize(("word", "status"), [("", 1), ("  # stream-race: ok it is only shown", 0)])
def test_a_commit_with_a_race_does_not_pass(word: str, status: int, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = hooked(tmp_path, SUMS.replace("c = b.sum()", f"c = b.sum(){word}"), path)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("verdict: race" in done.stdout) == (status == 1)
