"""Parts of the reference that are read from the code: job files, exit codes, messages, mechanisms.

Each is a directive without arguments. What it writes is Markdown, as in the page around it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dpdist import DpdistError, list_mechanisms
from dpdist.cli import COMMANDS
from dpdist.core.mechanisms.info import Output
from dpdist.core.options import fields_of, meta_of
from dpdist.jobs.sections import Sections

PACKAGE = Path(sys.modules["dpdist"].__file__ or "").parent
_SHORTEST = 12
"""Letters of the shortest text that is a message; others are names."""


def job_file() -> Iterator[str]:
    """Yield a table of keys for each section of a job file, from the types that check it."""
    for section in msgspec.structs.fields(Sections):
        (kind,) = (each for each in get_args(section.type) or (section.type,) if each is not type(None))
        yield from (f"## [{section.encode_name}]", "", kind.__doc__.splitlines()[0], "")
        yield from ("| key | takes | what it is |", "|---|---|---|")
        for key in fields_of(kind).values():
            meta = meta_of(key.type)
            written = json.dumps(key.default) if isinstance(key.default, str | int) else None
            default = " **Required.**" if key.required else f" Default: `{written}`." if written else ""
            yield f"| `{key.encode_name}` | {_cell(meta.extra['expected'])} | {_cell(meta.description)}{default} |"
        yield ""


def exit_codes() -> Iterator[str]:
    """Yield what each exit code means, from the errors."""
    yield from ("| code | error | meaning |", "|---|---|---|", "| 0 | | Done. |")
    for kind in sorted([DpdistError, *DpdistError.__subclasses__()], key=lambda kind: kind.exit_code):
        first = (kind.__doc__ or "").splitlines()[0]
        meaning = "A defect in dpdist: please report it." if kind is DpdistError else first
        yield f"| {kind.exit_code} | `{kind.__name__}` | {_cell(meaning)} |"


def mechanisms() -> Iterator[str]:
    """Yield one line for each mechanism."""
    yield from (
        "| mechanism | releases | PSD | claimed | proved | arithmetic | published in |",
        "|---|---|---|---|---|---|---|",
    )
    for each in list_mechanisms():
        definite = "" if each.output is Output.COMPONENTS else "yes" if each.semidefinite else "no"
        parts = (each.output.value, definite, each.claimed, each.proved, each.arithmetic.value, each.reference)
        yield f"| `{each.name}` | {' | '.join(map(_cell, parts))} |"


def messages() -> Iterator[str]:
    """Yield every message of an error that is written in the package, by exit code."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for code, said in _raised(ast.parse(path.read_text())):
            found[code].add(said)
    for code in sorted(found):
        yield from ("", f"## Exit code {code}", "")
        yield from (f"* {_cell(said)}" for said in sorted(found[code], key=lambda said: said.lstrip("… ").lower()))


def _raised(tree: ast.AST) -> Iterator[tuple[int, str]]:
    codes = {kind.__name__: kind.exit_code for kind in DpdistError.__subclasses__()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in codes and node.args:
            said = _text(node.args[0])
            if len(re.sub(r"[^A-Za-z]", "", said)) >= _SHORTEST:
                yield codes[node.func.id], said


def _text(node: ast.expr) -> str:
    """Return a message with an ellipsis wherever a value stands in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def _cell(text: str) -> str:
    """Return text as Markdown that shows it letter by letter, on one line."""
    text = re.sub(r":\w+:`~?\.?([^`]*)`", r"\1", " ".join(text.split()))
    return re.sub(r"([\\|<>*_\[\]$#&])", r"\\\1", text)


def _directive(lines: Callable[[], Iterator[str]]) -> type[SphinxDirective]:
    class Generated(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return list(self.parse_text_to_nodes("\n".join(lines()), allow_section_headings=True))

    return Generated


def _write_command_pages(app: Sphinx) -> None:
    """Write a page for each command, as autosummary does for each public name."""
    folder = Path(app.confdir) / "reference" / "commands"
    folder.mkdir(exist_ok=True)
    for name, (module, function, _) in COMMANDS.items():
        directive = f".. click:: dpdist.cli.{module}:{function}\n   :prog: dpdist {name}\n   :nested: full"
        page, path = f"# {name}\n\n```{{eval-rst}}\n{directive}\n```\n", folder / f"{name}.md"
        if not path.exists() or path.read_text() != page:  # an unchanged page is not read again
            path.write_text(page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    app.connect("builder-inited", _write_command_pages)
    for name, lines in {
        "dpdist-exit-codes": exit_codes, "dpdist-job-file": job_file, "dpdist-mechanisms": mechanisms,
        "dpdist-messages": messages,
    }.items():  # fmt: skip
        app.add_directive(name, _directive(lines))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
