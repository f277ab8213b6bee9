"""Builds the page of an explained race: the text, both timings as a picture, and both accesses with their source."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from streamrace.reports.data.explanation import FILE, Explained
from streamrace.reports.data.schema import ReportError
from streamrace.reports.data.whole import replace_file
from streamrace.reports.pages import head, html, run_page
from streamrace.reports.pages.folders import refuse_link
from streamrace.reports.pages.words import WORDS
from streamrace.reports.pictures import two_timings
from streamrace.reports.pictures.figures import png, vector

_PICTURE = "timings"
_WORDS = ("race", "stream", "rank", "missing edge", "happens-before", "witness", "token", "timing", "virtual time")


def page(explanation: Explained) -> str:
    """Return the page."""
    chart = two_timings.draw(explanation)
    curable = explanation.run.file.checked and not explanation.fragile
    text: str = html.render(
        "explained.html",
        {_PICTURE: chart} if chart else {},
        title=f"Race {explanation.number} of {explanation.run.name}",
        head=head.of_explained(explanation.run, explanation.number),
        kind="held only by chance" if explanation.fragile else f"{explanation.race.kind} race",
        tone="warn" if explanation.fragile else "bad",
        headline=explanation.headline,
        sections=explanation.sections,
        command=explanation.command,
        cure=f"streamrace fix {shlex.quote(str(explanation.folder))} {explanation.number} --report" if curable else "",
        lacks=explanation.lacks,
        number=explanation.number,
        race=run_page.race(explanation.race, explanation.run.sources),
        ran=run_page.ran_of([explanation.run]),
        words=WORDS,
        explained={word: WORDS[word] for word in _WORDS},
        files=_files(chart is not None),
    )
    return text


def _files(drawn: bool) -> list[tuple[str, str]]:
    files = [(FILE, "for programs")]
    return [*files, (f"{_PICTURE}.png", "for slides"), (f"{_PICTURE}.svg", "the same as lines")] if drawn else files


def write(explanation: Explained, target: Path) -> Path:
    """Write page, pictures and data into the folder ``target``; return the page's file. Raises :class:`ReportError`."""
    refuse_link(target)
    file = target / "index.html"
    try:
        target.mkdir(parents=True, exist_ok=True)
        html.write(explanation.text(), target / FILE)
        chart = two_timings.draw(explanation)
        if chart is not None and isinstance(chart.figure, Figure):
            replace_file(target / f"{_PICTURE}.png", partial(png, chart.figure))
            replace_file(target / f"{_PICTURE}.svg", partial(vector, chart.figure))
        html.write(page(explanation), file)
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"cannot write the page into {target}: {why}; choose another --output") from error
    return file
