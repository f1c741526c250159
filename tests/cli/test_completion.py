"""What Tab completes: by bash itself, with what the page on the command line installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from support.folders import ROOT

from dpdist import cli

PRESS = """
set -u
eval "$(cat "$HOME/.local/share/bash-completion/completions/dpdist")" 2>/dev/null
for line in "dpdist rel" "dpdist release rows.zarr --neighbours add"; do
    read -ra COMP_WORDS <<< "$line"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _dpdist_completion dpdist
    echo "${COMPREPLY[*]}"
done
"""


def test_what_the_page_says_installs_completion_for_bash(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    said = subprocess.run(
        ["bash", "-c", commands + PRESS], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.splitlines() == ["release", "add-remove"], said.stderr


def test_names_of_commands_are_completed_without_importing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(cli, "import_module", imported)
    completer = BashComplete(cli.cli, {}, "dpdist", "_DPDIST_COMPLETE")
    assert [item.value for item in completer.get_completions([], "re")] == ["regress", "register", "release", "report"]
    assert [item.value for item in completer.get_completions([], "--v")] == ["--version"]
