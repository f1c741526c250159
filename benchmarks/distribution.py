"""Whether what would be uploaded is whole: wheel and sdist, looked into, installed in an empty environment, and run.

The recipe of the conda package is read as conda-forge's tool reads it. It is not built: that takes its channel.

    pip install -e '.[docs]'
    python -m benchmarks.distribution --output benchmarks/results/distribution

Packages come from the index that pip knows. The wheel is built from the sdist, so what is missing in the one is missing
in the other. What was installed runs ``dpdist demo`` twice, away from the checkout: the second time spends nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from dpdist import __version__

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "dpdist/py.typed", "dpdist/jobs/job.schema.json", "dpdist/report/templates/release.html",
    f"dpdist-{__version__}.dist-info/licenses/LICENSE", f"dpdist-{__version__}.dist-info/entry_points.txt",
)  # fmt: skip


def said(*command: str | Path, **more: Any) -> str:
    """Run a command, and return what it printed; a failure ends the workflow with it."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)  # noqa: S603 - ours
    if run.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{run.stdout}")
    return str(run.stdout)


def looked_into(wheel: Path, sdist: Path) -> dict[str, Any]:
    """Return what is in both, and what is missing or does not belong there."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    with tarfile.open(sdist) as packed:
        sources = {name.partition("/")[2] for name in packed.getnames()}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "dpdist").rglob("*.py")}
    own = f"dpdist-{__version__}.dist-info/"
    return {
        "wheel": {"name": wheel.name, "kB": round(wheel.stat().st_size / 1000), "files": len(names)},
        "sdist": {"name": sdist.name, "kB": round(sdist.stat().st_size / 1000), "files": len(sources)},
        "missing": sorted(({*NEEDED} | modules) - names) + sorted(({"LICENSE", "README.md"} | modules) - sources),
        "not of the package": sorted(name for name in names if not name.startswith(("dpdist/", own))),
    }


def installed(wheel: Path, folder: Path) -> dict[str, Any]:
    """Install the wheel in an empty environment, run the demo twice, and return what was said."""
    started = time.monotonic()
    said(sys.executable, "-m", "venv", folder / "venv")
    said(folder / "venv/bin/pip", "install", "--quiet", wheel)
    seconds = time.monotonic() - started
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    place: dict[str, Any] = {"cwd": folder, "env": environment | {"DPDIST_STATE_HOME": str(folder / "state")}}
    command = folder / "venv/bin/dpdist"
    version = said(command, "--version", **place).split()[-1]
    first, second = (said(command, "demo", **place) for _ in range(2))
    where = said(folder / "venv/bin/python", "-c", "import dpdist; print(dpdist.__file__)", **place)
    return {
        "seconds to install": round(seconds),
        "version": version,
        "version is that of the checkout": version == __version__,
        "runs from the environment": str(folder / "venv") in where,
        "demo": "nothing was spent" not in first and "nothing was spent" in second,
        "conflicts": said(folder / "venv/bin/pip", "check").strip(),
    }


def rendered() -> dict[str, Any]:
    """Return what the recipe of the conda package comes to."""
    import rattler_build  # noqa: PLC0415 - for this alone

    (only,) = rattler_build.Stage0Recipe.from_file(str(ROOT / "docs" / "conda" / "recipe.yaml")).render()
    found = only.recipe.to_dict()
    return {
        "name": found["package"]["name"],
        "version is that of the checkout": found["package"]["version"] == __version__,
        "requirements": len(found["requirements"]["run"]),
    }


def main() -> None:
    """Do all of it, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        said(sys.executable, "-m", "build", "--outdir", folder, ROOT)
        (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
        checked = said(sys.executable, "-m", "twine", "--no-color", "check", "--strict", wheel, sdist)
        found = looked_into(wheel, sdist) | {"twine": checked.count("PASSED") == 2} | installed(wheel, folder)
        found["conda recipe"] = rendered()
    text = json.dumps(found, indent=1)
    print(text)
    asked.output.with_suffix(".json").write_text(text + "\n")
    good = found["twine"] and found["demo"] and found["version is that of the checkout"]
    good = good and found["conda recipe"]["version is that of the checkout"]
    if found["missing"] or found["not of the package"] or not good:
        raise SystemExit("what would be uploaded is not whole")


if __name__ == "__main__":
    main()
