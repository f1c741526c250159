"""HTML from the templates of this package: every value is escaped, and what people name is never a template."""

from __future__ import annotations

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
    """Return a page of a template in the folder ``templates`` of a package of dpdist."""
    return _environment(package).get_template(name).render(values)
