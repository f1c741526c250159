"""Run every check of the project: lint, format, types, import directions, doctests and tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
    # one process more than cores: much of the time goes by in waiting for the processes that tests start
    ("pytest", "-q", "--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
)


def main() -> int:
    """Run each check, show what it says, and return the number of checks that failed."""
    scripts = Path(sys.executable).parent
    failed = []
    for check in CHECKS:
        command = " ".join(check)
        print(f"== {command}", flush=True)  # noqa: T201
        if subprocess.run([scripts / check[0], *check[1:]], cwd=ROOT, check=False).returncode:
            failed.append(command)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed", flush=True)  # noqa: T201
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
