"""Serves reports of a folder of runs over HTTP, on this machine only: an index, a page per run, and comparisons.

Only pages are served. A run is requested by its name, and a name that is not in the folder is not found: no path is
ever built from a request. Requests that name another host are refused, so that a foreign page cannot read the reports
under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from streamrace.reports.data.dry import DryFile
from streamrace.reports.data.findings import Verdict
from streamrace.reports.data.schema import ReportError, read_json
from streamrace.reports.data.stamp import model_of, written
from streamrace.reports.pages import html
from streamrace.reports.pages.folders import page
from streamrace.reports.pages.study_folder import NOTE, is_study

LOOPBACK = "127.0.0.1"
_HOSTS = r"(127\.0\.0\.1|localhost)"
_LARGEST = 32 << 20  # bytes of a file that the index reads


class Listed(NamedTuple):
    """An entry of the index: a run, a campaign, a study or a dry run. ``about``: its fix, or its kind."""

    name: str
    verdict: str
    about: str
    tone: str
    model: str = ""
    written: str = ""


def listed(folder: Path) -> list[Listed]:
    """Return the folders that have a report, by name, and those that cannot be read, with the reason. Others (an
    incident, the user's files) are skipped. Raises :class:`ReportError` if the folder no longer exists.
    """
    return [row for place in _places(folder) if (row := _listed(place))]


def _places(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise ReportError(f"{folder} cannot be read ({error.strerror}): name the folder that holds the runs") from None


def _listed(place: Path) -> Listed | None:
    try:
        if is_study(place):
            file = place / "report" / "findings.json"
            if not file.is_file():
                return Listed(place.name, "", "a study", "", written=written(place / NOTE))
            return _row(place, file, _study, _state(file))
        for name, tell in (("timings.json", _campaign), ("findings.json", _run), ("dry.json", _dry)):
            if (file := place / name).is_file():
                return _row(place, file, tell, _state(file))
    except OSError:  # removed in the meantime
        pass
    return None


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _row(place: Path, file: Path, tell: Callable[[Any], tuple[str, str, str]], _state: tuple[int, int]) -> Listed:
    """Return the entry of ``place`` from ``file``, cached until that changes. Faults affect this entry only."""
    try:
        data = read_json(file, largest=_LARGEST)
        return Listed(place.name, *tell(data), model_of(data), written(file))
    except ReportError as error:
        why = str(error)
    except (ValueError, LookupError, TypeError, AttributeError):
        why = f"{file} does not hold what a run writes"
    return Listed(place.name, "cannot be read", why, "warn", written=written(file))


def _study(data: Any) -> tuple[str, str, str]:
    return str(data.get("verdict", "")), "a study", _tone(data.get("tone"))


def _dry(data: Any) -> tuple[str, str, str]:
    said = DryFile.parsed(Path(DryFile.NAME), data).output
    return said.verdict, "a dry run", _tone(said.tone)


def _tone(tone: Any) -> str:
    return tone if tone in ("good", "warn", "bad") else ""


def _campaign(data: Any) -> tuple[str, str, str]:
    count, of = int(data["campaign"]["diverged"]), int(data["campaign"]["timings"])
    return f"{count} of {of} timings diverged", str(data["scenario"].get("fix", "")), "bad" if count else "good"


def _run(data: Any) -> tuple[str, str, str]:
    verdict = Verdict(data["verdict"])
    return verdict, str(data["scenario"].get("fix", "")), verdict.tone


class _Pages(RequestHandler):
    """Base of the handlers: headers, errors and names."""

    def initialize(self, folder: Path) -> None:
        self.folder = folder

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.clear_header("Server")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.say(
            status_code,
            {404: "This page does not exist: go back to the list of runs."}.get(status_code, self._reason),
        )

    def say(self, status: int, sentence: str) -> None:
        self.set_status(status)
        self.finish(html.environment().get_template("sentence.html").render(sentence=sentence))

    async def answer(self, make: Callable[..., str], *arguments: Any) -> None:
        """Send the page, built in a thread while other requests are answered: its data may be large."""
        try:
            self.finish(await asyncio.to_thread(make, *arguments))
        except ReportError as error:
            self.say(404, f"{str(error)[:1].upper()}{str(error)[1:]}.")

    def places(self, names: Sequence[str]) -> list[Path]:
        by_name = {place.name: place for place in _places(self.folder)}
        for name in names:
            if name not in by_name or _listed(by_name[name]) is None:
                wanted = html.shortened(name)
                raise ReportError(f"there is no run of the name '{wanted}' here: go back to the list of runs")
        return [by_name[name] for name in dict.fromkeys(names)]


class _Missing(_Pages):
    """Handles all other addresses."""

    def prepare(self) -> None:
        raise HTTPError(404)


class _Index(_Pages):
    async def get(self) -> None:
        await self.answer(self._page)

    def _page(self) -> str:
        template = html.environment().get_template("index.html")
        return template.render(folder=self.folder.name or str(self.folder), runs=listed(self.folder))


class _Report(_Pages):
    async def get(self) -> None:
        names = self.get_query_arguments("run", strip=False)
        if names:
            await self.answer(self._page, names)
        else:
            self.say(400, "Choose at least one run: go back to the list of runs.")

    def _page(self, names: Sequence[str]) -> str:
        return page(self.places(names))


def application(folder: Path) -> Application:
    """Return the server's application, over the runs in ``folder``."""
    settings = {"folder": folder}
    app = Application(default_handler_class=_Missing, default_handler_args=settings)
    app.add_handlers(_HOSTS, [("/", _Index, settings), ("/report", _Report, settings)])
    return app


def serve(folder: Path, port: int, started: Callable[[str], None]) -> None:
    """Serve until interrupted. ``port`` 0: any free port; ``started`` is called with the address.

    Raises :class:`ReportError` if the folder does not exist or the port is taken.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder: name the folder that holds the runs")
    try:
        sockets = bind_sockets(port, LOOPBACK)
    except OSError as error:
        raise ReportError(f"port {port} cannot be used ({error.strerror}): choose another --port") from error

    async def run() -> None:
        server = HTTPServer(application(folder))
        server.add_sockets(sockets)
        started(f"http://{LOOPBACK}:{sockets[0].getsockname()[1]}/")
        await asyncio.Event().wait()

    asyncio.run(run())
