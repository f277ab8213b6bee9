"""Reports of a folder of runs, over HTTP on this machine alone: an index, a page for each, any of them side by side.

Nothing but pages is served. A run is asked for by its name, and a name that is not one of the folder's is not found:
no path is ever made from a request. Requests that name another host are refused, so that a page elsewhere cannot read
along under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from reports.data.campaigns import is_campaign
from reports.data.dry import is_dry, said
from reports.data.findings import Verdict
from reports.data.loading import ReportError
from reports.data.stamp import model_of, written
from reports.pages import html
from reports.pages.folders import page
from reports.pages.study_folder import NOTE, is_study

LOOPBACK = "127.0.0.1"
_HOSTS = r"(127\.0\.0\.1|localhost)"
_LARGEST = 64 << 20  # bytes of a file that the index looks into


class Listed(NamedTuple):
    """What can be opened: a run, a campaign, a study or a dry run. ``about``: its fix, or what it is."""

    name: str
    verdict: str
    about: str
    tone: str
    model: str = ""
    written: str = ""


def listed(folder: Path) -> list[Listed]:
    """What a report can be made of, by name. All else (an incident, something of the user's) is passed over."""
    found = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            row = _row(place)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if row is not None:
            found.append(row)
    return found


def _row(place: Path) -> Listed | None:
    if is_study(place):
        data = _json(place / "report" / "findings.json") if (place / "report" / "findings.json").is_file() else {}
        return Listed(
            place.name, str(data.get("verdict", "")), "a study", _tone(data.get("tone")), model_of(data),
            written(place / NOTE),
        )  # fmt: skip
    if is_dry(place):
        data = _json(place / "dry.json")
        told = said(data)
        return Listed(
            place.name, told["verdict"], "a dry run", _tone(told["tone"]), model_of(data), written(place / "dry.json")
        )
    if is_campaign(place):
        data = _json(place / "timings.json")
        count, of = int(data["campaign"]["diverged"]), int(data["campaign"]["timings"])
        told = f"{count} of {of} timings diverged"
        fix, when = str(data["scenario"].get("fix", "")), written(place / "timings.json")
        return Listed(place.name, told, fix, "bad" if count else "good", model_of(data), when)
    if (place / "findings.json").is_file():
        data = _json(place / "findings.json")
        verdict = Verdict(data["verdict"])
        fix, when = str(data["scenario"].get("fix", "")), written(place / "findings.json")
        return Listed(place.name, verdict, fix, verdict.tone, model_of(data), when)
    return None


def _tone(tone: Any) -> str:
    return tone if tone in ("good", "warn", "bad") else ""


def _json(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"{file} is too large to be what a run writes")
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{file} is no object")
    return data


class _Pages(RequestHandler):
    """What all of them share."""

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
            {404: "There is no such page here: go back to the list of runs."}.get(status_code, self._reason),
        )

    def say(self, status: int, sentence: str) -> None:
        self.set_status(status)
        self.finish(html.environment().get_template("sentence.html").render(sentence=sentence))

    def places(self, names: Sequence[str]) -> list[Path]:
        known = {one.name for one in listed(self.folder)}
        for name in names:
            if name not in known:
                wanted = html.shortened(name)
                raise ReportError(f"there is no run of the name '{wanted}' here: go back to the list of runs")
        return [self.folder / name for name in dict.fromkeys(names)]


class _Missing(_Pages):
    """All else."""

    def prepare(self) -> None:
        raise HTTPError(404)


class _Index(_Pages):
    def get(self) -> None:
        template = html.environment().get_template("index.html")
        self.finish(template.render(folder=self.folder.name or str(self.folder), runs=listed(self.folder)))


class _Report(_Pages):
    async def get(self) -> None:
        names = self.get_query_arguments("run", strip=False)
        if not names:
            self.say(400, "Choose at least one run: go back to the list of runs.")
            return
        try:
            text = await asyncio.to_thread(self._page, names)
        except ReportError as error:
            self.say(404, f"{str(error)[:1].upper()}{str(error)[1:]}.")
            return
        self.finish(text)

    def _page(self, names: Sequence[str]) -> str:
        return page(self.places(names))


def application(folder: Path) -> Application:
    """The server's pages, over the runs in ``folder``."""
    known = {"folder": folder}
    app = Application(default_handler_class=_Missing, default_handler_args=known)
    app.add_handlers(_HOSTS, [("/", _Index, known), ("/report", _Report, known)])
    return app


def serve(folder: Path, port: int, started: Callable[[str], None]) -> None:
    """Serve until interrupted. ``port`` 0: any that is free; ``started`` gets the address.

    Raises :class:`ReportError` where there is no such folder or the port is taken.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder: name the folder that holds the runs")
    try:
        sockets = bind_sockets(port, LOOPBACK)
    except OSError as error:
        raise ReportError(f"port {port} cannot be had ({error.strerror}): choose another --port") from error

    async def run() -> None:
        server = HTTPServer(application(folder))
        server.add_sockets(sockets)
        started(f"http://{LOOPBACK}:{sockets[0].getsockname()[1]}/")
        await asyncio.Event().wait()

    asyncio.run(run())
