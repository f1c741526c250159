"""HTML from the templates of this package; every value is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment(package: str) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - few commands show HTML

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(package: str, name: str, **values: object) -> str:
    """Render a template from the folder ``templates`` of a package of dpdist."""
    return _environment(package).get_template(name).render(values)


_ID_SHOWN = 10


def table(title: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table of named facts, without None values.

    Examples
    --------
    >>> table("Release", {"mechanism": "gaussian", "columns": 3, "rows": None})
    '<table><caption>Release</caption><tr><th>mechanism</th><td>gaussian</td></tr><tr><th>columns</th><td>3</td></tr></table>'
    """
    return render("dpdist.core", "facts.html", title=title, facts=facts)


def short(identity: str) -> str:
    """Return the first characters of an identity."""
    return identity if len(identity) <= _ID_SHOWN + 3 else f"{identity[:_ID_SHOWN]}..."
