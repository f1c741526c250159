"""The command line. Words and progress go to standard error, ``--json`` prints one object on standard output.

Exit codes: 0 done, 1 a defect, 2 usage, 3 refused, 4 unusable data, 5 interrupted and resumable.
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
    "audit": ("mechanisms", "audit_command", "Attack a mechanism on synthetic tables, and bound its loss from below."),
    "bound": ("pipeline", "bound", "Choose the clip norm of rows privately, for a small epsilon."),
    "combine": ("pipeline", "combine", "Add up releases of disjoint rows."),
    "covariance": ("answers", "covariance_command", "Write the covariance of a release, shrunk and positive."),
    "demo": ("jobs", "demo_command", "Do everything on a bundled real data set."),
    "forecast": ("mechanisms", "forecast_command", "Say what a budget buys, before anything is spent."),
    "ingest": ("pipeline", "ingest", "Write rows, a Zarr array, from files."),
    "inspect": ("inspect", "inspect", "Describe rows and their budget, a release, a model or scores."),
    "ledger": ("ledger", "ledger", "Create, show, check, export or mend a budget."),
    "mechanisms": ("mechanisms", "mechanisms", "List the mechanisms: what each claims, and what is proved."),
    "pca": ("components", "pca", "Write the principal components of a release."),
    "project": ("components", "project", "Write the scores of rows: private, as the rows are."),
    "regress": ("answers", "regress", "Explain a column of a release by others, with intervals."),
    "register": ("pipeline", "register", "Take rows where they are, without a copy."),
    "release": ("pipeline", "release_command", "Publish one private second moment of rows."),
    "report": ("inspect", "report_command", "Write one HTML page about a release, for people."),
    "run": ("jobs", "run", "Run a whole job from a file."),
    "schema": ("pipeline", "schema_command", "Draft what the columns of files mean, for a person to complete."),
    "synthesise": ("answers", "synthesise", "Draw normal rows with the mean and covariance of a release."),
    "status": ("jobs", "status", "Show where a job stands."),
}
"""Where each command is, and what it does: it is imported when it is used."""


class _Commands(click.Group):
    """Commands of which only the one that is used is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as of click
        """Return the names."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as of click
        """Import a command; None if there is none of that name."""
        cmd_name = SPELLINGS.get(cmd_name, cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dpdist.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what a word may become, and import no command: whoever presses Tab waits."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, (*_, summary) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as of click
        """Write what each command does, and import none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (*_, summary) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpdist")
def cli() -> None:
    """Compute differentially private second moments and PCA of large tables, on Dask and Zarr."""
    click.get_current_context().with_resource(naming(COMMAND_LINE))
    warnings.simplefilter("ignore", WeakGuaranteeWarning)  # the commands say it in their answers


def main() -> None:
    """Run the command line."""
    execute(cli)


def execute(command: click.Command) -> None:
    """Run a command, of this package or of a workflow: every failure is one paragraph and an exit code."""
    try:
        interruption.begin()
        code = _outcome(command)
        interruption.end()
    except KeyboardInterrupt:
        BARS.end()
        if interruption.interrupted():
            interruption.leave()
        say(f"dpdist: {interruption.sentence()}")  # in somebody else's process
        code = ResumableError.exit_code
    sys.exit(code)


def _outcome(command: click.Command) -> int:
    """Run a command, say how it failed if it did, and return its exit code."""
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
        return _failed("The memory does not suffice. Take a machine with more, or end what else runs on this one.", 4)
    except Exception as error:  # noqa: BLE001 - its text may quote data, so only type and place are told
        return _failed(*_unforeseen(error))
    return code if isinstance(code, int) else 0


def _unforeseen(error: Exception) -> tuple[str, int]:
    """Return what to say of an error that is none of ours, and the exit code."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # wherever a path is first looked at
        return "The name of a file or folder is longer than the file system takes. Give a shorter one.", 2
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    return f"This is a defect in dpdist: {location}. Please report it with the command you ran.", 1


def _warning_printer(shown: Callable[..., None]) -> Callable[..., None]:
    """Return a way to show warnings that says ours in words."""

    def show(message: Warning | str, category: type[Warning], *args: object, **kwargs: object) -> None:
        if issubclass(category, NoWitnessWarning):
            say(f"dpdist: {message}")
        else:
            shown(message, category, *args, **kwargs)

    return show


def _failed(message: str, code: int) -> int:
    if interruption.interrupted():
        raise KeyboardInterrupt  # what failed, failed because of it
    say(f"dpdist: {message}")
    return code
