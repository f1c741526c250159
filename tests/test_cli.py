"""The command line: exit codes, one paragraph per failure, one JSON object, and nothing spent or left by a failure."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from distributed import LocalCluster

from dpdist import __version__, accounts, cli, engine, pipeline
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.privacy.ledger import Ledger
from dpdist.release.artefact import open_release
from dpdist.rows import dataset
from dpdist.rows.dataset import created, open_rows

ROWS, COLUMNS = 50, 3
CHUNKS = 5
BUDGET = PrivacyLoss.parse("2", "1e-5")
LOSS = ("--epsilon", "1", "--delta", "1e-6", "--clip", "300")


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output, which must hold nothing else."""
        assert self.out.count("\n") == 1
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def message(self) -> str:
        """The one paragraph that says what went wrong; only labels of progress may stand before it."""
        assert self.out == ""
        assert "Traceback" not in self.err
        *labels, message = self.err.splitlines()
        assert set(labels) <= {"Ingesting", "Summing rows", "Projecting rows"}
        assert message.startswith("dpdist: ")
        return message


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command in this process."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert isinstance(stop.value.code, int)
        return Said(stop.value.code, *capsys.readouterr())

    return run


def start(*arguments: object, folder: Path, script: Path | None = None) -> Said:
    """Run a command, or a script that calls it, in a process of its own."""
    program = ["-m", "dpdist"] if script is None else [str(script)]
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with rows in several chunks and their ledger, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    rows = np.random.default_rng(9).integers(0, 255, size=(ROWS, COLUMNS), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", rows.nbytes // CHUNKS)
        with created(folder / "rows.zarr", rows=ROWS, dtype="uint8", names=("a", "b", "c"), budget=BUDGET) as writer:
            writer.append(rows)
    accounts.create_ledger(folder / "rows.ledger", folder / "rows.zarr")
    return folder


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a fresh folder that holds rows.zarr and rows.ledger."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_nothing_spent(folder: Path, *more: str) -> None:
    """Check that a failure cost nothing and left nothing, besides what the test itself put there."""
    ledger = Ledger(folder / "rows.ledger")
    assert ledger.spent() is None
    assert names_in(folder) == sorted(["rows.ledger", "rows.zarr", *more])
    assert names_in(folder / "rows.ledger") == ["blobs", "ledger.sqlite"]
    assert names_in(folder / "rows.ledger" / "blobs") == []


# Processes of their own


def test_the_installed_command_is_the_module(tmp_path: Path) -> None:
    said = start("mechanisms", "--json", folder=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert [m["name"] for m in said.json["mechanisms"]] == list(MECHANISMS)


def test_a_refused_number_is_one_paragraph_and_exit_4_in_a_real_process(here: Path) -> None:
    said = start("release", "rows.zarr", "release.zarr", "--epsilon", "0", "--clip", "1", "--json", folder=here)
    assert said.code == 4
    assert "Epsilon must be positive" in said.message
    assert_nothing_spent(here)


def test_a_bad_option_is_exit_2_without_a_traceback_in_a_real_process(here: Path) -> None:
    said = start("release", "rows.zarr", "release.zarr", *LOSS, "--mechanism", "laplace", folder=here)
    assert (said.code, said.out) == (2, "")
    assert "gaussian" in said.err
    assert "Traceback" not in said.err
    assert_nothing_spent(here)


def test_an_altered_chunk_found_by_a_worker_process_is_still_one_paragraph(here: Path) -> None:
    # Dask's workers like to log the traceback of a failed task on our standard error
    file = here / "rows.zarr" / "c" / "2" / "0"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(bytes(content))
    said = start("release", "rows.zarr", "release.zarr", *LOSS, "--workers", "1", folder=here)
    assert said.code == 4
    assert "Chunk 2" in said.message
    assert_nothing_spent(here)


@pytest.mark.parametrize("address", ["127.0.0.1", "tls://127.0.0.1:1", "tcp://127.0.0.1:port"])
def test_an_address_that_is_none_is_refused_without_a_traceback(here: Path, address: str) -> None:
    # a forgotten port, a cluster with TLS: what people really type
    said = start("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address, folder=here)
    assert said.code in {2, 4}
    assert address in said.message
    assert_nothing_spent(here)


DEFECT = """
import sys
from dpdist import cli, accounts, pipeline

def broken(task):
    raise RuntimeError("sentinel-73519")

if __name__ == "__main__":
    pipeline.partition_moment = broken
    sys.argv[0] = "dpdist"
    cli.main()
"""


def test_a_defect_in_a_worker_process_tells_its_type_and_place_but_not_its_text(here: Path) -> None:
    (here.parent / "defect.py").write_text(DEFECT)
    arguments = ("release", "rows.zarr", "release.zarr", *LOSS, "--workers", "1")
    said = start(*arguments, folder=here, script=here.parent / "defect.py")
    assert said.code == 1
    assert "sentinel" not in said.out + said.err
    assert re.search(r"RuntimeError at defect\.py:\d+", said.err)
    assert not (here / "release.zarr").exists()


JOB = """
[rows]
path = "rows.zarr"
source = "table.csv"
budget_epsilon = 2
budget_delta = 1e-5

[release]
path = "release.zarr"
epsilon = 1
delta = 1e-6
clip = 300
{release}

[pca]
path = "model.zarr"
components = 2

[project]
path = "scores.zarr"

[cluster]
{cluster}
"""


def write_job(folder: Path, cluster: str, release: str = "", components: int = 2) -> Path:
    text = JOB.format(cluster=cluster, release=release)
    (folder / "job.toml").write_text(text.replace("components = 2", f"components = {components}"))
    rows = np.random.default_rng(10).integers(0, 255, size=(40, 3))
    lines = ["a,b,c", *(",".join(map(str, row)) for row in rows.tolist())]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "job.toml"


OUTPUTS = ("rows.zarr", "release.zarr", "model.zarr", "scores.zarr")


def test_a_job_run_twice_by_real_workers_publishes_once_and_changes_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path, "workers = 1")
    first = start("run", job, "--json", folder=tmp_path)
    assert first.code == 0
    files = {name: tree(tmp_path / name) for name in OUTPUTS}
    head = Ledger(tmp_path / "rows.ledger").head

    again = start("run", job, "--json", folder=tmp_path)
    assert again.code == 0
    assert {name: tree(tmp_path / name) for name in OUTPUTS} == files
    assert Ledger(tmp_path / "rows.ledger").head == head  # nothing was even written

    assert (first.json["release"]["fresh"], again.json["release"]["fresh"]) == (True, False)
    assert first.json["model"] == str(tmp_path / "model.zarr")
    assert first.json["scores"] == str(tmp_path / "scores.zarr")
    assert len(Ledger(tmp_path / "rows.ledger").records) == 1
    assert names_in(tmp_path) == sorted([*OUTPUTS, "rows.ledger", "job.toml", "table.csv"])


# A release that succeeds


def test_a_release_tells_what_was_guaranteed_in_words_and_in_json(here: Path, call: Call, scheduler: str) -> None:
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert (said.code, said.out) == (0, "")
    assert "gaussian, epsilon 1, delta 1e-06 under replace-one, integer-exact" in said.err
    again = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler, "--json")
    assert again.code == 0
    assert again.json["release"] == "release.zarr"
    assert again.json["fresh"] is False
    assert again.json["guarantee"]["epsilon_micro"] == 10**6
    assert again.json["guarantee"]["delta_atto"] == 10**12
    assert again.json["n"] == ROWS
    spent = Ledger(here / "rows.ledger").spent()
    assert spent is not None
    assert spent.epsilon_micro <= 10**6


def test_the_same_release_again_is_the_same_bytes_and_needs_no_cluster(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    first, spent = tree(here / "release.zarr"), Ledger(here / "rows.ledger").spent()
    shutil.rmtree(here / "release.zarr")
    # nobody answers there; the bytes come from the ledger
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", "tcp://127.0.0.1:1")
    assert said.code == 0
    assert "nothing spent" in said.err
    assert tree(here / "release.zarr") == first
    assert Ledger(here / "rows.ledger").spent() == spent


def test_without_a_delta_the_release_is_pure(here: Path, call: Call, scheduler: str) -> None:
    arguments = ("--epsilon", "1", "--clip", "300", "--neighbours", "add-remove", "--scheduler", scheduler, "--json")
    said = call("release", "rows.zarr", "release.zarr", *arguments)
    assert said.json["mechanism"] == "two-sided-wishart"
    assert said.json["n"] is None
    published = (here / "release.zarr" / "zarr.json").read_text()  # of which random hexadecimal words are no numbers
    assert str(ROWS) not in re.findall(r"(?<![0-9a-f])\d+(?![0-9a-f])", published)


def test_the_options_of_a_release_reach_it(here: Path, call: Call, scheduler: str) -> None:
    (here / "public.json").write_text('{"centre": [100, 100, 100], "scale": [2, 2, 2]}')
    options = ("--centre", "public.json", "--grid-bits", "9", "--id", "week-47", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "release.zarr", *LOSS, *options).code == 0
    found = open_release(here / "release.zarr")
    assert (found.release_id, found.bound.grid_bits, found.bound.clip_norm) == ("week-47", 9, 300.0)
    assert (found.bound.centre, found.bound.scale) == ((100.0,) * 3, (2.0,) * 3)
    private = (*LOSS, "--centre", "private", "--id", "week-48", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "centred.zarr", *private).code == 0
    assert open_release(here / "centred.zarr").row_sum is not None


# A release that is refused. Without its own --scheduler or --workers each of these uses the running cluster.

REFUSED: list[tuple[int, str, tuple[str, ...]]] = [
    # numbers
    (4, "Epsilon must be positive", ("--epsilon", "0")),
    (4, "Epsilon", ("--epsilon", "-1")),
    (4, "Epsilon", ("--epsilon", "nan")),
    (4, "Epsilon", ("--epsilon", "inf")),
    (4, "Epsilon", ("--epsilon", "1e999999999")),
    (4, "millionths", ("--epsilon", "1e-7")),
    (2, "Epsilon must be a number", ("--epsilon", "abc")),
    (2, "Epsilon must be a number", ("--epsilon", "")),
    (4, "Delta", ("--delta", "0")),
    (4, "Delta", ("--delta", "1")),
    (4, "Delta", ("--delta", "-1")),
    (4, "Delta", ("--delta", "2")),
    (4, "Delta", ("--delta", "nan")),
    (4, "1e-18", ("--delta", "1e-19")),
    (2, "Delta must be a number", ("--delta", "abc")),
    (4, "--clip", ("--clip", "0")),
    (4, "--clip", ("--clip", "-1")),
    (4, "--clip", ("--clip", "nan")),
    (4, "--clip", ("--clip", "inf")),
    (4, "clip norm", ("--clip", "1e200")),
    (2, "--grid-bits", ("--grid-bits", "0")),
    (2, "--grid-bits", ("--grid-bits", "99")),
    # names and combinations
    (2, "takes no delta", ("--mechanism", "two-sided-wishart")),
    (2, "--workers", ("--workers", "0")),
    (2, "--workers", ("--workers", "-3")),
    (2, "unset variable", ("--scheduler", "")),
    (2, "not both", ("--workers", "1", "--scheduler", "tcp://127.0.0.1:1")),
    (2, "--id", ("--id", "")),
    (2, "--id", ("--id", "week.47")),
    (2, "--id", ("--id", "../week")),
    (2, "--id", ("--id", "a b")),
    (2, "--id", ("--id", "w" * 65)),
    (4, "--centre", ("--centre", "mean")),
    (4, "--centre", ("--centre", "nothing.npy")),
    (2, "for 3 columns", ("--centre", "narrow.json")),
    # budget
    (3, "the budget of", ("--epsilon", "2.5")),
    (3, "the budget of", ("--delta", "1e-4", "--epsilon", "1.9")),
    (3, "restore it from a copy", ("--ledger", "nothing.ledger")),
    (3, "not the ledger of", ("--ledger", "other.ledger")),
    # places
    (3, "restore it from a copy", ("--ledger", "empty.ledger")),
    (4, "trusted", ("--trusted", "worker")),
]


@pytest.mark.parametrize(("code", "words", "options"), REFUSED, ids=[" ".join(case[2])[:60] for case in REFUSED])
def test_a_refused_release_says_why_and_costs_nothing(
    here: Path, call: Call, scheduler: str, code: int, words: str, options: tuple[str, ...]
) -> None:
    (here / "narrow.json").write_text('{"centre": [1, 2]}')
    (here / "empty.ledger").mkdir()
    Ledger.create(here / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    arguments = ["release", "rows.zarr", "release.zarr", *LOSS, *options]
    if not {"--scheduler", "--workers"} & set(options):
        arguments += ["--scheduler", scheduler]
    said = call(*arguments)
    assert said.code == code
    assert re.search(words, said.message)
    assert_nothing_spent(here, "narrow.json", "empty.ledger", "other.ledger")
    assert Ledger(here / "other.ledger").spent() is None


def test_a_gaussian_without_a_delta_is_refused_with_the_way_out(here: Path, call: Call) -> None:
    said = call("release", "rows.zarr", "release.zarr", "--epsilon", "1", "--clip", "1", "--mechanism", "gaussian")
    assert said.code == 2
    assert "--mechanism two-sided-wishart" in said.message
    assert_nothing_spent(here)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage"),
        (("rows.zarr",), "RELEASE"),
        (("rows.zarr", "release.zarr", "--epsilon", "1"), "--clip"),
        (("rows.zarr", "release.zarr", "--clip", "1"), "--epsilon"),
        (("rows.zarr", "release.zarr", *LOSS, "--clip", "abc"), "--clip"),
        (("rows.zarr", "release.zarr", *LOSS, "--grid-bits", "1.5"), "--grid-bits"),
        (("rows.zarr", "release.zarr", *LOSS, "--workers", "two"), "--workers"),
        (("rows.zarr", "release.zarr", *LOSS, "--mechanism", "laplacian"), "two-sided-wishart"),
        (("rows.zarr", "release.zarr", *LOSS, "--neighbours", "add"), "add-remove"),
        (("rows.zarr", "release.zarr", *LOSS, "--trusted", "client"), "driver"),
        (("rows.zarr", "release.zarr", *LOSS, "--seed", "1"), "--seed"),
    ],
    ids=str,
)
def test_a_malformed_release_command_is_usage(here: Path, call: Call, arguments: tuple[str, ...], words: str) -> None:
    said = call("release", *arguments)
    assert (said.code, said.out) == (2, "")
    assert words in said.err
    assert "Traceback" not in said.err
    assert_nothing_spent(here)


def test_a_release_over_what_is_left_is_refused_with_what_is_left(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    before, head = tree(here / "release.zarr"), Ledger(here / "rows.ledger").head
    # Gaussian releases compose exactly, so only one that takes the whole budget is certainly too much
    more = ("--epsilon", "2", "--delta", "1e-5", "--clip", "300", "--scheduler", scheduler)
    said = call("release", "rows.zarr", "second.zarr", *more)
    assert said.code == 3
    assert "costs epsilon 2" in said.message
    assert "already spent" in said.message
    assert "is epsilon 2, delta 1e-05" in said.message
    assert Ledger(here / "rows.ledger").head == head
    assert tree(here / "release.zarr") == before
    assert not (here / "second.zarr").exists()


def test_an_id_that_stands_for_other_parameters_is_refused_with_what_differs(
    here: Path, call: Call, scheduler: str
) -> None:
    common = ("--delta", "1e-6", "--id", "week-47", "--scheduler", scheduler)
    assert call("release", "rows.zarr", "r.zarr", "--epsilon", "0.5", "--clip", "300", *common).code == 0
    said = call("release", "rows.zarr", "s.zarr", "--epsilon", "0.5", "--clip", "301", *common)
    assert said.code == 3
    assert "bound differ" in said.message
    assert not (here / "s.zarr").exists()


def test_another_relation_than_that_of_the_first_release_is_refused(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "r.zarr", *LOSS, "--scheduler", scheduler).code == 0
    said = call(
        "release", "rows.zarr", "s.zarr", "--epsilon", "0.1", "--clip", "300", "--neighbours", "add-remove",
        "--scheduler", scheduler,
    )  # fmt: skip
    assert said.code == 3
    assert "--neighbours replace-one" in said.message
    assert not (here / "s.zarr").exists()


# Rows that cannot be used


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _replace_rows(*, by_array: bool) -> None:
    shutil.rmtree("rows.zarr")
    if by_array:
        zarr.create_array("rows.zarr", data=np.ones((4, 3)))
    else:
        Path("rows.zarr").write_text("a,b\n1,2\n")


CHUNK = Path("rows.zarr", "c", "2", "0")
DAMAGES: dict[str, tuple[str, Callable[[], object]]] = {
    "no rows at all": ("no usable rows", lambda: shutil.rmtree("rows.zarr")),
    "a chunk deleted": ("chunk 2 of 5 is missing", CHUNK.unlink),
    "a chunk truncated": ("chunk 2 of 5 is truncated", lambda: _rewrite(CHUNK, lambda b: b[:-1])),
    "a chunk emptied": ("chunk 2 of 5 is truncated", lambda: CHUNK.write_bytes(b"")),
    "a chunk too long": ("chunk 2 of 5 is truncated or too long", lambda: _rewrite(CHUNK, lambda b: b + b"0")),
    "a chunk altered": ("Chunk 2 .* was altered", lambda: _rewrite(CHUNK, lambda b: bytes([b[0] ^ 1]) + b[1:])),
    "garbage in zarr.json": ("no usable rows", lambda: Path("rows.zarr/zarr.json").write_bytes(b"\xff{garbage")),
    "an empty zarr.json": ("no usable rows", lambda: Path("rows.zarr/zarr.json").write_text("")),
    "no zarr.json": ("no usable rows", lambda: Path("rows.zarr/zarr.json").unlink()),
    "a foreign array": ("no usable rows", lambda: _replace_rows(by_array=True)),
    "a file": ("no usable rows", lambda: _replace_rows(by_array=False)),
}


@pytest.mark.parametrize(("words", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_unusable_rows_are_exit_4_with_the_place_and_the_cure(
    here: Path, call: Call, scheduler: str, words: str, damage: Callable[[], object]
) -> None:
    damage()
    before = names_in(here)
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert said.code == 4
    assert re.search(words, said.message)
    assert "rows.zarr" in said.message
    assert "ingest" in said.message
    assert Ledger(here / "rows.ledger").spent() is None
    assert names_in(here) == before
    assert names_in(here / "rows.ledger" / "blobs") == []


def test_a_chunk_that_was_mended_is_released_under_the_same_id(here: Path, call: Call, scheduler: str) -> None:
    # the reservation was refunded; a refund must not bar the way
    sound = CHUNK.read_bytes()
    CHUNK.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 4
    CHUNK.write_bytes(sound)
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    assert [r.state.value for r in Ledger(here / "rows.ledger").records] == ["published"]


# Clusters that cannot be used


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_port_where_nothing_listens_is_an_unreachable_scheduler(here: Path, call: Call) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    for address in (f"tcp://127.0.0.1:{port}", "tcp://127.0.0.1:1", f"127.0.0.1:{port}"):
        said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", address)
        assert said.code == 4
        assert f"No Dask scheduler answers at {address}" in said.message
        assert "--scheduler" in said.message
    assert_nothing_spent(here)


@pytest.mark.usefixtures("impatient")
def test_a_port_that_never_answers_is_given_up_in_time(here: Path, call: Call) -> None:
    # the connection succeeds, the greeting never comes: without a limit this test would not end
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        said = call(
            "release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", f"tcp://127.0.0.1:{server.getsockname()[1]}"
        )
    assert said.code == 4
    assert "No Dask scheduler answers" in said.message
    assert_nothing_spent(here)


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_without_workers_is_refused_with_how_to_start_some(here: Path, call: Call) -> None:
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", cluster.scheduler_address)
        assert said.code == 4
        assert "has no workers" in said.message
        assert f"dask worker {cluster.scheduler_address}" in said.message
    assert_nothing_spent(here)


# Places that cannot be written


@pytest.mark.parametrize("kind", ["file", "folder", "link to nowhere"])
def test_a_release_never_replaces_what_exists(here: Path, call: Call, scheduler: str, kind: str) -> None:
    target = here / "release.zarr"
    if kind == "file":
        target.write_text("precious")
    elif kind == "folder":
        target.mkdir()
        (target / "precious").write_text("precious")
    else:
        target.symlink_to(here / "nowhere")
    before = tree(here)
    said = call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler)
    assert said.code == 4
    assert "exists already" in said.message
    assert_nothing_spent(here, "release.zarr")
    assert {k: v for k, v in tree(here).items() if "ledger" not in k} == {
        k: v for k, v in before.items() if "ledger" not in k
    }


def test_a_release_of_something_else_is_not_replaced(here: Path, call: Call, scheduler: str) -> None:
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    before, head = tree(here / "release.zarr"), Ledger(here / "rows.ledger").head
    less = ("--epsilon", "0.1", "--delta", "1e-6", "--clip", "300", "--scheduler", scheduler)
    said = call("release", "rows.zarr", "release.zarr", *less)
    assert said.code == 4
    assert "exists already" in said.message
    assert tree(here / "release.zarr") == before
    assert Ledger(here / "rows.ledger").head == head


def test_a_release_into_a_folder_that_does_not_exist_is_refused(here: Path, call: Call, scheduler: str) -> None:
    said = call("release", "rows.zarr", "results/release.zarr", *LOSS, "--scheduler", scheduler)
    assert said.code == 4
    assert f"{here / 'results'} does not exist" in said.message
    assert_nothing_spent(here)


@pytest.mark.parametrize(
    "command",
    [
        ("ingest", "table.csv", ".", "--budget-epsilon", "1"),
        ("ingest", "table.csv", "..", "--budget-epsilon", "1"),
        ("ingest", "table.csv", "/", "--budget-epsilon", "1"),
        ("ingest", "table.csv", "", "--budget-epsilon", "1"),
        ("ingest", "table.csv", ""),
        ("release", "rows.zarr", "", *LOSS),
        ("release", "", "release.zarr", *LOSS),
        ("release", ".", "release.zarr", *LOSS),
        ("pca", "release.zarr", "", "--components", "1"),
        ("pca", "", "model.zarr", "--components", "1"),
        ("project", "rows.zarr", "", "scores.zarr"),
        ("ledger", "show", ""),
        ("ledger", "create", "", "--rows", "rows.zarr"),
        ("ledger", "create", "/", "--rows", "rows.zarr"),
        ("run", ""),
        ("run", "."),
    ],
    ids=" ".join,
)
def test_a_path_that_names_no_file_is_not_taken_for_a_defect(
    here: Path, call: Call, scheduler: str, command: tuple[str, ...]
) -> None:
    # an unset shell variable is an empty path
    (here / "table.csv").write_text("a,b\n1,2\n3,4\n")
    extra = ("--scheduler", scheduler) if command[0] in {"release", "project"} else ()
    said = call(*command, *extra)
    assert said.code in {2, 4}
    assert_nothing_spent(here, "table.csv")


# Defects and interruptions


def test_an_unexpected_error_tells_its_type_and_place_but_not_its_text(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("sentinel-73519") from ValueError("sentinel-73519 in the cause")

    monkeypatch.setattr(pipeline, "open_rows", broken)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 1
    assert re.search(r"defect in dpdist: RuntimeError at test_cli\.py:\d+", said.message)
    assert "sentinel" not in said.message
    assert "report" in said.message
    assert_nothing_spent(here)


def test_an_interruption_is_exit_5(here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "open_rows", interrupted)
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 5
    assert said.err == "\ndpdist: Interrupted. The same command resumes; what was reserved is not charged again.\n"
    assert_nothing_spent(here)


# Ingest


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (("--budget-epsilon", "0"), 4),
        (("--budget-epsilon", "-1"), 4),
        (("--budget-epsilon", "nan"), 4),
        (("--budget-epsilon", "lots"), 2),
        (("--budget-epsilon", "1", "--budget-delta", "1"), 4),
        (("--budget-delta", "1e-6"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_bad_budget_is_refused_and_no_rows_are_written(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, budget: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3)))
    said = call("ingest", "table.npy", "rows.zarr", *budget)
    assert said.code == code
    assert said.message
    assert names_in(tmp_path) == ["table.npy"]


def test_ingest_tells_what_it_made(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("table.npy", np.ones((4, 3), dtype=np.uint8))
    declared = ("--budget-epsilon", "0.1", "--budget-delta", "1e-6")
    said = call("ingest", "table.npy", "rows.zarr", *declared, "--columns", "c2, c0", "--json")
    assert said.code == 0
    table = open_rows(tmp_path / "rows.zarr")
    assert said.json == {
        "rows": "rows.zarr",
        "n": 4,
        "d": 2,
        "dtype": "uint8",
        "chunks": 1,
        "dataset_id": table.dataset_id,
        "ledger": "rows.ledger",
    }
    assert table.names == ("c2", "c0")
    assert Ledger(tmp_path / "rows.ledger").budget == PrivacyLoss(100_000, 10**12)
    words = call("ingest", "table.npy", "more.zarr")
    assert (words.code, words.out) == (0, "")
    assert "more.zarr: 4 rows of 3 columns" in words.err
    assert "No budget declared" in words.err


def test_ingest_never_replaces_rows_or_a_ledger(here: Path, call: Call) -> None:
    (here / "table.csv").write_text("a,b\n1,2\n3,4\n")
    before = tree(here)
    said = call("ingest", "table.csv", "rows.zarr")
    assert said.code == 4
    assert "exists already" in said.message
    shutil.rmtree("rows.zarr")  # the ledger still knows what was spent on these rows
    said = call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "9")
    assert said.code == 4
    assert "only record of what was spent" in said.message
    assert not (here / "rows.zarr").exists()
    assert {k: v for k, v in before.items() if "ledger" in k} == {k: v for k, v in tree(here).items() if "ledger" in k}


PLANTED = "73519.625"


def _plant(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def _plant_npy(name: str, values: Any, cut: int | None = None) -> Callable[[], object]:
    def write() -> None:
        with Path(name).open("wb") as file:
            np.save(file, values)
        Path(name).write_bytes(Path(name).read_bytes()[:cut])

    return write


HEAD = f"a,b,c\n{PLANTED},1,2\n3,{PLANTED},4\n"
BAD_SOURCES: dict[str, tuple[str, Callable[[], object]]] = {
    "a cell with a unit": ("t.csv", _plant("t.csv", HEAD + f"5,6,{PLANTED}kg\n")),
    "two numbers in a cell": ("t.csv", _plant("t.csv", HEAD + f"5,6,{PLANTED};{PLANTED}\n")),
    "a cell too many": ("t.csv", _plant("t.csv", HEAD + f"5,6,7,{PLANTED}\n")),
    "a cell too few": ("t.csv", _plant("t.csv", HEAD + f"5,{PLANTED}\n")),
    "a missing value": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},,{PLANTED}\n")),
    "not a number": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},nan,{PLANTED}\n")),
    "infinity": ("t.csv", _plant("t.csv", HEAD + f"{PLANTED},1e999,{PLANTED}\n")),
    "an open quote": ("t.csv", _plant("t.csv", HEAD + f'{PLANTED},"{PLANTED},1\n')),
    "another separator": ("t.csv", _plant("t.csv", f"{PLANTED};1;2\n{PLANTED};3;4\n")),
    "one column": ("t.csv", _plant("t.csv", f"a\n{PLANTED}\n")),
    "a gzip that is none": ("t.csv.gz", _plant("t.csv.gz", HEAD)),
    "words in an array": ("t.npy", _plant_npy("t.npy", np.array([[PLANTED, "x"], ["y", "z"]]))),
    "one dimension": ("t.npy", _plant_npy("t.npy", np.full(3, float(PLANTED)))),
    "a NaN in an array": ("t.npy", _plant_npy("t.npy", np.array([[float(PLANTED), 1], [np.nan, 2]]))),
    "a truncated array": ("t.npy", _plant_npy("t.npy", np.full((4, 3), float(PLANTED)), -5)),
    "text that claims to be an array": ("t.npy", _plant("t.npy", HEAD)),
    "text that claims to be an archive": ("t.npz", _plant("t.npz", HEAD)),
    "text that claims to be parquet": ("t.parquet", _plant("t.parquet", HEAD)),
    "another kind of file": ("t.txt", _plant("t.txt", HEAD)),
    "nothing there": ("t.csv", lambda: None),
}


@pytest.mark.parametrize(("source", "plant"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_no_message_about_bad_data_repeats_a_value_of_it(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, source: str, plant: Callable[[], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    plant()
    before = names_in(tmp_path)
    said = call("ingest", source, "rows.zarr", "--budget-epsilon", "1")
    assert said.code == 4
    assert source in said.message
    assert "73519" not in said.message
    assert names_in(tmp_path) == before


def test_no_message_about_damaged_rows_repeats_a_value_of_them(
    tmp_path: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(f"a,b\n{PLANTED},{PLANTED}\n{PLANTED},1\n".encode()))
    assert call("ingest", "table.csv.gz", "rows.zarr", "--budget-epsilon", "2").code == 0
    chunk = tmp_path / "rows.zarr" / "c" / "0" / "0"
    sound = chunk.read_bytes()
    assert np.float64(PLANTED).tobytes() in sound
    for content in (sound[:-1], sound[1:] + sound[:1], PLANTED.encode() * 4, b""):
        chunk.write_bytes(content)
        said = call("release", "rows.zarr", "r.zarr", "--epsilon", "1", "--clip", "300", "--scheduler", scheduler)
        assert said.code == 4
        assert "73519" not in said.message


# Components and scores


@pytest.fixture
def released(here: Path, call: Call, scheduler: str) -> Path:
    """Work beside a release of the rows."""
    assert call("release", "rows.zarr", "release.zarr", *LOSS, "--scheduler", scheduler).code == 0
    return here


def test_pca_and_project_tell_what_they_made(released: Path, call: Call, scheduler: str) -> None:
    said = call("pca", "release.zarr", "model.zarr", "--components", "2", "--json")
    assert said.code == 0
    assert (said.json["model"], said.json["components"]) == ("model.zarr", 2)
    assert len(said.json["eigenvalues"]) == 2
    assert said.json["eigenvalues_per_row"] is True
    said = call("project", "rows.zarr", "model.zarr", "scores.zarr", "--scheduler", scheduler, "--json")
    assert said.code == 0
    assert said.json == {"scores": "scores.zarr", "n": ROWS, "private": True}
    assert zarr.open_array(released / "scores.zarr", mode="r").shape == (ROWS, 2)


def test_pca_says_which_components_stand_above_the_noise(released: Path, call: Call) -> None:
    pytest.importorskip("matplotlib")
    said = call("pca", "release.zarr", "model.zarr", "--components", "3", "--plot", "scree.png")
    assert (said.code, said.out) == (0, "")
    assert "squared cosine if alone" in said.err
    assert "The noise ends at" in said.err
    assert (released / "scree.png").stat().st_size > 1000
    said = call("pca", "release.zarr", "auto.zarr", "--components", "auto", "--json")
    if said.code == 2:  # this release may hide all three
        assert "No component stands above the noise" in said.message
    else:
        assert said.json["components"] == said.json["above_noise"]
        assert said.json["eigenvalues"][-1] > said.json["noise_edge"]
    said = call("pca", "release.zarr", "other.zarr", "--components", "many")
    assert said.code == 2
    assert "a number or auto" in said.message


FORECAST = ("forecast", "--d", "30", "--n", "9000", "--epsilon", "1", "--delta", "1e-6", "--clip", "10")


def test_a_forecast_is_text_json_or_a_picture_and_touches_nothing(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    said = call(*FORECAST, "--spectrum", "40,9,0.01", "--json", "--plot", "forecast.png")
    assert said.code == 0
    assert (said.json["mechanism"], said.json["components_seen"]) == ("gaussian", 2)
    assert said.json["alternatives"][0]["mechanism"] == "gaussian"
    assert names_in(tmp_path) == ["forecast.png"]
    said = call(*FORECAST)
    assert (said.code, said.out) == (0, "")
    assert all(words in said.err for words in ("edge of the noise", "share of C²", "two-sided-wishart"))
    assert "of 3 components will stand" in call(*FORECAST, "--spectrum", "40,9,0.01").err


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "numbers separated by commas", ("--spectrum", "4;2")),
        (2, "squared clip norm", ("--spectrum", "99,2")),
        (3, "sn was published", ("--mechanism", "sn")),
        (2, "no forecast", ("--mechanism", "bingham", "--option", "components=2")),
    ],
)
def test_a_forecast_that_makes_no_sense_is_refused(
    call: Call, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    taken = FORECAST if "--spectrum" in arguments else ("forecast", "--d", "30", "--n", "9", "--epsilon", "1")
    said = call(*taken, *arguments)
    assert said.code == code
    assert words in said.message


def test_whoever_gets_scores_is_told_that_they_are_private(released: Path, call: Call, scheduler: str) -> None:
    assert call("pca", "release.zarr", "model.zarr", "--components", "1").code == 0
    said = call("project", "rows.zarr", "model.zarr", "scores.zarr", "--scheduler", scheduler)
    assert (said.code, said.out) == (0, "")
    assert "PRIVATE" in said.err
    assert names_in(released) == ["model.zarr", "release.zarr", "rows.ledger", "rows.zarr", "scores.zarr"]


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "between 1 and 3", ("release.zarr", "model.zarr", "--components", "0")),
        (2, "between 1 and 3", ("release.zarr", "model.zarr", "--components", "4")),
        (4, "no release at nothing.zarr", ("nothing.zarr", "model.zarr", "--components", "1")),
        (4, "dpdist-rows/1", ("rows.zarr", "model.zarr", "--components", "1")),
        (4, "exists already", ("release.zarr", "rows.zarr", "--components", "1")),
        (4, "does not exist", ("release.zarr", "models/model.zarr", "--components", "1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_components_that_cannot_be_had_are_refused(
    released: Path, call: Call, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    before = tree(released)
    said = call("pca", *arguments)
    assert said.code == code
    assert words in said.message
    assert tree(released) == before


def test_a_private_count_drowned_in_noise_is_refused_in_words(here: Path, call: Call, scheduler: str) -> None:
    # at so small an epsilon half of all releases estimate a negative number of rows: draw until one does
    for i in range(40):
        options = ("--centre", "private", "--neighbours", "add-remove", "--id", f"try-{i}", "--scheduler", scheduler)
        said = call("release", "rows.zarr", f"r{i}.zarr", "--epsilon", "0.000001", "--clip", "300", *options)
        assert said.code == 0
        count = open_release(here / f"r{i}.zarr").row_count
        if count is not None and count <= 0:
            said = call("pca", f"r{i}.zarr", "model.zarr", "--components", "1")
            assert said.code == 2
            assert "noise drowns the data" in said.message
            assert not (here / "model.zarr").exists()
            return
    pytest.fail("no estimate was negative: by chance once in 2^40 runs")


@pytest.mark.parametrize("what", ["no model", "a release", "existing scores", "no rows", "a lost chunk", "no cluster"])
def test_scores_that_cannot_be_had_are_refused_and_leave_nothing(
    released: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert call("pca", "release.zarr", "model.zarr", "--components", "1").code == 0
    places = {"rows": "rows.zarr", "model": "model.zarr", "scores": "scores.zarr", "at": scheduler}
    if what == "no model":
        places["model"] = "nothing.zarr"
    elif what == "a release":
        places["model"] = "release.zarr"
    elif what == "existing scores":
        places["scores"] = "release.zarr"
    elif what == "no rows":
        places["rows"] = "nothing.zarr"
    elif what == "a lost chunk":
        CHUNK.unlink()
    else:
        monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.5)
        places["at"] = "tcp://127.0.0.1:1"
    before = tree(released)
    said = call("project", places["rows"], places["model"], places["scores"], "--scheduler", places["at"])
    assert said.code == 4
    assert said.message
    assert tree(released) == before
    assert not (released / "scores.zarr").exists()


# Whole jobs


def job_here(folder: Path, scheduler: str, **options: Any) -> Path:
    return write_job(folder, f'scheduler = "{scheduler}"', **options)


@pytest.fixture
def done(tmp_path: Path, call: Call, scheduler: str) -> Path:
    """Return the folder of a job that has run."""
    said = call("run", job_here(tmp_path, scheduler))
    assert said.code == 0
    assert said.out == ""
    return tmp_path


def test_a_job_says_every_step_in_words(tmp_path: Path, call: Call, scheduler: str) -> None:
    said = call("run", job_here(tmp_path, scheduler))
    for words in ("ingested, 3 columns", "released now", "2 components", "PRIVATE"):
        assert words in said.err


def test_a_job_whose_model_is_of_another_release_is_refused(done: Path, call: Call, scheduler: str) -> None:
    model = tree(done / "model.zarr")
    (done / "release.zarr").rename(done / "old.zarr")
    said = call("run", job_here(done, scheduler, release='period = "2"'))
    assert said.code == 4
    assert "model.zarr exists already and was made from something else" in said.err
    assert tree(done / "model.zarr") == model


def test_a_job_whose_model_has_another_number_of_components_is_refused(done: Path, call: Call, scheduler: str) -> None:
    before = {name: tree(done / name) for name in OUTPUTS}
    said = call("run", job_here(done, scheduler, components=1))
    assert said.code == 4
    assert "was made from something else" in said.err
    assert {name: tree(done / name) for name in OUTPUTS} == before


def test_a_job_whose_scores_are_of_other_rows_is_refused(done: Path, call: Call, scheduler: str) -> None:
    file = done / "scores.zarr" / "zarr.json"
    whole = json.loads(file.read_text())
    whole["attributes"]["dpdist"]["dataset_id"] = "0" * 32
    file.write_text(json.dumps(whole))
    said = call("run", job_here(done, scheduler))
    assert said.code == 4
    assert "scores.zarr exists already and was made from something else" in said.err


@pytest.mark.parametrize("lost", ["release.zarr", "model.zarr", "scores.zarr"])
def test_a_job_run_again_makes_what_is_missing_and_spends_nothing(
    done: Path, call: Call, scheduler: str, lost: str
) -> None:
    before, spent = tree(done / lost), Ledger(done / "rows.ledger").spent()
    shutil.rmtree(done / lost)
    assert call("run", job_here(done, scheduler)).code == 0
    assert tree(done / lost) == before
    assert Ledger(done / "rows.ledger").spent() == spent


def test_a_job_without_rows_and_without_a_source_is_refused(tmp_path: Path, call: Call, scheduler: str) -> None:
    job = job_here(tmp_path, scheduler)
    job.write_text("\n".join(line for line in job.read_text().splitlines() if not line.startswith("source")))
    said = call("run", job)
    assert said.code == 4
    assert "dpdist ingest" in said.message
    assert names_in(tmp_path) == ["job.toml", "table.csv"]


def test_a_job_that_cannot_be_read_starts_nothing(tmp_path: Path, call: Call, scheduler: str) -> None:
    job = job_here(tmp_path, scheduler, release="epsilonn = 1")
    said = call("run", job)
    assert said.code == 2
    assert "'epsilonn'" in said.message
    assert call("run", tmp_path / "nothing.toml").code == 4
    assert names_in(tmp_path) == ["job.toml", "table.csv"]


# Mechanisms, ledgers, help


def test_mechanisms_are_listed_in_words_with_claim_and_proof(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    said = call("mechanisms")
    assert (said.code, said.err) == (0, "")
    for mechanism in MECHANISMS.values():
        for text in (mechanism.statement.name, mechanism.statement.claimed, mechanism.statement.proved):
            assert text in said.out
    # in a terminal the same words are wrapped to its width
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    narrow = call("mechanisms").out
    assert max(map(len, narrow.splitlines())) <= 100


def test_one_mechanism_is_told_with_its_options(call: Call) -> None:
    said = call("mechanisms", "power-published")
    assert said.code == 0
    assert "instead      power" in said.out
    assert "--option components=..." in said.out
    assert "required" in said.out
    assert call("mechanisms", "nothing").code == 2


def test_mechanisms_are_listed_in_json_with_every_field_of_the_design(call: Call) -> None:
    listed = call("mechanisms", "--json").json["mechanisms"]
    for entry, mechanism in zip(listed, MECHANISMS.values(), strict=True):
        for field in ("name", "output", "claimed", "proved", "arithmetic", "cost", "delta"):
            assert entry[field] == getattr(mechanism.statement, field)


@pytest.fixture
def without_ledger(here: Path) -> Path:
    """Work where ingest died before it created the ledger of the declared budget."""
    shutil.rmtree(here / "rows.ledger")
    rewrite_attributes(here / "rows.zarr", ledger_id=None)
    return here


def rewrite_attributes(rows: Path, **changes: Any) -> None:
    file = rows / "zarr.json"
    whole = json.loads(file.read_text())
    whole["attributes"]["dpdist"].update(changes)
    file.write_text(json.dumps(whole))


def test_a_ledger_is_created_with_an_exact_budget_once(without_ledger: Path, call: Call) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    said = call(*create, "--budget-epsilon", "0.3", "--budget-delta", "1e-6", "--json")
    assert said.code == 0
    assert said.json == {"ledger": "new.ledger", "epsilon_micro": 300_000, "delta_atto": 10**12}
    table = open_rows(without_ledger / "rows.zarr")
    assert (table.budget, table.ledger_id) == (PrivacyLoss(300_000, 10**12), Ledger(Path("new.ledger")).ledger_id)
    before = tree(without_ledger)
    # a second ledger, wherever it stands and whatever its budget, would pay for a second draw of the same release
    for place in ("new.ledger", "second.ledger"):
        again = call("ledger", "create", place, "--rows", "rows.zarr", "--budget-epsilon", "9")
        assert again.code == 3
        assert "has a ledger already" in again.message
    assert tree(without_ledger) == before


def test_a_ledger_without_a_budget_takes_the_one_the_rows_declare(without_ledger: Path, call: Call) -> None:
    refused = call("ledger", "create", "new.ledger", "--rows", "rows.zarr", "--budget-epsilon", "9")
    assert refused.code == 3
    assert "declared once" in refused.message
    said = call("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    assert said.code == 0
    assert Ledger(without_ledger / "new.ledger").budget == BUDGET
    assert Ledger(without_ledger / "new.ledger").dataset_id == open_rows(without_ledger / "rows.zarr").dataset_id


def test_a_ledger_that_was_created_but_not_recorded_in_its_rows_is_taken_up(here: Path, call: Call) -> None:
    kept = Ledger(here / "rows.ledger").ledger_id
    rewrite_attributes(here / "rows.zarr", ledger_id=None)
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr").code == 0
    assert open_rows(here / "rows.zarr").ledger_id == kept


def test_a_lost_ledger_is_asked_for_and_not_created_anew(here: Path, call: Call) -> None:
    shutil.rmtree(here / "rows.ledger")
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 3
    assert "restore it from a copy" in said.message
    assert "ledger create" not in said.message
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr").code == 3
    assert not (here / "rows.ledger").exists()


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "--budget-epsilon", ("new.ledger", "--rows", "rows.zarr", "--budget-delta", "1e-6")),
        (4, "Epsilon", ("new.ledger", "--rows", "rows.zarr", "--budget-epsilon", "0")),
        (4, "no usable rows", ("new.ledger", "--rows", "nothing.zarr", "--budget-epsilon", "1")),
        (4, "does not exist", ("ledgers/new.ledger", "--rows", "rows.zarr")),
        (4, "only record of what was spent", ("other.ledger", "--rows", "rows.zarr")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_ledger_that_cannot_be_created_is_refused(
    without_ledger: Path, call: Call, code: int, words: str, arguments: tuple[str, ...]
) -> None:
    Ledger.create(without_ledger / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    before = tree(without_ledger)
    said = call("ledger", "create", *arguments)
    assert said.code == code
    assert words in said.message
    assert tree(without_ledger) == before


def test_a_ledger_of_rows_without_a_declared_budget_needs_one(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with created(tmp_path / "rows.zarr", rows=2, dtype="uint8", names=("a", "b"), budget=None) as writer:
        writer.append(np.ones((2, 2), dtype=np.uint8))
    said = call("ledger", "create", "rows.ledger", "--rows", "rows.zarr")
    assert said.code == 2
    assert "--budget-epsilon" in said.message
    assert names_in(tmp_path) == ["rows.zarr"]


def test_a_fresh_ledger_shows_its_budget_and_that_nothing_was_spent(here: Path, call: Call) -> None:
    said = call("ledger", "show", "rows.ledger")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"budget +epsilon 2, delta 1e-05", said.out)
    assert re.search(r"spent +nothing", said.out)
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert shown["budget"] == {"epsilon_micro": 2_000_000, "delta_atto": 10**13}
    assert shown["dataset_id"] == open_rows(here / "rows.zarr").dataset_id
    assert (shown["spent"], shown["releases"]) == (None, [])


def test_a_ledger_shows_and_exports_its_releases(released: Path, call: Call) -> None:
    release_id = open_release(released / "release.zarr").release_id
    said = call("ledger", "show", "rows.ledger")
    assert re.search(rf"published +{release_id}  gaussian, epsilon 1, delta 1e-06, replace-one", said.out)
    assert re.search(r"spent +epsilon", said.out)
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert [(entry["id"], entry["state"]) for entry in shown["releases"]] == [(release_id, "published")]
    assert 0 < shown["spent"]["epsilon_micro"] <= 10**6
    exported = call("ledger", "export", "rows.ledger")
    assert exported.code == 0
    assert json.loads(exported.out) == shown


def test_a_ledger_is_verified_and_an_altered_one_is_not(released: Path, call: Call) -> None:
    said = call("ledger", "verify", "rows.ledger", "--json")
    assert said.json["intact"] is True
    assert said.json["releases"] == 1
    assert "intact" in call("ledger", "verify", "rows.ledger").err
    [blob] = (released / "rows.ledger" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(bytes(content))
    said = call("ledger", "verify", "rows.ledger")
    assert said.code == 4
    assert "altered" in said.message


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_missing_ledger_is_exit_4(tmp_path: Path, call: Call, command: str) -> None:
    said = call("ledger", command, tmp_path / "nothing.ledger")
    assert said.code == 4
    assert "There is no ledger" in said.message
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\x00garbage"], ids=["empty", "text", "half"])
@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_damaged_ledger_is_exit_4(here: Path, call: Call, command: str, content: bytes) -> None:
    (here / "rows.ledger" / "ledger.sqlite").write_bytes(content)
    said = call("ledger", command, "rows.ledger")
    assert said.code == 4
    assert "damaged" in said.message


COMMANDS = {
    "ingest": ("SOURCE", "ROWS", "--budget-epsilon", "--budget-delta", "--columns"),
    "release": (
        "ROWS", "RELEASE", "--epsilon", "--delta", "--clip", "--mechanism", "--neighbours", "--centre", "--grid-bits",
        "--id", "--ledger", "--scheduler", "--workers", "--json",
    ),
    "forecast": ("--d", "--n", "--epsilon", "--delta", "--clip", "--spectrum", "--mechanism", "--plot", "--json"),
    "pca": ("RELEASE", "MODEL", "--components", "--plot"),
    "project": ("ROWS", "MODEL", "SCORES", "--scheduler", "--workers"),
    "report": ("RELEASE", "OUT", "--components", "--image", "--ledger"),
    "run": ("JOB",),
    "demo": ("[DIRECTORY]",),
    "mechanisms": ("--json",),
    "ledger": ("create", "show", "verify", "export"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_the_names_that_people_script_against_are_there(call: Call, command: str) -> None:
    said = call(command, "--help")
    assert (said.code, said.err) == (0, "")
    for name in COMMANDS[command]:
        assert name in said.out


def test_the_version_is_told(call: Call) -> None:
    said = call("--version")
    assert said.code == 0
    assert __version__ in said.out


@pytest.mark.parametrize("arguments", [("frobnicate",), ("ledger", "frobnicate"), ("--frobnicate",)], ids=" ".join)
def test_an_unknown_command_is_usage(call: Call, arguments: tuple[str, ...]) -> None:
    said = call(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "frobnicate" in said.err
