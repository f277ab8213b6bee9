"""Measures the page of a long run of many ranks: building it, and drawing it in the browser of ``make test``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure

BUILT_S, OPEN_S = 20.0, 2.0
ROUNDS = 5
BROWSER = Path(__file__).resolve().parents[1] / ".browser"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure 64 ranks, 2000 steps, 1000 parameters. Raises RuntimeError without a browser, or when building fails."""
    from streamrace.repro.__main__ import main

    if not (BROWSER / "chromium").exists():
        raise RuntimeError(f"there is no browser in {BROWSER.name}: 'make {BROWSER.name}/.ready' sets it up")
    with TemporaryDirectory() as place:
        folder, target = Path(place) / "it", Path(place) / "out"
        import_module("tests.reports.run_folders").large(folder, ranks=64, steps=2000, parameters=1000)
        say("page: building it")
        began = time.process_time()
        main(["report", str(folder), "--output", str(target)])
        built = time.process_time() - began
        opened = _opened(target / "index.html", say)
    note = f"median of {ROUNDS}: {min(opened):.2f} to {max(opened):.2f} s"
    return [
        Figure("page", "64 ranks, 2000 steps, 1000 parameters: built", built, "s", BUILT_S, "the process' own time"),
        Figure("page", "... opened, until all is drawn", median(opened), "s", OPEN_S, note),
    ]


def _opened(page: Path, say: Callable[[str], None]) -> list[float]:
    from playwright.sync_api import sync_playwright

    libraries = os.pathsep.join(filter(None, [str(BROWSER / "al2023" / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    environment: dict[str, str | float | bool] = {**os.environ, "LD_LIBRARY_PATH": libraries}
    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER / "chromium", args=["--no-sandbox", "--disable-gpu"], env=environment
        )
        for round_ in range(1, ROUNDS + 1):
            say(f"page: opening it, round {round_} of {ROUNDS}")
            opened = browser.new_page()
            began = time.perf_counter()
            opened.goto(page.as_uri())
            opened.wait_for_function("document.querySelectorAll('.bk-Figure').length > 0")
            seconds.append(time.perf_counter() - began)
            opened.close()
        browser.close()
    return seconds
