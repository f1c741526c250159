"""The command line. Words and progress go to standard error, ``--json`` prints one object on standard output.

Exit codes: 0 done, 1 a defect, 2 usage, 3 refused, 4 unusable data, 5 interrupted and resumable.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from dpdist import __version__, config, jobs, pipeline, tables
from dpdist.engine import Certificates, progress_bar
from dpdist.errors import DpdistError, UsageError
from dpdist.mechanisms.attack import AuditTask
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.pipeline import Cluster
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.privacy.ledger import Ledger
from dpdist.privacy.places import Place, place_of
from dpdist.release.artefact import open_release
from dpdist.release.request import Centring

Command = TypeVar("Command", bound=Callable[..., Any])


class _Folder(click.Path):
    """A path with a last name; an empty one is an unset shell variable, not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.name:
            path = path.absolute()
        if not value or not path.name:
            self.fail("The path is empty, or the root folder. Name a file or folder.", param, ctx)
        return path


class _Account(_Folder):
    """A folder, or the address of a ledger in a database."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place = place_of(str(value), Path())
        return super().convert(value, param, ctx) if isinstance(place, Path) else place


_PATH = _Folder(path_type=Path)
_LEDGER = _Account(path_type=Path)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _answer(as_json: bool, value: dict[str, Any], words: str) -> None:
    if as_json:
        click.echo(json.dumps(value))
    else:
        _say(words)


def _json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")(command)


def _tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about TLS; the command gets ``certificates`` and ``insecure``."""

    @click.option("--tls-ca", type=_PATH, help="Certificate of the cluster's CA, for a tls:// scheduler.")
    @click.option("--tls-cert", type=_PATH, help="Your certificate, of that CA.")
    @click.option("--tls-key", type=_PATH, help="The certificate's key.")
    @click.option("--insecure", is_flag=True, help="Allow an unencrypted scheduler on the network.")
    @functools.wraps(command)
    def collected(tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **others: Any) -> None:
        command(certificates=Certificates.of(tls_ca, tls_cert, tls_key), **others)

    return collected


