"""The public names: which there are, that nothing hides them, what is said of them, what type checkers know of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.folders import ROOT

import dpdist

FUNCTIONS = [
    "area_scale", "audit_mechanism", "choose_clip_norm", "combine_releases", "create_ledger", "draft_schema",
    "fit_components", "forecast_release", "ingest_rows", "inspect_path", "list_mechanisms", "open_model",
    "open_release", "open_rows", "project_rows", "register_rows", "release_rows",
]  # fmt: skip
CLASSES = [
    "Budget", "Cluster", "Column", "Components", "Guarantee", "Ledger", "Neighbours", "PrivacyLoss",
    "PrivateCovariance", "PrivatePCA", "PrivateRidge", "Release", "ReleaseRequest", "RowBound", "Schema",
]  # fmt: skip
# NormsRequest and its NormGrid are what choose_clip_norm takes, Centring what a request takes, Certificates what a
# cluster that speaks TLS takes: nobody can do without them
NEEDED = ["Centring", "Certificates", "NormGrid", "NormsRequest"]
ERRORS = ["DataError", "DpdistError", "RefusedError", "ResumableError", "UsageError"]
# a user silences a warning by its class
WARNINGS = [
    "BelowNoiseWarning", "ClippedRowsWarning", "NoWitnessWarning", "PrivacyLeakWarning", "WeakGuaranteeWarning",
]  # fmt: skip
NAMES = [*FUNCTIONS, *CLASSES, *NEEDED, *ERRORS, *WARNINGS]
EARLIER = {"DrownedWarning": "BelowNoiseWarning", "ShortenedRowsWarning": "ClippedRowsWarning"}


def modules() -> list[str]:
    return [found.name for found in pkgutil.walk_packages(dpdist.__path__, "dpdist.")]


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(dpdist.__all__) == sorted([*NAMES, *EARLIER, "__version__"])
    assert all(getattr(dpdist, earlier) is getattr(dpdist, name) for earlier, name in EARLIER.items())


def test_no_module_hides_a_public_name() -> None:
    """An import of ``dpdist.x`` puts the module x into the package, over whatever was called x there."""
    for name in modules():
        if not name.endswith("__main__"):
            importlib.import_module(name)
    for name in NAMES:
        found = getattr(dpdist, name)
        assert not isinstance(found, ModuleType), name
        assert found.__name__ == name
        assert callable(found), name
    assert not set(NAMES) & {part for module in modules() for part in module.split(".")}


def test_what_a_shell_completes_is_what_is_public() -> None:
    assert dir(dpdist) == sorted(dpdist.__all__)


def test_help_tells_of_every_public_name() -> None:
    told = pydoc.plain(pydoc.render_doc(dpdist))
    assert not [name for name in NAMES if name not in told]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dpdist' has no attribute 'nothing'"):
        dpdist.nothing  # noqa: B018 - it is the question


def sections(doc: str) -> dict[str, list[str]]:
    """Return the lines of each section of a numpydoc docstring, by its title."""
    lines, found, title = inspect.cleandoc(doc).splitlines(), dict[str, list[str]](), ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"-{3,}", below) and len(below) == len(line):
            title = line
            found[title] = []
        elif title and not re.fullmatch(r"-{3,}", line):
            found[title].append(line)
    return found


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


def parameters_of(found: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(found).parameters)


def documented(name: str) -> dict[str, str]:
    parts = sections(str(getattr(dpdist, name).__doc__))
    return described(parts.get("Parameters", [])) | described(parts.get("Attributes", []))


def missing_sections(name: str) -> set[str]:
    needed = {"See Also"} if name in WARNINGS else {"See Also", "Examples"}
    if name in FUNCTIONS:
        needed |= {"Returns"}
        needed |= {"Raises", "Parameters"} if parameters_of(getattr(dpdist, name)) else set()
    return needed - set(sections(str(getattr(dpdist, name).__doc__)))


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_documented(name: str) -> None:
    found = getattr(dpdist, name)
    parts = sections(found.__doc__)
    assert not missing_sections(name)
    assert name in WARNINGS or any(line.startswith(">>> ") for line in parts["Examples"])
    if name in {*ERRORS, *WARNINGS} - {"DpdistError"} or name in {"Neighbours", "Centring"}:
        return  # made as their base is
    told = documented(name)
    for parameter in parameters_of(found).values():
        assert parameter.name in told, f"{parameter.name} of {name}"
        kind, _, words = told[parameter.name].partition("\n")
        assert kind, f"{parameter.name} of {name} has no type"
        assert words.strip(), f"{parameter.name} of {name} has no description"
        if parameter.default is not inspect.Parameter.empty and "Parameters" in parts:
            assert "default" in kind, f"{parameter.name} of {name} has a default that is not told"
    unknown = set(described(parts.get("Parameters", []))) - set(parameters_of(found))
    assert not unknown, unknown


@pytest.mark.parametrize("name", NAMES)
def test_see_also_leads_to_public_names(name: str) -> None:
    lines = sections(str(getattr(dpdist, name).__doc__))["See Also"]
    for entry in described(lines):
        head, *rest = entry.split(".")
        assert head in NAMES, entry
        assert not rest or hasattr(getattr(dpdist, head), rest[0]), entry


def test_a_docstring_that_lacks_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = str(inspect.getdoc(dpdist.open_rows))  # Python 3.13 has taken the indentation off already
    monkeypatch.setattr(dpdist.open_rows, "__doc__", whole.replace("Raises\n------", "Fails\n-----"))
    assert missing_sections("open_rows") == {"Raises"}
    monkeypatch.setattr(dpdist.open_rows, "__doc__", whole.replace("path : str", "where : str"))
    assert "path" not in documented("open_rows")


SCRIPT = """
import dpdist
from dpdist import PrivatePCA, ReleaseRequest

