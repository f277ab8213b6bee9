"""Pages in a real browser, as a reader has them: without a network, and whatever they ask for is noted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

HOME = Path(__file__).resolve().parents[2] / ".browser"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium from ``.browser``, which ``make test`` sets up."""
    if not (HOME / "chromium").exists():
        pytest.fail(f"there is no browser in {HOME.name}: 'make {HOME.name}/.ready' sets it up")
    libraries = os.pathsep.join(filter(None, [str(HOME / "al2023" / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    environment: dict[str, str | float | bool] = {**os.environ, "LD_LIBRARY_PATH": libraries}
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=HOME / "chromium",
            args=["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],
            env=environment,
        )
        yield started
        started.close()


class Opened:
    """A page, and what went on: ``errors`` of the console or of scripts, ``asked`` for beyond the page itself."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self._said(message.type, message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._asking)
        self.page.on("request", lambda request: self._asked(request.url, address))
        self.page.goto(address)
        self.page.wait_for_function("() => !document.getElementById('packed') || window.Bokeh?.documents.length")

    def fits(self, width: int) -> None:
        """The page is no wider, once its charts have followed the window: they do that a moment later."""
        self.page.wait_for_function("wide => document.documentElement.scrollWidth <= wide", arg=width)

    def _asking(self, dialog: Dialog) -> None:
        self.errors.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def _asked(self, url: str, address: str) -> None:
        if url != address and not url.startswith(("data:", "blob:")):
            self.asked.append(url)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Opened]]:
    """``visit(file, width=390, dark=True)`` opens a file (or an address) without a network."""
    contexts: list[BrowserContext] = []

    def call(target: Path | str, *, width: int = 1000, height: int = 800, dark: bool = False) -> Opened:
        online = isinstance(target, str)
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            offline=not online,
        )
        contexts.append(context)
        return Opened(context, target if online else target.resolve().as_uri())

    yield call
    for context in contexts:
        context.close()
