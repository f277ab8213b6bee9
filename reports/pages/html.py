"""Renders self-contained pages that need no network and trust no content.

Names on a page come from whoever sent the run. So jinja2 escapes everything, bidirectional controls are shown as their
codes, and the page names the scripts it may run by their hashes (Content Security Policy): an injected script would not
run, and nothing can be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from streamrace.reports.charts.frame import Chart
from streamrace.reports.data.whole import put
from streamrace.reports.pictures.figures import svg
from streamrace.reports.text import plain_text
from streamrace.trace.untrusted import visible

LONGEST = 600  # characters of a text that is shown in full
# A line may break after these, but not within a number or a word.
_BREAKS = re.compile(r"(?:[/_=]+|(?<=[^\W\d])[.:]|(?<=\w)[.:](?=[^\W\d]))(?=\w)")


def render(template: str, charts: Mapping[str, Chart], **context: Any) -> str:
    """Return the page. The template gets ``charts`` by name, as pairs of a chart and its markup.

    A figure of matplotlib is an image; those of Bokeh are drawn by its scripts. Bokeh numbers what it has drawn, so
    only the first page of a process is reproducible bit for bit.
    """
    images = {name: svg(chart.figure) for name, chart in charts.items() if isinstance(chart.figure, Figure)}
    script, divs = _scripts({name: chart.figure for name, chart in charts.items() if name not in images})
    library = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw) if script else ""
    return (
        environment()
        .get_template(template)
        .render(
            charts={name: (chart, images.get(name) or Markup(divs[name])) for name, chart in charts.items()},
            library=Markup(library),
            script=Markup(script),
            hashes=[_hash(text) for text in (library, script) if text],
            **context,
        )
    )


def environment() -> Environment:
    """Return the environment of this package's templates: values are escaped, and shortened except by the filters
    ``whole`` and ``command``; an undefined name is an error.
    """
    env = Environment(
        loader=PackageLoader("streamrace.reports.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(shortened(value)) if type(value) is str else value,
    )
    env.filters["whole"] = lambda text: escape(visible(str(text)))
    env.filters["breaks"] = lambda text: breaks(shortened(str(text)))
    env.filters["command"] = lambda text: breaks(str(text))
    return env


def write(text: str, target: Path) -> None:
    """Write the page, whole or not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    put(target, plain_text(text))


def breaks(text: str) -> Markup:
    """Return ``text`` that may also break after the parts of a name; text copied from the page is unchanged."""
    parts, at = [], 0
    text = visible(text)
    for match in _BREAKS.finditer(text):
        parts.append(escape(text[at : match.end()]))
        at = match.end()
    return Markup("<wbr>").join([*parts, escape(text[at:])])


def shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} … ({len(text)} characters) … {text[-LONGEST // 2 :]}"


def _scripts(figures: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the script that draws ``figures``, and the place of each. Bokeh's random ids are replaced by numbers.

    The names in the data are safe inside ``<script>``: Bokeh escapes ``<``, ``>`` and ``&`` there.
    """
    if not figures:
        return "", {}
    script, divs = components(figures, wrap_script=False)
    ids = re.findall(r'id="([0-9a-f-]{36})"', "".join(divs.values())) + re.findall(r'"docid":"([0-9a-f-]{36})"', script)
    for number, drawn_id in enumerate(dict.fromkeys(ids), 1):
        script = script.replace(drawn_id, f"drawn-{number}")
        divs = {name: div.replace(drawn_id, f"drawn-{number}") for name, div in divs.items()}
    return script, divs


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
