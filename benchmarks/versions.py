"""The README's two commands on each Python that is installed, and a part of the tests with the lowest versions.

``python -m benchmarks.versions [PYTHON ...]`` (``3.12``, say; all that are installed) copies the tree, and types both
commands on each Python in an environment of its own: some 15 minutes and 2 GB each. On the oldest, a second environment
takes the lowest version of each library that ``pyproject.toml`` declares, and runs the demo and two minutes of tests.
``benchmarks/results/versions.json`` keeps the last lines and the versions. If something fails, the exit code is 1.

``.ci/run`` uses its parts: ``--newest`` prints the newest interpreter, and ``--lowest`` runs the second environment
only, without a result.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "versions.json"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("anndata", "netcdf", "plots")
"""Those whose libraries read rows, bound them or draw, and need no server."""
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pandas")
"""What the tests need; anndata writes with pandas, and an old one not with a new one."""
TESTS = (
    "core/rows/test_bounding.py", "core/rows/test_dataset.py", "core/ledger/test_ledger.py",
    "core/release/test_stored.py", "core/release/test_artefact.py", "core/release/test_trusted_release.py",
    "core/ingest/test_readers.py", "core/ingest/test_bombs.py", "core/pipeline/test_projection.py",
    "core/noise/test_masks.py", "sites/test_sessions.py", "sites/test_session_keys.py", "answers/test_spectrum.py",
    "cli/test_cli_steps.py", "core/runtime/test_sums.py", "cluster/test_user_clusters.py",
)  # fmt: skip
SHOWN = (
    "numpy", "scipy", "dask", "distributed", "zarr", "numba", "pyarrow", "scikit-learn", "pandas", "anndata", "xarray",
    "msgspec",
)  # fmt: skip
"""The main packages, whose versions are kept of each Python."""
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?P<extra>\[[^]]*\])?>=(?P<version>[0-9.]+)")
_PYTHON = "Programming Language :: Python :: "


def supported() -> list[str]:
    """Return the Pythons that pyproject.toml names, the oldest first."""
    return [each.removeprefix(_PYTHON) for each in PROJECT["classifiers"] if each.startswith(f"{_PYTHON}3.")]


def interpreters() -> dict[str, str]:
    """Return an interpreter of each supported Python, by its version: of PATH, or the newest of pyenv."""
    installed = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in supported():
        patches = sorted(pyenv.glob(f"{version}.*"), key=lambda each: [int(part) for part in each.name.split(".")])
        for path in (shutil.which(f"python{version}"), *(f"{each}/bin/python" for each in reversed(patches))):
            # pyenv puts a shim on PATH for a Python that is not chosen, too; Debian's may lack what venv needs
            asked = [path or "false", "-c", "import ensurepip"]
            if path and subprocess.run(asked, check=False, capture_output=True).returncode == 0:  # noqa: S603 - Python
                installed[version] = path
                break
    if not installed:
        raise SystemExit(f"None of Python {', '.join(supported())} is installed with venv and pip.")
    return installed


def declared() -> dict[str, str]:
    """Return the lowest version of each library that pyproject.toml declares, by its name."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    asked += [each for each in extras["test"] if each.startswith("pandas")]
    bounds = [_BOUND.fullmatch(each) for each in asked]
    if not all(bounds):
        raise SystemExit("A dependency has no lower bound of the form name>=version.")
    return {each["name"]: each["version"] for each in bounds if each}


def played(interpreter: str, name: str, steps: dict[str, list[str]], libraries: list[str]) -> dict[str, Any]:
    """Run steps in a copy of the tree with an environment of its own; return how each ended, and versions."""
    with tempfile.TemporaryDirectory(prefix="dpdist-versions-") as folder:
        tree = Path(folder) / "dpdist"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".*_cache", "__pycache__", "build", "*.egg-info")
        )
        ended: dict[str, Any] = {}
        for step, command in {"environment": [interpreter, "-m", "venv", ".venv"], **steps}.items():
            started = time.monotonic()
            run = subprocess.run(command, check=False, cwd=tree, capture_output=True, text=True)  # noqa: S603 - its own
            lines = (run.stdout + run.stderr).strip().splitlines()
            print(f"{name}: {step} ended with {run.returncode}", *lines[-2:], sep="\n", flush=True)
            ended[step] = {"exit_code": run.returncode, "seconds": round(time.monotonic() - started)}
            if step in {"checks", "tests"}:
                ended[step]["end"] = lines[-2:]
            if run.returncode:
                print(*lines[-60:], sep="\n", flush=True)
                break
        listing = [".venv/bin/python", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
        listed = subprocess.run(listing, check=False, cwd=tree, capture_output=True, text=True)  # noqa: S603 - its own
        versions = {each["name"].lower(): each["version"] for each in json.loads(listed.stdout.splitlines()[0])}
        inside = subprocess.run([interpreter, "--version"], check=False, capture_output=True, text=True)  # noqa: S603
        return {
            "python": inside.stdout.split()[1],
            **ended,
            "versions": {each: versions.get(each.lower()) for each in libraries},
        }


def lowest(interpreter: str) -> dict[str, Any]:
    """Run the demo and a part of the tests with the lowest declared versions."""
    pins = [f"{name}=={version}" for name, version in declared().items()]
    tests = [f"tests/{each}" for each in TESTS]
    steps = {
        "install": [".venv/bin/pip", "install", "--quiet", f".[{','.join(EXTRAS)}]", *TOOLS, *pins],
        "demo": [".venv/bin/dpdist", "demo"],
        "tests": [".venv/bin/pytest", "-q", "-n", "2", "--dist", "loadfile", "-k", "not postgres", *tests],
    }
    return played(interpreter, "lowest", steps, sorted(declared()))


def newest(interpreter: str, version: str) -> dict[str, Any]:
    """Type the README's two commands with the newest versions."""
    steps = {
        "install": [".venv/bin/pip", "install", "--quiet", "."],
        "demo": [".venv/bin/dpdist", "demo"],
        "install for tests": [".venv/bin/pip", "install", "--quiet", "-e", ".[test]"],
        "checks": [".venv/bin/python", "tests/all.py"],
    }
    return played(interpreter, version, steps, list(SHOWN))


def failed(played_ones: dict[str, Any]) -> list[str]:
    """Return the names of those of which a step failed."""
    steps = ("environment", "install", "demo", "install for tests", "checks", "tests")
    return [name for name, each in played_ones.items() if any(each.get(step, {}).get("exit_code") for step in steps)]


def main(asked: list[str]) -> None:
    """Run what was asked for, and write what came of it."""
    installed = interpreters()
    if asked == ["--newest"]:
        print(list(installed.values())[-1])
        return
    if asked == ["--lowest"]:
        sys.exit(bool(failed({"lowest": lowest(next(iter(installed.values())))})))
    if missing := set(asked) - set(installed):
        raise SystemExit(f"Not installed: {', '.join(sorted(missing))}. Installed: {', '.join(installed)}.")
    results = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for version in asked or installed:
        results[version] = newest(installed[version], version)
        if version == supported()[0]:
            results["lowest"] = lowest(installed[version])
    results["platform"] = f"{platform.system()} {platform.machine()}"
    RESULT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    wanted = [*supported(), "lowest"]
    lacking = [name for name in wanted if name not in results]
    bad = failed({name: results[name] for name in wanted if name in results})
    if bad or lacking:
        sys.exit(f"Failed: {', '.join(bad) or 'none'}. Never run: {', '.join(lacking) or 'none'}.")


if __name__ == "__main__":
    main(sys.argv[1:])
