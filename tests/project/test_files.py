"""What no file may hold. Who may import whom is a contract in pyproject.toml, which ``make lint`` checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 450

NEVER_IMPORTED = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
NEVER_CALLED = {"eval", "exec"}
PLACE_OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users)/")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[str]:
    """The packages that a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each(paths: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """A test of what holds for each of ``paths``. One test: three thousand of a millisecond each take half a minute."""

    def of(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{name_of(path)}: {error}")
            assert not wrong, "\n".join(wrong)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return of


each_module = each(sources(*PACKAGES, "papers"))
each_source = each(sources(*PACKAGES, "papers", "benchmarks", "docs", "examples", "mutants", "tests"))


@each_source
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@each_module
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@each(sources(*PACKAGES, "papers", "benchmarks", "docs", "examples", "mutants"))
def test_no_file_runs_what_it_reads(path: Path) -> None:
    """Traces, scenarios and data come from elsewhere: nothing in them may be executed."""
    assert not imports_of(path) & NEVER_IMPORTED
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in NEVER_CALLED), f"line {node.lineno}"
            for keyword in node.keywords:
                trusting = keyword.arg == "weights_only" and ast.unparse(keyword.value) != "True"
                assert not trusting, f"line {node.lineno}"


def texts() -> list[Path]:
    """Every file a person wrote."""
    kept = [
        path
        for folder in (*PACKAGES, "papers", "benchmarks", "docs", "examples", "mutants", "tests", ".ci")
        for path in (ROOT / folder).rglob("*")
    ]
    top = [path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".txt"} or path.name == "Makefile"]
    return sorted(path for path in kept + top if path.is_file() and "__pycache__" not in path.parts)


@each(texts())
def test_no_file_names_a_place_of_one_machine(path: Path) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    assert not [line for line in lines if PLACE_OF_ONE_MACHINE.search(line)]


def test_requirements_are_pinned_and_name_no_index() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#") and line != "-r requirements.txt":
                assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), f"{name}: {line}"


@each_source
def test_only_the_trace_itself_says_its_version(path: Path) -> None:
    """Whoever makes a first record by hand would go on writing the version of that day: ``records.begin`` does."""
    if path == ROOT / "streamrace" / "trace" / "records.py":
        return
    made = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in made if ast.unparse(node.func).split(".")[-1] == "Begin"]


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by their names: a second one of a name is not collected."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
