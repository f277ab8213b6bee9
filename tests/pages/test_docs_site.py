"""The documentation's pages on a phone and on a desk, measured as the reports are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.test_every_page import MEASURE

ROOT = Path(__file__).resolve().parents[2]
# The text alone: the theme's own drawers stand beside the window until they are called. Code may break anywhere.
OF_TEXT = MEASURE.replace('"main', '"article').replace('closest("pre")', 'closest("pre, code")')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=200)
    return place


@pytest.mark.wide
def test_no_page_hangs_over_the_edge_and_no_word_is_torn(site: Path, visit: Callable[..., Any]) -> None:
    found = {}
    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":  # its links are of the server's root
            continue
        for width in (390, 1280):
            page = visit(file, width=width).page
            wrong = page.evaluate(OF_TEXT)
            page.context.close()
            found |= {f"{file.relative_to(site)}, {width}": wrong[:3]} if wrong else {}
    assert found == {}
