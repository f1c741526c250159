"""The public names: nothing hides them, all are documented, and type checkers know them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.folders import ROOT

import dpdist
from dpdist.core.release.norm_histogram import NormsTransaction
from dpdist.core.release.plan import plan_of

NAMES = sorted({*dpdist.__all__} - {"__version__"})
"""The page of the reference lists them too: ``test_documents.py``."""
ERRORS = {name for name in NAMES if name.endswith("Error")}
# a user silences a warning by its class
WARNINGS = {name for name in NAMES if name.endswith("Warning")}


def test_no_module_hides_a_public_name() -> None:
    """An import of ``dpdist.x`` puts the module x into the package, over whatever was called x there."""
    modules = [found.name for found in pkgutil.walk_packages(dpdist.__path__, "dpdist.")]
    for name in modules:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    for name in NAMES:
        found = getattr(dpdist, name)
        assert not isinstance(found, ModuleType), name
        assert found.__name__ in NAMES
        assert callable(found), name
    assert not set(NAMES) & {part for module in modules for part in module.split(".")}


def test_help_and_completion_tell_of_every_public_name_and_no_other_is_there() -> None:
    assert dir(dpdist) == sorted(dpdist.__all__)
    told = pydoc.plain(pydoc.render_doc(dpdist))
    assert not [name for name in NAMES if name not in told]
    with pytest.raises(AttributeError, match="module 'dpdist' has no attribute 'nothing'"):
        dpdist.nothing  # noqa: B018 - it is the question


def sections(doc: str) -> dict[str, list[str]]:
    """Return the lines of each section of a numpydoc docstring, by its title."""
    _, *parts = re.split(r"^(\S.*)\n-{3,}$", inspect.cleandoc(doc), flags=re.MULTILINE)
    return {title: text.splitlines() for title, text in zip(parts[::2], parts[1::2], strict=True)}


def described(lines: list[str]) -> dict[str, str]:
    """Return the type and text of each entry of a section, by its name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            head, _, kind = line.partition(" : ")
            names = [name.strip() for name in head.split(",")]
            found |= dict.fromkeys(names, f"{kind}\n" if kind else "")
        else:
            found |= {name: found[name] + line for name in names}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_documented(name: str) -> None:
    found = getattr(dpdist, name)
    parts = sections(found.__doc__)
    made_as_their_base = name in {*ERRORS, *WARNINGS, "Neighbours", "Centring"} - {"DpdistError"}
    parameters = {} if made_as_their_base else inspect.signature(found).parameters
    needed = {"See Also"} if name in WARNINGS else {"See Also", "Examples"}
    if inspect.isfunction(found):
        needed |= {"Returns", "Raises", "Parameters"} if parameters else {"Returns"}
    assert needed <= set(parts)
    assert name in WARNINGS or any(line.startswith(">>> ") for line in parts["Examples"])
    for entry in described(parts["See Also"]):
        head, *rest = entry.split(".")
        assert head in NAMES, entry
        assert not rest or hasattr(getattr(dpdist, head), rest[0]), entry
    told = described(parts.get("Parameters", []))
    assert made_as_their_base or set(told) <= set(parameters)
    told |= described(parts.get("Attributes", []))
    for parameter in parameters.values():
        kind, _, words = told[parameter.name].partition("\n")
        assert kind, f"{parameter.name} has no type"
        assert words.strip(), f"{parameter.name} has no description"
        if parameter.default is not inspect.Parameter.empty and "Parameters" in parts:
            assert "default" in kind, f"{parameter.name} has a default that is not told"


WRONG = """
import dpdist
from dpdist import PrivatePCA, ReleaseRequest

request = ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, "1e-6"), 8.0, dpdist.Neighbours.ADD_REMOVE)
guarantee: dpdist.Guarantee | None = dpdist.release_rows("rows.zarr", "release.zarr", request).release.guarantee
print(guarantee, PrivatePCA(2, epsilon=1, delta=1e-6, clip=8).fit("rows.zarr").guarantee_.loss.epsilon)
print(dpdist.Ledger(3).balance())
"""


def examples() -> list[str]:
    """Return the Python of README and the pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
    return re.findall(r"^```python\n(.*?)^```", "\n".join(map(Path.read_text, pages)), re.DOTALL | re.MULTILINE)


def test_type_checkers_know_what_is_public(tmp_path: Path) -> None:
    assert examples()
    # else mypy repeats what it said of the same text, and where
    for number, text in enumerate([*examples(), f"{WRONG}# {tmp_path}\n"]):
        (tmp_path / f"script{number}.py").write_text(text)
    scripts = map(str, tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", *scripts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (fault, summary) = done.stdout.splitlines()
    assert f"/script{number}.py:" in fault  # of a file that the cache knows, mypy names the folder where it first was
    assert 'Argument 1 to "Ledger" has incompatible type' in fault
    assert summary.startswith("Found 1 error in 1 file")


@pytest.mark.parametrize("relation", list(dpdist.Neighbours))
def test_a_word_for_a_relation_is_that_relation(relation: dpdist.Neighbours) -> None:
    """Compared as a word it would be no relation at all, and the noise that of the smaller one."""
    loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    for make in (lambda given: dpdist.ReleaseRequest("gaussian", loss, 8.0, given),
                 lambda given: dpdist.NormsRequest(loss, neighbours=given)):  # fmt: skip
        request = make(str(relation.value))
        assert request.neighbours is relation
        assert request == make(relation)
        with pytest.raises(dpdist.UsageError, match="must be one of replace-one, add-remove"):
            make("neither")


def test_a_whole_number_is_the_same_request_as_the_float(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.eye(3))
    table = dpdist.ingest_rows(tmp_path / "t.npy", tmp_path / "rows.zarr")
    loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    requests = [dpdist.ReleaseRequest("gaussian", loss, norm) for norm in (8, 8.0, np.float64(8))]
    assert len({plan_of(request, table).release_id(table) for request in requests}) == 1
    grids = (dpdist.NormGrid(1, 8), dpdist.NormGrid(1.0, 8.0))
    norms = [NormsTransaction(dpdist.NormsRequest(loss, grid), table, tmp_path) for grid in grids]
    assert len({each.release_id for each in norms}) == 1


def test_a_loss_is_read_exactly_however_it_is_written() -> None:
    assert dpdist.PrivacyLoss.parse(0.1, 1e-6) == dpdist.PrivacyLoss.parse("0.1", "0.000001")
    with pytest.raises(dpdist.DataError, match="must be a whole number"):
        dpdist.PrivacyLoss.parse(0.1 + 0.2)


def test_a_script_imports_nothing_below_the_package() -> None:
    """Users type what pages show, and a private name may be gone with the next version."""
    text = "\n".join(examples())
    assert not re.findall(r"(?:from|import) dpdist\.\w+", text)
    for line in re.findall(r"from dpdist import (.+)", text):
        assert {name.strip() for name in line.split(",")} <= set(dpdist.__all__)
