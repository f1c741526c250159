"""The lowest declared versions, and the newest: an environment each, the demo and a quick part of the tests in both.

``python -m workflows.versions`` builds both environments in a temporary folder with pip, some minutes and 2 GB, and
writes ``workflows/results/versions.json``. An environment that fails ends it with exit code 1.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "workflows" / "results" / "versions.json"
EXTRAS = ("anndata", "netcdf", "genomics", "plots")
"""Those whose libraries read rows, bound them or draw, and need no server."""
TOOLS = ("pytest", "hypothesis", "pandas")
"""What the tests need; anndata writes with pandas, and an old one not with a new one."""
TESTS = (
    "rows/test_dataset.py", "release/test_artefact.py", "pca/test_projection.py", "pca/test_spectrum.py",
    "release/test_trusted_release.py", "ingest/test_readers.py", "ingest/test_bombs.py",
)  # fmt: skip
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?P<extra>\[[^]]*\])?>=(?P<version>[0-9.]+)")


def declared() -> dict[str, str]:
    """Return the lowest version of each library that pyproject.toml declares, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    asked += [each for each in extras["test"] if each.startswith("pandas")]
    found = [_BOUND.fullmatch(each) for each in asked]
    if not all(found):
        raise SystemExit("A dependency has no lower bound of the form name>=version.")
    return {each["name"]: each["version"] for each in found if each}


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    ended = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)  # noqa: S603 - its own
    return ended.returncode, "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-15:])


def outcome(name: str, pins: list[str], folder: Path) -> dict[str, Any]:
    """Build an environment with these pins, and run the demo and the tests in it."""
    environment, copy = folder / name, folder / f"{name}-source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", f"{copy}[{','.join(EXTRAS)}]", *TOOLS, *pins]
    steps = {
        "install": install,
        "demo": [python, "-m", "dpdist", "demo", str(folder / f"{name}-demo"), "--workers", "1"],
        "tests": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{each}" for each in TESTS)],
    }
    found: dict[str, Any] = {}
    for step, command in steps.items():
        code, words = _run(command, copy)
        print(f"{name}: {step} ended with {code}", flush=True)
        found[step] = {"exit_code": code} if code == 0 and step != "tests" else {"exit_code": code, "end": words}
        if code:
            print(words)
            break
    listed = _run([python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"], copy)[1]
    installed = {each["name"].lower(): each["version"] for each in json.loads(listed.splitlines()[0])}
    found["versions"] = {library: installed.get(library.lower()) for library in sorted(declared())}
    return found


def main() -> None:
    """Run both environments and write what came of them."""
    lowest = [f"{name}=={version}" for name, version in declared().items()]
    with tempfile.TemporaryDirectory(prefix="dpdist-versions-") as folder:
        found = {
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "lowest": outcome("lowest", lowest, Path(folder)),
            "newest": outcome("newest", ["--upgrade"], Path(folder)),
        }
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    bad = [name for name in ("lowest", "newest") if found[name].get("tests", {}).get("exit_code") != 0]  # type: ignore[attr-defined]
    sys.exit(f"Failed: {', '.join(bad)}." if bad else 0)


if __name__ == "__main__":
    main()