def _cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about where to compute; the command gets a ``cluster``."""

    @click.option("--scheduler", help="Address of an existing Dask scheduler.")
    @click.option("--workers", type=int, help="Local worker processes [default: one per core].")
    @_tls_options
    @functools.wraps(command)
    def collected(
        scheduler: str | None, workers: int | None, certificates: Certificates | None, *, insecure: bool, **others: Any
    ) -> None:
        command(cluster=Cluster(scheduler, workers, certificates=certificates, insecure=insecure), **others)

    return collected


def _neighbours_option(command: Command) -> Command:
    return click.option(
        "--neighbours",
        type=click.Choice([n.value for n in Neighbours]),
        default=Neighbours.REPLACE_ONE.value,
        show_default=True,
    )(command)


def _mechanism_options(command: Command) -> Command:
    command = click.option("--arithmetic", help="Short for --option arithmetic=..., where there is a choice.")(command)
    return click.option(
        "--option", "options", multiple=True, metavar="NAME=VALUE", help="A parameter of the mechanism; repeatable."
    )(command)


def _options(options: Sequence[str], arithmetic: str | None) -> dict[str, str]:
    return config.options_from([*options, *([f"arithmetic={arithmetic}"] if arithmetic else [])])


def _budget_options(command: Command) -> Command:
    command = click.option("--budget-delta", help="Largest total delta all releases together may cost.")(command)
    return click.option("--budget-epsilon", help="Largest total epsilon all releases together may cost.")(command)


def _budget(epsilon: str | None, delta: str | None) -> PrivacyLoss | None:
    if epsilon is None:
        if delta is not None:
            raise UsageError("--budget-delta needs --budget-epsilon.")
        return None
    return PrivacyLoss.parse(epsilon, delta or "0")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpdist")
def cli() -> None:
    """Compute differentially private second moments and PCA of large tables, on Dask and Zarr."""


@cli.command()
@click.argument("source", type=_PATH)
@click.argument("rows", type=_PATH)
@_budget_options
@click.option("--columns", help="Comma-separated names of the columns to keep, in this order.")
@_json_option
def ingest(
    source: Path,
    rows: Path,
    budget_epsilon: str | None,
    budget_delta: str | None,
    columns: str | None,
    as_json: bool,
) -> None:
    """Write ROWS, a Zarr array, from SOURCE: .npy, .npz, .csv, .csv.gz, .parquet, or a folder of them."""
    budget = _budget(budget_epsilon, budget_delta)
    names = [name.strip() for name in columns.split(",")] if columns is not None else None
    with progress_bar("Ingesting") as progress:
        table = pipeline.ingest_rows(source, rows, budget=budget, columns=names, progress=progress)
    _answer(
        as_json,
        {
            "rows": str(rows), "n": table.rows, "d": table.columns, "dtype": table.dtype, "chunks": table.chunks,
            "dataset_id": table.dataset_id, "ledger": str(pipeline.default_ledger(rows)) if budget else None,
        },
        f"{rows}: {table.rows} rows of {table.columns} columns, {table.dtype}, {table.chunks} chunks. "
        + (f"Budget {budget} in {pipeline.default_ledger(rows)}." if budget else "No budget declared yet."),
    )  # fmt: skip


@cli.command()
@click.argument("rows", type=_PATH)
@click.argument("release", type=_PATH)
@click.option("--epsilon", required=True, help="Privacy loss epsilon, in steps of a millionth.")
@click.option("--delta", help="Probability delta of a larger loss; leave out for pure differential privacy.")
@click.option("--clip", required=True, type=float, help="Public clip norm C; never taken from the data.")
@click.option(
    "--mechanism",
    type=click.Choice(list(MECHANISMS)),
    help="[default: gaussian with --delta, else two-sided-wishart]",
)
@_neighbours_option
@click.option(
    "--centre",
    default=Centring.NONE.value,
    show_default=True,
    help="none, private, or a file with a public centre and scale.",
)
@click.option("--grid-bits", type=int, default=16, show_default=True, help="The clip norm is 2^B grid steps.")
@_mechanism_options
@click.option("--for-reproduction", is_flag=True, help="Allow a mechanism that is not private as claimed; no ledger.")
@click.option("--id", "name", help="Release id [default: follows from data set and parameters].")
@click.option(
    "--ledger",
    type=_LEDGER,
    help="The budget's folder, or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME "
    "[default: ROWS with the suffix .ledger].",
)
@_cluster_options
@click.option(
    "--trusted",
    type=click.Choice(["driver", "worker"]),
    default="driver",
    show_default=True,
    help="Where ledger and noise live: here, or on the worker started with --resources trusted=1.",
)
@_json_option
def release(
    rows: Path, release: Path, epsilon: str, delta: str | None, clip: float, mechanism: str | None, neighbours: str,
    centre: str, grid_bits: int, options: tuple[str, ...], arithmetic: str | None, for_reproduction: bool,
    name: str | None, ledger: Place | None, cluster: Cluster, trusted: str, as_json: bool,
) -> None:  # fmt: skip
    """Publish RELEASE, one private second moment of ROWS. The same command again publishes the same bytes, free."""
    request = config.request_from(
        epsilon=epsilon, delta=delta, clip=clip, mechanism=mechanism, neighbours=neighbours, centre=centre,
        grid_bits=grid_bits, period="", name=name, folder=Path(), for_reproduction=for_reproduction,
        options=_options(options, arithmetic),
    )  # fmt: skip
    cluster = replace(cluster, trusted_worker=trusted == "worker")
    outcome = pipeline.release_rows(rows, release, request, ledger=ledger, cluster=cluster)
    _answer(as_json, outcome.to_json(), outcome.words())


@cli.command()
@click.argument("release", type=_PATH)
@click.argument("model", type=_PATH)
@click.option("--components", required=True, type=int, help="Number of principal components.")
@_json_option
def pca(release: Path, model: Path, components: int, as_json: bool) -> None:
    """Write MODEL, the top principal components of RELEASE. Free post-processing."""
    found = pipeline.fit_components(release, model, components).components
    status = open_release(release).status
    value = {
        "model": str(model),
        "components": components,
        "status": status,
        "eigenvalues": None if found.eigenvalues is None else found.eigenvalues.tolist(),
        "eigenvalues_per_row": found.per_row,
    }
    largest = "" if found.eigenvalues is None else f", largest eigenvalue {found.eigenvalues[0]:.6g}"
    warning = "" if status == "private" else f" {status.upper()}: do not publish it."
    _answer(as_json, value, f"{model}: {components} components{largest}.{warning}")


@cli.command()
@click.argument("rows", type=_PATH)
@click.argument("model", type=_PATH)
@click.argument("scores", type=_PATH)
@_cluster_options
@_json_option
def project(rows: Path, model: Path, scores: Path, cluster: Cluster, as_json: bool) -> None:
    """Write SCORES, the rows projected on MODEL's components. Scores are as private as the rows."""
    count = pipeline.project_rows(rows, model, scores, cluster=cluster)
    _answer(as_json, {"scores": str(scores), "n": count, "private": True}, jobs.scores_words(scores))