def main(source: str) -> list[float]:
    budget = dpdist.PrivacyLoss.parse(2, 1e-6)
    table: str = dpdist.ingest_rows(source, "rows.zarr", budget=budget).dataset_id
    choice = dpdist.choose_clip_norm("rows.zarr", dpdist.NormsRequest(dpdist.PrivacyLoss.parse(0.1)), quantile=0.9)
    loss = dpdist.PrivacyLoss.parse(1, "1e-6")
    request = ReleaseRequest("gaussian", loss, choice.clip or 1.0, neighbours=dpdist.Neighbours.ADD_REMOVE)
    outcome = dpdist.release_rows("rows.zarr", "release.zarr", request, cluster=dpdist.Cluster(workers=2))
    release: dpdist.Release = outcome.release
    guarantee: dpdist.Guarantee | None = release.guarantee
    model, _, fresh = dpdist.fit_components("release.zarr", "model.zarr", 3)
    components: dpdist.Components = model.components
    print(table, fresh, guarantee, dpdist.project_rows("rows.zarr", "model.zarr", "scores.zarr").rows)
    print(dpdist.Ledger("rows.ledger").balance(), [one.name for one in dpdist.list_mechanisms()])
    try:
        print(PrivatePCA(2, epsilon=1, delta=1e-6, clip=8).fit("rows.zarr").guarantee_.loss.epsilon)
    except dpdist.RefusedError as error:
        print(error.exit_code)
    return [] if components.eigenvalues is None else [float(value) for value in components.eigenvalues]
"""


def examples() -> list[str]:
    """Return what README and the pages show of Python that stands alone."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
    return [
        found
        for page in pages
        for found in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ]


def checked(*scripts: Path) -> subprocess.CompletedProcess[str]:
    """Check types as the project does; where it did before, what it knows of the package is taken from its cache."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", *map(str, scripts)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_type_checkers_know_what_is_public(tmp_path: Path) -> None:
    sound, wrong = tmp_path / "sound.py", tmp_path / "wrong.py"
    sound.write_text(SCRIPT)
    shown = [tmp_path / f"readme{number}.py" for number in range(len(examples()))]
    for path, text in zip(shown, examples(), strict=True):
        path.write_text(text)
    assert shown
    fault_in_it = SCRIPT.replace('dpdist.Ledger("rows.ledger")', "dpdist.Ledger(3)")
    wrong.write_text(f"{fault_in_it}\n# {wrong}\n")  # else mypy repeats what it said of the same text, and where
    (fault, summary) = checked(sound, wrong, *shown).stdout.splitlines()
    assert f"/{wrong.name}:" in fault  # of a file that the cache knows, mypy names the folder in which it first was
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
    ids = {dpdist.ReleaseRequest("gaussian", loss, norm).release_id(table) for norm in (8, 8.0, np.float64(8))}
    assert len(ids) == 1
    grids = (dpdist.NormGrid(1, 8), dpdist.NormGrid(1.0, 8.0))
    assert len({dpdist.NormsRequest(loss, grid).release_id(table) for grid in grids}) == 1


def test_a_table_without_columns_is_refused() -> None:
    loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    with pytest.raises(dpdist.UsageError, match="at least one column"):
        dpdist.forecast_release(dpdist.ReleaseRequest("gaussian", loss, 8.0), columns=0, rows=100)
    with pytest.raises(dpdist.UsageError, match="at least one column"):
        dpdist.audit_mechanism("gaussian", loss, columns=0)


def test_a_loss_is_read_exactly_however_it_is_written() -> None:
    assert dpdist.PrivacyLoss.parse(0.1, 1e-6) == dpdist.PrivacyLoss.parse("0.1", "0.000001")
    with pytest.raises(dpdist.DataError, match="not a whole number"):
        dpdist.PrivacyLoss.parse(0.1 + 0.2)


def test_a_script_imports_nothing_below_the_package() -> None:
    """The pages show what users type: what is not public may be gone with the next version."""
    text = "\n".join(examples())
    assert not re.findall(r"(?:from|import) dpdist\.\w+", text)
    for line in re.findall(r"from dpdist import (.+)", text):
        assert {name.strip() for name in line.split(",")} <= set(dpdist.__all__)
