"""What every program of the papers has in common: its options, and what it says at the start and at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from dpdist import Cluster
from dpdist.cli.options import cluster_options
from dpdist.core.storage.atomic import replace_file
from papers.common.answers import NOTICE

OUTPUT = Path("paper-results")
"""The default folder of results: never the committed results, which are in papers/results."""
QUICK = OUTPUT / "quick"


@dataclass(frozen=True)
class Asked:
    """The options of one run.

    Attributes
    ----------
    data
        Folder of data sets; None: scikit-learn fetches what it can.
    output
        Folder of the results, which exists.
    quick
        Whether the small version is asked for.
    runs
        Number of repetitions.
    cluster
        Where to compute.
    """

    data: Path | None
    output: Path
    quick: bool
    runs: int
    cluster: Cluster

    def finish(self, name: str, suffixes: str, results: Iterable[str]) -> None:
        """Print the main results and keep them as .txt, and say which files were written, such as ``.json .csv``."""
        if lines := list(results):
            click.echo("\n".join(lines))
            replace_file(self.output / f"{name}.txt", ("\n".join(lines) + "\n").encode(), "results")
            suffixes += " .txt"
        click.echo(f"Wrote {', '.join(f'{self.output / name}{suffix}' for suffix in suffixes.split())}", err=True)


def experiment(
    about: str | None, lasts: str, *, runs: int = 1, quick: int = 1, of: str = "", needs: str = ""
) -> Callable[[Callable[[Asked], None]], click.Command]:
    """Make a function the command of a program.

    Parameters
    ----------
    about
        The docstring of the module; its first line is the help.
    lasts
        How long a full run takes on two cores, as measured.
    runs, quick
        Default number of repetitions, of a full run and with ``--quick``.
    of
        The repetitions, in the plural; empty where nothing is drawn.
    needs
        The data sets it reads; empty where it reads none.
    """
    length = f"A full run takes about {lasts} on two cores."
    folder = click.Path(file_okay=False, path_type=Path)
    sets = (
        f"Folder of the data sets, as papers.common.fetch makes it: {needs}." if needs else "Not used: reads no data."
    )
    repeated = f"Number of {of} [default: {runs}; with --quick {quick}]." if of else "Not used: nothing is drawn."

    def decorated(function: Callable[[Asked], None]) -> click.Command:
        @click.command(help=f"{(about or '').splitlines()[0]}\n\n{length}")
        @click.option("--data", type=folder, help=sets)
        @cluster_options
        @click.option(
            "--quick",
            "quick_version",
            is_flag=True,
            help="A small version that takes seconds; its numbers mean little.",
        )
        @click.option("--runs", "asked", type=click.IntRange(min=1), metavar="N", help=repeated)
        @click.option("--output", type=folder, help=f"Folder of the results [default: {OUTPUT}; with --quick {QUICK}].")
        def command(
            data: Path | None, output: Path | None, quick_version: bool, asked: int | None, cluster: Cluster
        ) -> None:
            output = output or (QUICK if quick_version else OUTPUT)
            click.echo(f"{NOTICE}. Results: {output}. {length}", err=True)
            output.mkdir(parents=True, exist_ok=True)
            function(Asked(data, output, quick_version, asked or (quick if quick_version else runs), cluster))

        return command

    return decorated