@cli.command()
@click.argument("job", type=_PATH)
@_tls_options
@_json_option
def run(job: Path, certificates: Certificates | None, insecure: bool, as_json: bool) -> None:
    """Run a whole job from JOB.toml. Running it again publishes nothing new."""
    outcome = jobs.run(
        config.read_job(job, certificates=certificates, insecure=insecure), say=_say, progress=progress_bar
    )
    if as_json:
        click.echo(json.dumps(outcome))


@cli.command()
@click.argument("name", required=False, type=click.Choice(list(MECHANISMS)))
@_json_option
def mechanisms(name: str | None, as_json: bool) -> None:
    """List what every mechanism claims and what is really proved; with NAME, all that is said of one."""
    statements = [mechanism.statement for mechanism in MECHANISMS.values() if name in {None, mechanism.statement.name}]
    if as_json:
        click.echo(json.dumps({"mechanisms": [asdict(s) for s in statements]}))
    elif name is None:
        click.echo(tables.comparison(statements))
    else:
        click.echo(tables.details(statements[0]))


@cli.command("audit")
@click.argument("mechanism", type=click.Choice(list(MECHANISMS)))
@click.option("--epsilon", required=True, help="The epsilon that is claimed.")
@click.option("--delta", help="The delta that is claimed; none for pure differential privacy.")
@click.option("--d", "columns", type=click.IntRange(1), default=3, show_default=True, help="Columns of the tables.")
@click.option("--draws", type=int, default=20_000, show_default=True, help="Draws from each of the two tables.")
@click.option("--confidence", type=float, default=0.999, show_default=True, help="Of each bound.")
@_neighbours_option
@_mechanism_options
@_cluster_options
@click.option("--plot", type=_PATH, help="Draw the privacy profile, claimed, proved and measured, to this picture.")
@_json_option
def audit_command(
    mechanism: str, epsilon: str, delta: str | None, columns: int, draws: int, confidence: float, neighbours: str,
    options: tuple[str, ...], arithmetic: str | None, cluster: Cluster, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Attack MECHANISM on synthetic tables and bound its epsilon and delta from below. Touches no ledger."""
    from dpdist import audit  # noqa: PLC0415 - scipy's distributions are slow to import, and only needed here

    request = config.request_from(
        epsilon=epsilon, delta=delta, clip=1.0, mechanism=mechanism, neighbours=neighbours, centre="none",
        grid_bits=16, period="", name=None, folder=Path(), options=_options(options, arithmetic),
    )  # fmt: skip
    bound = request.bound(columns)
    query = LatticeQuery(bound.width, bound.norm_bound, request.neighbours)
    task = AuditTask(mechanism, query, request.loss, dict(request.options), draws)
    result = audit.run(task, 1 - confidence, cluster)
    if plot is not None:
        audit.plot(result, plot)
    _answer(as_json, {**result.to_json(), "plot": plot and str(plot)}, result.words())


@cli.group()
def ledger() -> None:
    """Create, show, check or export a budget."""


@ledger.command("create")
@click.argument("ledger", type=_LEDGER)
@click.option("--rows", required=True, type=_PATH, help="The rows whose budget it is.")
@_budget_options
@_json_option
def ledger_create(
    ledger: Place, rows: Path, budget_epsilon: str | None, budget_delta: str | None, as_json: bool
) -> None:
    """Declare a budget for ROWS in LEDGER, a new folder or postgresql+psycopg://USER@HOST/DATABASE?ledger=NAME."""
    made = pipeline.create_ledger(ledger, rows, _budget(budget_epsilon, budget_delta))
    _answer(as_json, {"ledger": str(ledger), **_loss_json(made.budget)}, f"{ledger}: budget {made.budget}.")


@ledger.command("show")
@click.argument("ledger", type=_LEDGER)
@_json_option
def ledger_show(ledger: Place, as_json: bool) -> None:
    """Show budget, balance and releases."""
    opened = Ledger(ledger)
    spent, records = opened.spent(), opened.records
    if as_json:
        click.echo(json.dumps(_ledger_json(opened)))
        return
    click.echo(f"budget  {opened.budget}")
    whole = "nothing" if spent is None else f"epsilon {spent.epsilon:g} at the budget's delta {spent.delta:g}"
    click.echo(f"spent   {whole}")
    for record in records:
        click.echo(
            f"{record.state:<10} {record.release_id}  {record.parameters['mechanism']}, {record.guarantee.loss}, "
            f"{record.guarantee.neighbours}"
        )


@ledger.command("verify")
@click.argument("ledger", type=_LEDGER)
@click.option("--release", "releases", type=_PATH, multiple=True, help="A release it must know of; repeatable.")
@_json_option
def ledger_verify(ledger: Place, releases: tuple[Path, ...], as_json: bool) -> None:
    """Check the journal's chain, the balance, the committed releases, and that no published RELEASE was forgotten."""
    opened = pipeline.verify_ledger(ledger, releases)
    value = {"ledger": str(ledger), "intact": True, "head": opened.head, "releases": len(opened.records)}
    _answer(as_json, value, f"{ledger}: intact, {len(opened.records)} releases, head {opened.head}.")


@ledger.command("export")
@click.argument("ledger", type=_LEDGER)
def ledger_export(ledger: Place) -> None:
    """Print the ledger as JSON."""
    click.echo(json.dumps(_ledger_json(Ledger(ledger)), indent=2))


def _loss_json(loss: PrivacyLoss) -> dict[str, int]:
    return {"epsilon_micro": loss.epsilon_micro, "delta_atto": loss.delta_atto}


def _ledger_json(opened: Ledger) -> dict[str, Any]:
    spent = opened.spent()
    return {
        "dataset_id": opened.dataset_id,
        "budget": _loss_json(opened.budget),
        "spent": None if spent is None else _loss_json(spent),
        "releases": [
            {
                "id": record.release_id,
                "state": record.state.value,
                "parameters": record.parameters,
                "guarantee": record.guarantee.to_json(),
                "digest": record.digest,
            }
            for record in opened.records
        ],
        "head": opened.head,
    }


@cli.command("demo")
@click.argument("directory", type=_PATH, default=Path("dpdist-demo"))
@_cluster_options
def demo_command(directory: Path, cluster: Cluster) -> None:
    """Do everything on a bundled real data set (1797 handwritten digits), on this machine."""
    from dpdist import demo  # noqa: PLC0415 - scikit-learn, for its data set only, doubles the start-up of every command

    demo.run(directory, cluster)


def main() -> None:
    """Run the command line; every failure is one paragraph on standard error and an exit code."""
    try:
        code = cli(standalone_mode=False)
    except DpdistError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("Interrupted. The same command resumes; what was reserved is not charged again.", 5)
    except Exception as error:  # noqa: BLE001 - its text may quote data, so only type and place are told
        place = traceback.extract_tb(error.__traceback__)[-1]
        _fail(
            f"This is a defect in dpdist: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}. "
            "Please report it with the command you ran.",
            1,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    _say(f"dpdist: {message}")
    sys.exit(code)
