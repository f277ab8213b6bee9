"""``python -m mutants.every [NAME ...]``: every small change that mutmut knows of, in the engine that is to be read.

mutmut changes one operator, number, name or argument of ``detectors/order`` at a time, some 1,600 in all, and runs the
tests that reach it. Both engines judge there: the twin in C++ is not changed, so a change that shows in any finding is
noticed. One that makes the tests take five times as much of the processor is, too: most of these never end. Names are
those of mutmut (``"streamrace.detectors.order.clocks*"``); without any it is all of them, for half an hour. What was
noticed is kept in ``build/mutmut``, and so is what is argued; a later call tries the rest, and what changed.

Survivors are printed as differences, but for those that ``mutants/argued.toml`` says why nobody can notice. Exit
status: 0 where no other survives, 1 where one does.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mutants.listed import ROOT

FOLDER = ROOT / "build" / "mutmut"
ARGUED = Path(__file__).with_name("argued.toml")
CHANGED = "detectors/order"
TESTS = (
    *("happens_before", "oracle", "history", "overlap", "reuse", "reuse_oracle", "mirrored", "find_races", "sides"),
    "refused",
)
_COPIED = ("detectors", "repro", "reports", "scenarios", "streamrace")
_NOTICED = frozenset({1, 3, -24})  # pytest's failure statuses; the signal of a spent CPU limit (SIGXCPU)
_TIMES = 5  # times the duration of the tests
_ORIGINAL, _MUTANT = "__mutmut_orig", "__mutmut_"


class Survivor(NamedTuple):
    """A surviving change. ``was`` and ``becomes``: the changed lines of ``file``, without their indentation."""

    name: str
    file: str
    function: str
    was: tuple[str, ...]
    becomes: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutants.every", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help="of mutmut's; * stands for anything (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at once [2]")
    options = parser.parse_args()
    prepare()
    forget(FOLDER / "mutants" / CHANGED)
    program = str(Path(__file__).with_name("patched.py"))
    command = [sys.executable, program, "run", "--max-children", str(max(1, options.jobs)), *options.names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STREAMRACE_ENGINE": "both"}
    ended = subprocess.run(command, cwd=FOLDER, env=environment, check=False).returncode
    if ended != 0:
        raise SystemExit(f"mutmut ended with {ended}: is it installed (requirements-mutants.txt)?")
    outcomes = Counter[int | None]()
    left = [one for one in survivors(FOLDER / "mutants" / CHANGED, outcomes) if not is_argued(one, argued())]
    for one in left:
        print(f"\n{one.name}")
        for sign, lines in (("-", one.was), ("+", one.becomes)):
            print(*[f"{sign} {line}" for line in lines], sep="\n")
    tried = sum(count for outcome, count in outcomes.items() if outcome is not None)
    noticed = sum(outcomes[outcome] for outcome in _NOTICED)
    print(
        f"\n{tried} of {outcomes.total()} changes were tried: {noticed} are noticed, "
        f"{tried - noticed - len(left)} are argued to be none, {len(left)} survive."
    )
    raise SystemExit(bool(left))


def prepare() -> None:
    """Copy the checkout without this package, whose name is that of mutmut's own folder. Earlier results stay."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith("mutants/") and (ROOT / name).exists():
            target = FOLDER / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for built in (ROOT / "build").iterdir():
        if built.is_dir() and built.name not in (FOLDER.name, "references", "lib") and "bdist" not in built.name:
            shutil.copytree(built, FOLDER / "build" / built.name, dirs_exist_ok=True)
    tests = [f"tests/detectors/test_{name}.py" for name in TESTS]
    arguments = ["--hypothesis-profile=ci", "-p", "no:cacheprovider", "-m", "not wide"]
    settings = {
        "source_paths": [CHANGED],
        "also_copy": [*_COPIED, "build", "Makefile", "README.md", "CHANGELOG.md", "docs"],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": arguments,
        "timeout_multiplier": _TIMES / 2,
    }
    said = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    with (FOLDER / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(f'\n[tool.mutmut]\n{said}process_isolation = "forkserver"\n')


def forget(folder: Path) -> None:
    """Have mutmut retry the survivors that are not argued: a test may exist for them now."""
    again = {one.name for one in survivors(folder, Counter()) if not is_argued(one, argued())}
    for said in folder.glob("*.py.meta"):
        kept = json.loads(said.read_text(encoding="utf-8"))
        outcomes = kept["exit_code_by_key"]
        kept["exit_code_by_key"] = {name: None if name in again else outcome for name, outcome in outcomes.items()}
        said.write_text(json.dumps(kept, indent=4), encoding="utf-8")


def survivors(folder: Path, outcomes: Counter[int | None]) -> Iterator[Survivor]:
    """Yield the survivors from mutmut's files in ``folder``; count all ``outcomes``."""
    for said in sorted(folder.glob("*.py.meta")):
        source = said.with_suffix("").read_text(encoding="utf-8")
        lines = source.splitlines()
        functions = {
            node.name: [line.strip() for line in lines[node.lineno : node.end_lineno]]
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef)
        }
        for name, outcome in json.loads(said.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            outcomes[outcome] += 1
            if outcome is not None and outcome not in _NOTICED:
                function = name.rpartition(".")[2]
                original = functions.get(function.rpartition(_MUTANT)[0] + _ORIGINAL, [])
                diff = list(difflib.ndiff(original, functions.get(function, [])))
                was, becomes = (tuple(line[2:] for line in diff if line.startswith(sign)) for sign in ("- ", "+ "))
                yield Survivor(name, said.with_suffix("").name, function_of(name), was, becomes)


def function_of(name: str) -> str:
    """Return the function that a change is in, by mutmut's name for it (``xǁClassǁfunction__mutmut_3``)."""
    first, *rest = name.rpartition(".")[2].rpartition(_MUTANT)[0].split("ǁ")
    return ".".join(rest) or first.removeprefix("x_")


def argued(path: Path = ARGUED) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))["argued"]
    return entries


def is_argued(survivor: Survivor, entries: list[dict[str, str]]) -> bool:
    """Check whether the change replaces a single line and an entry argues why nobody can notice it."""
    change = survivor.file, survivor.function, survivor.was, survivor.becomes
    return any(change == (entry["file"], entry["function"], (entry["was"],), (entry["becomes"],)) for entry in entries)


if __name__ == "__main__":
    main()
