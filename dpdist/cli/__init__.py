"""The command line. Messages and progress go to standard error; ``--json`` prints one object on standard output.

Exit codes: 0 success, 1 defect, 2 usage, 3 refused, 4 unusable data, 5 interrupted and resumable.
"""

from __future__ import annotations

import errno
import io
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from dpdist._util import interruption
from dpdist._version import __version__
from dpdist.cli.output import BARS, say
from dpdist.errors import DpdistError, NoWitnessWarning, ResumableError, WeakGuaranteeWarning
from dpdist.naming import COMMAND_LINE, SPELLINGS, naming

_COMMANDS = {
    "audit": ("mechanisms", "audit_command", "Attack a mechanism on synthetic tables and bound its loss from below."),
    "bound": ("pipeline", "bound", "Choose the clip norm of rows privately, for a small epsilon."),
    "combine": ("pipeline", "combine", "Add up releases of disjoint rows."),
    "covariance": ("answers", "covariance_command", "Write the shrunk covariance matrix of a release."),
    "demo": ("jobs", "demo_command", "Run all steps on a bundled data set."),
    "forecast": ("mechanisms", "forecast_command", "Forecast the noise and accuracy of a release."),
    "ingest": ("pipeline", "ingest", "Copy rows from files into a Zarr array."),
    "inspect": ("inspect", "inspect", "Describe rows and their budget, a release, a model or scores."),
    "ledger": ("ledger", "ledger", "Create, show, verify, export or repair a ledger."),
    "mechanisms": ("mechanisms", "mechanisms", "List mechanisms with their claimed and proved guarantees."),
    "pca": ("components", "pca", "Write the principal components of a release."),
    "project": ("components", "project", "Project rows onto components. Keep the scores as private as the rows."),
    "regress": ("answers", "regress", "Regress a column of a release on others, with intervals."),
    "register": ("pipeline", "register", "Use rows in place, without a copy."),
    "release": ("pipeline", "release_command", "Publish a private second moment of rows."),
    "report": ("inspect", "report_command", "Write an HTML report on a release."),
    "run": ("jobs", "run", "Run a job file."),
    "schema": ("pipeline", "schema_command", "Draft a schema for the columns of files."),
    "synthesise": ("answers", "synthesise", "Draw synthetic rows from a normal distribution fitted to a release."),
    "status": ("jobs", "status", "Show the state of a job."),
}
"""Module, function and summary of each command."""


class _Commands(click.Group):
    """Imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as of click
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as of click
        cmd_name = SPELLINGS.get(cmd_name, cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dpdist.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name without importing any command, which would be slow."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, (*_, summary) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as of click
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (*_, summary) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpdist")
def cli() -> None:
    """Compute differentially private second moments and PCA of large tables, on Dask and Zarr."""
    click.get_current_context().with_resource(naming(COMMAND_LINE))
    warnings.simplefilter("ignore", WeakGuaranteeWarning)  # commands print it themselves


def main() -> None:
    """Run the command line."""
    execute(cli)


def execute(command: click.Command) -> None:
    """Run a command; report a failure as one paragraph and an exit code."""
    try:
        interruption.begin()
        code = _outcome(command)
        interruption.end()
    except KeyboardInterrupt:
        BARS.end()
        if interruption.interrupted():
            interruption.leave()
        say(f"dpdist: {interruption.sentence()}")  # interrupted in another process
        code = ResumableError.exit_code
    sys.exit(code)


def _outcome(command: click.Command) -> int:
    """Run a command, report its failure if any, and return the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", NoWitnessWarning)
            warnings.showwarning = _warning_printer(warnings.showwarning)
            code = command(standalone_mode=False)
    except DpdistError as error:
        return _failed(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip())
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except MemoryError:
        return _failed("Not enough memory. Use a machine with more, or stop other programs on this one.", 4)
    except Exception as error:  # noqa: BLE001 - its text may quote data, so report its type and location only
        return _failed(*_unforeseen(error))
    return code if isinstance(code, int) else 0


def _unforeseen(error: Exception) -> tuple[str, int]:
    """Return the message and exit code for an error of another library."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "The name of a file or folder is longer than the file system allows. Choose a shorter one.", 2
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    return f"This is a defect in dpdist: {location}. Please report it with the command you ran.", 1


def _warning_printer(shown: Callable[..., None]) -> Callable[..., None]:
    """Return a ``showwarning`` that prints our warnings as messages."""

    def show(message: Warning | str, category: type[Warning], *args: object, **kwargs: object) -> None:
        if issubclass(category, NoWitnessWarning):
            say(f"dpdist: {message}")
        else:
            shown(message, category, *args, **kwargs)

    return show


def _failed(message: str, code: int) -> int:
    if interruption.interrupted():
        raise KeyboardInterrupt  # which caused the failure
    say(f"dpdist: {message}")
    return code
