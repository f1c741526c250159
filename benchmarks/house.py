"""The house in numbers: the core and its annexes, what crosses the wall, circles, and functions of many parameters.

Nothing is imported: sources are parsed. Lines are those that are neither empty nor comments nor docstrings::

    python -m benchmarks.house
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dpdist"
MANY = 8
"""Parameters of a function that is counted."""


@dataclass(frozen=True)
class Module:
    """A module by its dotted name, and its syntax."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder below the package."""
        return self.name.split(".")[1] if self.name.count(".") else "dpdist"

    @property
    def part(self) -> str:
        """The folder that a circle is counted in: a room, or a part of the core."""
        names = self.name.split(".")
        return ".".join(names[1:3]) if len(names) > 3 and names[1] == "core" else self.room

    @property
    def lines(self) -> int:
        """All lines of the file."""
        return len(self.path.read_text(encoding="utf-8").splitlines())

    @property
    def code(self) -> int:
        """Lines with code: neither empty, nor comments, nor docstrings."""
        documented = set[int]()
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        text = self.path.read_text(encoding="utf-8").splitlines()
        return sum(
            1 for number, line in enumerate(text, 1)
            if line.strip() and not line.lstrip().startswith("#") and number not in documented
        )  # fmt: skip


def modules() -> dict[str, Module]:
    """Return all modules of the package by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("dpdist", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        found[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node)


def imports(module: Module, known: dict[str, Module]) -> set[str]:
    """Return the modules of the package that a module imports, also within functions."""
    found = set()
    for node in statements(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dpdist":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found


def named(module: Module, known: dict[str, Module]) -> set[str]:
    """Return the modules that a module names in strings, to import them when a request names one."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            found |= {full for full in (name, f"dpdist.{name}") if full in known and "." in full}
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges.get(name, ())):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            together = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(together) > 1:
                found.append(sorted(together))

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return found


def of_many_parameters(module: Module) -> Iterator[str]:
    """Yield the functions of at least so many parameters."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            if len([name for name in names if name not in {"self", "cls"}]) >= MANY:
                yield f"{module.name}.{node.name}"


def main() -> None:
    """Print the numbers as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="Print JSON, with the names.")
    as_json = parser.parse_args().json
    known = modules()
    edges = {name: imports(module, known) for name, module in known.items()}
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in known.values():
        rooms[module.room].append(module)
    outwards = {
        kind: sorted(
            f"{name} -> {other}" for name, others in of.items() for other in others
            if known[name].room == "core" and known[other].room not in {"core", "dpdist"}
        )
        for kind, of in (("imported", edges), ("named", {name: named(each, known) for name, each in known.items()}))
    }  # fmt: skip
    alike = {name: {o for o in others if known[o].part == known[name].part} for name, others in edges.items()}
    found = circles(alike)
    many = [name for module in known.values() for name in of_many_parameters(module)]
    numbers = {
        "rooms": {room: {"lines": sum(m.lines for m in each), "code": sum(m.code for m in each), "files": len(each)}
                  for room, each in sorted(rooms.items())},
        "core to annexes, imported": outwards["imported"], "core to annexes, named": outwards["named"],
        "circles": found, f"functions of {MANY} parameters or more": many,
    }  # fmt: skip
    if as_json:
        print(json.dumps(numbers, indent=1))
        return
    print(f"{'room':12} {'lines':>7} {'code':>7} {'files':>6}")
    for room, each in sorted(rooms.items(), key=lambda pair: -len(pair[1])):
        print(f"{room:12} {sum(m.lines for m in each):7} {sum(m.code for m in each):7} {len(each):6}")
    lines, code = (sum(getattr(m, kind) for m in known.values()) for kind in ("lines", "code"))
    print(f"{'together':12} {lines:7} {code:7} {len(known):6}")
    print(f"\nedges from the core to annexes: {len(outwards['imported'])} imported, {len(outwards['named'])} named")
    print(f"circles: {len(found)}")
    for circle in found:
        print(f"  {', '.join(circle)}")
    print(f"functions of {MANY} parameters or more: {len(many)}")


if __name__ == "__main__":
    main()
