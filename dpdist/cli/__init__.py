"""The command line. Results go to standard output, with ``--json`` as one object; messages and progress to stderr.

Exit codes: 0 success, 1 defect, 2 usage, 3 refused, 4 unusable data or output, 5 interrupted and resumable.
"""

from __future__ import annotations

import errno
import io
import json
import sys
import traceback
import warnings
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from dpdist.cli.output import BARS, TYPED, VERBOSITY, complain, unwritten
from dpdist.core import interruption
from dpdist.core._version import __version__
from dpdist.core.errors import DpdistError, ResumableError, UsageError, WeakGuaranteeWarning
from dpdist.core.naming import COMMAND_LINE, SPELLINGS, naming
from dpdist.core.text import printable

COMMANDS = {
    "demo": ("demo", "demo_command", "Release an invented table of customers, and ask it a question."),
    "release": ("release", "release_command", "Publish a private second moment of a table: a file, or rows."),
    "report": ("inspect", "report_command", "Write an HTML report on a release, or a page for the privacy officer."),
    "schema": ("pipeline", "schema_command", "Draft a schema for the columns of files."),
    "ingest": ("pipeline", "ingest", "Copy rows from files into a Zarr array."),
    "register": ("pipeline", "register", "Use rows in place, without a copy."),
    "forecast": ("forecast", "forecast_command", "Forecast the noise and accuracy of a release."),
    "bound": ("pipeline", "bound", "Choose the clip norm of rows privately, for a small epsilon."),
    "pca": ("components", "pca", "Write the principal components of a release."),
    "project": ("components", "project", "Project rows onto components. Keep the scores as private as the rows."),
    "relate": ("relate", "relate", "Show tables, means by group and associations of a release."),
    "regress": ("answers", "regress", "Regress a column of a release on others, with intervals."),
    "covariance": ("answers", "covariance_command", "Write the shrunk covariance matrix of a release."),
    "synthesise": ("synthesise", "synthesise", "Draw synthetic rows that resemble those of a release."),
    "release-matrix": ("matrix", "release_matrix_command", "Publish a symmetric matrix of a declared sensitivity."),
    "combine": ("pipeline", "combine", "Add up releases of disjoint rows."),
    "session": ("session", "session", "Release rows of several sites together, without a trusted sum."),
    "inspect": ("inspect", "inspect", "Describe rows and their budget, a release, a model or scores."),
    "ledger": ("ledger", "ledger", "Create, show, verify, export or repair a ledger."),
    "run": ("jobs", "run", "Run a job file."),
    "status": ("jobs", "status", "Show the state of a job."),
    "mechanisms": ("mechanisms", "mechanisms", "List mechanisms with their claimed and proved guarantees."),
    "audit": ("mechanisms", "audit_command", "Attack a mechanism on synthetic tables and bound its loss from below."),
}
"""Module, function and summary of each command, in the order of work."""


class Suggesting(click.Group):
    """Names the closest command if one was mistyped."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest one."""
        ctx.find_root().meta.setdefault(TYPED, tuple(args))
        if args and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], [*self.list_commands(ctx), *SPELLINGS], 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:  # not to complete a word
            _require_once(click.Context(command, ctx, name), rest)
        return name, command, rest


def _require_once(ctx: click.Context, args: list[str]) -> None:
    """Refuse an option with a value that is given twice, also in another spelling: click would take the last one."""
    try:
        _, _, given = ctx.command.make_parser(ctx).parse_args(list(args))
    except click.UsageError:
        return  # which the command reports itself
    for option in given:
        single = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
        if single and given.count(option) > 1:
            spellings = " or ".join(option.opts)
            raise UsageError(f"{spellings} is given twice, and takes one value. Give it once.")


class _Commands(Suggesting):
    """Imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as of click
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as of click
        cmd_name = SPELLINGS.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dpdist.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name without importing any command, which would be slow."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, (*_, summary) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as of click
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (*_, summary) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpdist")
def cli() -> None:
    """Compute differentially private second moments and PCA of large tables, on Dask and Zarr."""
    click.get_current_context().with_resource(naming(COMMAND_LINE))
    VERBOSITY.quiet = VERBOSITY.verbose = False
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
        complain(f"dpdist: {interruption.sentence()}")  # interrupted in another process
        code = ResumableError.exit_code
    sys.exit(code)


def _outcome(command: click.Command) -> int:
    """Run a command, report its failure if any, and return the exit code."""
    try:
        code = command(standalone_mode=False)
    except DpdistError as error:
        return _failed(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        return _failed(shown.getvalue().rstrip(), error.exit_code, "")
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
    if isinstance(error, OSError) and unwritten(error):
        reason = error.strerror
        return f"Standard output cannot be written: {reason}. Redirect it elsewhere; repeating the command is safe.", 4
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    return f"This is a defect in dpdist: {location}. Please report it with the command you ran.", 1


def _failed(message: str, code: int, prefix: str = "dpdist: ") -> int:
    """Report a failure on standard error, and with --json as an object on standard output, too."""
    if interruption.interrupted():
        raise KeyboardInterrupt  # which caused the failure
    if "--json" in sys.argv:
        try:
            click.echo(json.dumps({"error": printable(message), "exit_code": code}))
        except OSError as error:
            unwritten(error)
    complain(f"{prefix}{message}")
    return code
