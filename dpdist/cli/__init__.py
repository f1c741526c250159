"""The command line. Words and progress go to standard error, ``--json`` prints one object on standard output.

Exit codes: 0 done, 1 a defect, 2 usage, 3 refused, 4 unusable data, 5 interrupted and resumable.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpdist import __version__
from dpdist.cli import knowledge, rows, work
from dpdist.cli.ledgers import ledger
from dpdist.cli.options import say
from dpdist.errors import DpdistError, NoWitnessWarning, WeakGuaranteeWarning


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpdist")
def cli() -> None:
    """Compute differentially private second moments and PCA of large tables, on Dask and Zarr."""
    warnings.simplefilter("ignore", WeakGuaranteeWarning)  # the commands say it in their answers


for command in (
    work.ingest,
    rows.bound,
    rows.inspect,
    work.release_command,
    work.pca,
    work.project,
    work.report_command,
    work.run,
    work.combine,
    work.status,
    work.demo_command,
    knowledge.mechanisms,
    knowledge.forecast_command,
    knowledge.audit_command,
    ledger,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line."""
    execute(cli)


def execute(command: click.Command) -> None:
    """Run a command, of this package or of a workflow: every failure is one paragraph and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", NoWitnessWarning)
            warnings.showwarning = _told(warnings.showwarning)
            code = command(standalone_mode=False)
    except DpdistError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("Interrupted. The same command resumes; what was reserved is not charged again.", 5)
    except MemoryError:
        _fail("The memory does not suffice. Take a machine with more, or end what else runs on this one.", 4)
    except Exception as error:  # noqa: BLE001 - its text may quote data, so only type and place are told
        place = traceback.extract_tb(error.__traceback__)[-1]
        _fail(
            f"This is a defect in dpdist: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}. "
            "Please report it with the command you ran.",
            1,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _told(shown: Callable[..., None]) -> Callable[..., None]:
    """Return a way to show warnings that says ours in words."""

    def show(message: Warning | str, category: type[Warning], *others: Any, **more: Any) -> None:
        if issubclass(category, NoWitnessWarning):
            say(f"dpdist: {message}")
        else:
            shown(message, category, *others, **more)

    return show


def _fail(message: str, code: int) -> None:
    say(f"dpdist: {message}")
    sys.exit(code)
