"""README and pages: what they link to, name and show is there, and the site is made without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs import tables
from docs.hooks import COPIED
from streamrace.repro.commands.table import COMMANDS
from tests.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DATA = DOCS / "results" / "data"
ACTIVATED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the environment, as the README has it
TEXTS = [ROOT / "README.md", *(ROOT / source for source in COPIED.values()), *sorted(DOCS.rglob("*.md"))]
SOURCES = (*PACKAGES, "papers")

# A longer name first, that of a test file whole: test_gpu.py::test_x. Whoever names a file with its folder means that.
FILE = re.compile(rf"`((?:{'|'.join((*SOURCES, 'tests', 'docs', 'benchmarks'))})/[\w/+.-]+\.\w+)")
OUTPUT = re.compile(r"<!-- the (end of the )?output of: streamrace ([^\n]+) -->\n```\n(.*?)\n```", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown() -> Iterator[tuple[str, str, str, bool]]:
    """Page, arguments, output and whether it is the end of one, of all commands whose output a text shows."""
    for path in TEXTS:
        for end, arguments, output in OUTPUT.findall(path.read_text(encoding="utf-8")):
            if not arguments.startswith("check "):  # tests/check/test_check.py has its program too
                yield relative(path), arguments, output, bool(end)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make docs`` builds it: a warning is an error."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


class Fetched(HTMLParser):
    """What a browser fetches to show a page, and the places to which links lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.files: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids.add(told.get("id") or "")
        if tag in ("script", "img", "iframe") and told.get("src"):
            self.files.append(told["src"] or "")
        if tag == "link" and told.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.files.append(told["href"] or "")


def test_the_readme_is_read_in_some_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_every_link_to_a_file_leads_to_one(path: Path) -> None:
    made = {
        DOCS / "commands.md",
        DOCS / "concepts/trace.md",
        DOCS / "concepts/refusals.md",
        *(DOCS / page for page in COPIED),
    }
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    places = {(path.parent / link).resolve() for link in links if not re.match(r"https?:|mailto:", link)}
    assert not {place for place in places - made if not place.exists()}


@pytest.mark.parametrize("path", [path for path in TEXTS if path.name != "CHANGELOG.md"], ids=relative)
def test_every_file_that_is_named_is_there(path: Path) -> None:
    assert not {name for name in FILE.findall(path.read_text(encoding="utf-8")) if not (ROOT / name).exists()}


def test_every_page_that_the_code_names_is_there() -> None:
    for folder in (*SOURCES, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{relative(path)}: {name}"


def test_the_site_has_every_command_with_its_options(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    assert {*COMMANDS} <= Fetched(site / "commands.html").ids
    for option in ("--ranks", "--fixes", "--examples", "--times", "--micro-batches", "--gpu-memory", "--checksums"):
        assert option in page


def test_the_pages_fetch_nothing_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for file in Fetched(page).files:
            assert not re.match(r"(?:\w+:)?//", file), f"{page.name}: {file}"
            assert page.name == "404.html" or (page.parent / file.partition("?")[0]).exists(), f"{page.name}: {file}"


def test_every_table_is_of_a_file_that_a_command_left(site: Path) -> None:
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    kept = {file for run in manifest.values() for file in run["files"]}
    assert kept == {path.name for path in DATA.iterdir()} - {"manifest.json"}
    told = "".join(page.read_text(encoding="utf-8") for page in (site / "results").glob("*.html"))
    assert "<!-- table: " not in told and "<!-- figure: " not in told
    for name, run in manifest.items():
        assert run["command"].startswith(("streamrace ", "python -m papers ", "python -m benchmarks."))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
        assert any(f'href="data/{file}"' in told for file in run["files"]), name


def test_figures_are_not_pasted_into_the_pages_of_studies() -> None:
    for path in (DOCS / "results").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        pasted = [line for line in text.splitlines() if re.match(r"\|.*\|\s*[-+*]*\d+\.\d+.*\|", line)]
        assert not pasted, f"{path.name}: {pasted[0]}"


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_the_large_job_that_is_rehearsed_fits(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "dry.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"streamrace (dry --model llama-2-70b [^\n]+)", text)
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", *arguments.split(), "--one-rank"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "arguments", "output", "end"), list(shown()))
def test_a_command_prints_what_the_page_shows(
    page: str, arguments: str, output: str, end: bool, tmp_path: Path
) -> None:
    """``...`` stands for lines that are left out; what is left is printed in this order."""
    as_at_first = ["--reference-again"] if arguments.split()[0] in ("run", "compare") else []
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", *arguments.split(), *as_at_first],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "OMP_NUM_THREADS": "1", "PATH": ACTIVATED},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    parts = [part.split("\n") for part in re.split(r"\n?^\.\.\.$\n?", output, flags=re.MULTILINE) if part]
    at = 0
    for part in ([line.rstrip() for line in lines] for lines in parts):
        found = next((i for i in range(at, len(printed)) if printed[i : i + len(part)] == part), None)
        assert found is not None, "\n".join([f"{page} shows:", *part, "the command prints:", *printed])
        at = found + len(part)
    if "..." not in output:
        assert at == len(printed)
        assert end or len(parts[0]) == len(printed)


@pytest.mark.parametrize("name", [name for name in tables.TABLES if name != "why-losses"])  # Trainer's own NaN
def test_a_value_that_does_not_exist_is_a_word_or_nothing(name: str) -> None:
    cells = {cell.strip(" *").lower() for line in tables.render(name).splitlines() for cell in line.split("|")}
    assert not {"nan", "<na>"} & cells
