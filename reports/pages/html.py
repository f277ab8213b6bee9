"""Renders self-contained pages that need no network and trust no content.

Names on a page come from whoever sent the run. So jinja2 escapes everything, bidirectional controls are shown as their
codes, and the page names the scripts it may run by their hashes (Content Security Policy): an injected script would not
run, and nothing can be fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from streamrace.reports.charts import rank_lanes
from streamrace.reports.charts.frame import Chart
from streamrace.reports.data.finding_kinds import warns
from streamrace.reports.data.whole import put
from streamrace.reports.pictures.figures import svg
from streamrace.reports.text import plain_text
from streamrace.trace.untrusted import visible

LONGEST = 600  # characters of a text that is shown in full
_COPYING, _DRAWING = (
    (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8") for name in ("copying.js", "drawing.js")
)
# A line may break after these, but not within a number or a word, nor before a file's suffix or line.
_BREAKS = re.compile(r"(?:[/=]+|(?<=[^\W_])_+|(?<=[^\W\d])\.|(?<=\w)[.:](?=[^\W\d]))(?=\w)(?!py\b)")
_UNITS = re.compile(r"(?:\d[\d.,]* )?\b(?:[KMGT]?(?:i?B|bit)|tokens)/s\b")  # a line breaks neither in nor before them


def render(template: str, charts: Mapping[str, Chart], **context: Any) -> str:
    """Return the page. The template gets ``charts`` by name, as pairs of a chart and its markup.

    A figure of matplotlib is an image; those of Bokeh are drawn by its scripts, which are packed, as they would be most
    of the page. Bokeh numbers what it has drawn, so only the first page of a process is reproducible bit for bit.
    """
    images = {name: svg(chart.figure) for name, chart in charts.items() if isinstance(chart.figure, Figure)}
    script, divs = _scripts({name: chart.figure for name, chart in charts.items() if name not in images})
    if script:
        script = "\n".join([*Resources(mode="inline", components=["bokeh"]).js_raw, script])
    return (
        environment()
        .get_template(template)
        .render(
            charts={name: (chart, images.get(name) or Markup(divs[name])) for name, chart in charts.items()},
            packed=base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode() if script else "",
            scripts=[Markup(text) for text in ([_COPYING, _DRAWING] if script else [_COPYING])],
            hashes=[_hash(text) for text in ([_COPYING, _DRAWING, script] if script else [_COPYING])],
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
    env.filters["linked"] = lambda text: linked(shortened(str(text)))
    env.filters |= {"warns": warns, "lanes": rank_lanes.svg}
    env.filters["prose"] = lambda text: prose(shortened(str(text)))
    return env


def write(text: str, target: Path) -> None:
    """Write the page, whole or not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    put(target, plain_text(text))


def breaks(text: str) -> Markup:
    """Return ``text`` that may also break after the parts of a name, and not in a unit; text copied from the page is
    unchanged.
    """
    text = visible(text)
    parts, at = [], 0
    for match in _UNITS.finditer(text):
        parts += [_broken(text[at : match.start()]), Markup('<span class="unit">{}</span>').format(match[0])]
        at = match.end()
    return Markup("").join([*parts, _broken(text[at:])])


def _broken(text: str) -> Markup:
    ends = [0, *(match.end() for match in _BREAKS.finditer(text)), len(text)]
    return Markup("<wbr>").join(escape(text[begin:end]) for begin, end in pairwise(ends))


def prose(text: str) -> Markup:
    """Return ``text`` like :func:`breaks`, with the parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return breaks(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(breaks(part)) if at % 2 else breaks(part) for at, part in enumerate(parts)
    )


def linked(text: str) -> Markup:
    """Return ``text`` like :func:`breaks`, with its addresses as links."""
    parts = re.split(r"(https://[\w./#?=&%-]+[\w/])", text)
    link = Markup('<a href="{}" rel="noreferrer">{}</a>')
    return Markup("").join(link.format(part, breaks(part)) if at % 2 else breaks(part) for at, part in enumerate(parts))


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
