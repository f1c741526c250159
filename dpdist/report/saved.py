"""Charts as files: SVG that needs no page around it, in a link that a browser saves."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from markupsafe import Markup

_SAFE = " !'()*+,-./:;=?@_~"
"""Characters that need no escape in a quoted address; most of a chart, and so it grows by a tenth only."""
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_SCALE, _LEAST, _MARGIN = 2, 480, 8
"""Pixels of a saved picture for one unit of a chart, its least width, and units around the chart."""


@cache
def _style() -> str:
    """Return the rules of charts with the colours of a light page, as short as possible."""
    folder = files("dpdist.report") / "templates"
    colours = dict(re.findall(r"--(\w+): (#\w+)", (folder / "release.css").read_text().split("@media")[0]))
    rules = re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], (folder / "charts.css").read_text())
    return re.sub(r"\s+", " ", rules.replace("system-ui", "sans-serif"))


def standalone(chart: Markup) -> str:
    """Return a chart as a file: with its size, colours for a light ground, and that ground."""
    found = _SIZE.search(chart)
    if found is None:
        raise AssertionError("a chart has a view box")
    width, height = (float(side) + 2 * _MARGIN for side in found.groups())
    scale = max(_SCALE, _LEAST / width)
    view = f'viewBox="-{_MARGIN} -{_MARGIN} {width:g} {height:g}"'
    size = f'width="{scale * width:.0f}" height="{scale * height:.0f}"'
    head, _, body = str(chart).replace(found[0], view, 1).partition(">")
    ground = f'<rect x="-{_MARGIN}" y="-{_MARGIN}" width="{width:g}" height="{height:g}" fill="#fff"/>'
    start = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)
    return f"{start}><style>{_style()}</style>{ground}{body}"


def link_to_save(chart: Markup, name: str) -> Markup:
    """Return a link that saves a chart as an SVG file of this name."""
    # single quotes need no escape in the address; a chart has none, and no double ones but those of its attributes
    drawing = quote(standalone(chart).replace('"', "'"), safe=_SAFE)
    return Markup('<a class="save" download="{}.svg" href="data:image/svg+xml,{}">Save this picture</a>').format(
        name,
        Markup(drawing),  # noqa: S704 - of characters that need no escape in double quotes
    )
