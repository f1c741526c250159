"""What Sphinx does not read as it is meant, put right: sections of docstrings, private names, links to folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
_AFTER_NAPOLEON = 900
_BEFORE_NAPOLEON = 100


def see_also(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - as of Sphinx
    """Let several names share what is said of them; napoleon would take its commas for those between names."""
    if "See Also" not in lines:
        return
    start = lines.index("See Also") + 2
    ends = [i for i, line in enumerate(lines) if i > start and line.startswith("---")]
    end = ends[0] - 1 if ends else len(lines)
    entries = "\n".join(lines[start:end]).replace("\n    ", " ").splitlines()
    written = []
    for names, _, said in (entry.partition(" : ") for entry in entries if entry):
        shown = ", ".join(f":py:obj:`{each.strip()}`" for each in names.split(","))
        written.append(f"* {shown}: {said}" if said else f"* {shown}")
    lines[start:end] = ["", *written, ""]


def sentences(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - as of Sphinx
    """Make a property's first sentence whole again where its colon was taken for the end of a type."""
    types = [i for i, line in enumerate(lines) if re.match(r":type: [A-Z][a-z]* [a-z]", line)]
    if what == "property" and types:
        lines[0] = f"{lines.pop(types[0]).removeprefix(':type: ')}: {lines[0]}"


def formulas(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - as of Sphinx
    """Show formulas of a module as they are set, and bars around a vector as its norm, not as a name."""
    if what == "module":
        parts = re.sub(r"(?<!::)\n\n(?=    \S)", "\n\n::\n\n", "\n".join(lines)).split("``")
        for i in range(0, len(parts), 2):  # what is between is literal
            parts[i] = re.sub(r"^(?!    ).*", lambda line: line[0].replace("|", r"\|"), parts[i], flags=re.MULTILINE)
        lines[:] = "``".join(parts).split("\n")


def elsewhere(app: Sphinx, env: Any, node: Any, shown: nodes.Element) -> nodes.Element | None:  # noqa: ARG001 - as of Sphinx
    """Show as words what has no page: private names of the package, and names of other libraries."""
    target = node["reftarget"]
    public = target.startswith("dpdist.") and target.count(".") == 1
    return shown if node.get("refdomain") == "py" and not public else None


def pages(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001 - as of Sphinx
    """Show links to folders as words, as a site has no page of a folder; name results that have no heading."""
    place = (ROOT / docname).parent

    def words(link: re.Match[str]) -> str:
        return link[1] if (place / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(([^)#:\s]+)\)", words, source[0])
    if docname.startswith("benchmarks/results/") and not re.search(r"^# ", source[0], re.MULTILINE):
        source[0] = f"# {Path(docname).name.replace('_', ' ').capitalize()}\n\n{source[0]}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect them."""
    app.connect("autodoc-process-docstring", see_also, priority=_BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", sentences, priority=_AFTER_NAPOLEON)
    app.connect("autodoc-process-docstring", formulas, priority=_AFTER_NAPOLEON)
    app.connect("source-read", pages)
    app.connect("missing-reference", elsewhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
