"""The house stands as CONTRIBUTING.md says: who may import whom, and what no file may hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("repro", "accounts", "detectors", "frameworks", "fuzz", "scenarios", "simgpu", "studies", "reports")
MOST_LINES = 450

_EXPLAINED = ("accounts", "detectors", "detectors.live", "fuzz", "studies", "repro.trace")  # what reports tell of

# The first prefix that fits a module says what of ours it may import. "repro" is everything of repro that runs
# something: the command line stands above it.
MAY_IMPORT = {
    "repro.accelerator": ("repro.accelerator", "repro.trace", "repro.values", "simgpu.hardware", "simgpu.rules"),
    "repro.trace": (),
    "repro.tokens": (),
    "repro.values": ("repro.trace",),
    "repro.commands": PACKAGES,
    "repro.__main__": PACKAGES,
    "repro": ("repro", "frameworks", "simgpu"),
    "accounts": ("accounts", "repro.trace"),
    "detectors": ("detectors", "repro.trace"),
    "frameworks": ("frameworks", "simgpu", "repro.trace"),
    "fuzz.live": ("fuzz", "repro", "detectors", "simgpu.timing"),
    "fuzz.testing": ("fuzz", "repro", "detectors", "simgpu"),  # it starts the simulated GPU
    "fuzz": ("fuzz", "repro", "detectors", "simgpu.hardware"),
    "simgpu": ("simgpu", "repro.trace", "repro.tokens", "repro.values", "repro.forks"),
    "scenarios": ("scenarios", "repro", "detectors", "detectors.live", "simgpu"),
    "studies": ("studies", "scenarios", "repro", "detectors", "accounts", "simgpu.hardware", "simgpu.rules"),
    "reports.text": (),
    "reports.data": ("reports.data", "detectors", "fuzz", "repro.trace"),
    "reports.timelines": ("reports.timelines", "detectors", "repro.trace"),
    "reports.screen": ("reports.screen", "reports.data", "reports.text", *_EXPLAINED, "repro.replay"),
    "reports.pictures": ("reports.data", *_EXPLAINED),
    "reports.charts": ("reports.charts", "reports.data", "reports.timelines", "reports.text", *_EXPLAINED),
    "reports.pages": (
        "reports.pages",
        "reports.charts",
        "reports.data",
        "reports.timelines",
        "reports.text",
        *_EXPLAINED,
        "scenarios.scenario",
    ),
    "reports": ("reports.data",),
}
COMMAND_LINE = ("repro.commands", "repro.__main__")

# Who may know of a package that is not ours.
KNOWN_TO = {
    "deepspeed": ("repro.deepspeed", "scenarios"),
    "transformers": ("scenarios", "detectors.live.huggingface"),
    "lightning": ("detectors.live.lightning",),
    "torch": ("repro", "scenarios", "detectors.live", "frameworks", "fuzz", "simgpu"),
}

NEVER_IMPORTED = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
NEVER_CALLED = {"eval", "exec"}
PLACE_OF_ONE_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users)/")


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or place.is_dir()


def imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Full names of the modules that are imported, wherever the import stands.

    ``from repro import deepspeed`` is an import of ``repro.deepspeed``, ``from . import x`` of a neighbour.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if base.split(".")[0] in PACKAGES and is_module(inner) else base


def imports_of(path: Path) -> set[str]:
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return set(imports(tree_of(path), package))


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


each_module = each(sources(*PACKAGES))
each_source = each(sources(*PACKAGES, "benchmarks", "tests"))


@each_module
def test_arrows_point_one_way(path: Path) -> None:
    module = module_of(path)
    allowed = next(allowed for prefix, allowed in MAY_IMPORT.items() if within(module, (prefix,)))
    ours = {name for name in imports_of(path) if name.split(".")[0] in PACKAGES}
    wrong = {name for name in ours if not within(name, allowed)}
    if not within(module, COMMAND_LINE):
        wrong |= {name for name in ours if within(name, COMMAND_LINE)}
    assert not wrong, f"{module} may import {' and '.join(allowed) or 'nothing'} of ours"


@each_module
def test_only_the_adapter_and_the_scenarios_know_what_they_run(path: Path) -> None:
    module = module_of(path)
    strangers = {package for package, knowing in KNOWN_TO.items() if not within(module, knowing)}
    assert not strangers & {name.split(".")[0] for name in imports_of(path)}


def test_imports_are_seen_wherever_they_stand() -> None:
    code = """
import torch.nn
from repro import deepspeed as adapter
from repro.trace import Access
def later():
    from . import memory
    from .timeline import Timeline
    from ..trace import Launch
"""
    found = set(imports(ast.parse(code), "repro.accelerator"))
    assert found == {
        "torch.nn",
        "repro.deepspeed",
        "repro.trace",
        "repro.accelerator.memory",
        "repro.accelerator.timeline",
    }


@each_source
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@each_module
def test_a_file_is_one_room(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@each(sources(*PACKAGES, "benchmarks"))
def test_no_file_runs_what_it_reads(path: Path) -> None:
    """Traces, scenarios and data come from elsewhere: nothing in them may be executed."""
    assert not {name.split(".")[0] for name in imports_of(path)} & NEVER_IMPORTED
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in NEVER_CALLED), f"line {node.lineno}"
            for keyword in node.keywords:
                trusting = keyword.arg == "weights_only" and ast.unparse(keyword.value) != "True"
                assert not trusting, f"line {node.lineno}"


def texts() -> list[Path]:
    """Every file a person wrote."""
    kept = [path for folder in (*PACKAGES, "benchmarks", "tests", ".ci") for path in (ROOT / folder).rglob("*")]
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
    """Whoever makes a first record by hand would go on writing the version of that day: ``repro.trace.begin`` does."""
    if path == ROOT / "repro" / "trace.py":
        return
    made = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in made if ast.unparse(node.func).split(".")[-1] == "Begin"]
