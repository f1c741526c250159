"""Genotypes that are more than a pair of two alleles, or less: read by rules that a person states, refused without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import Call
from support.ingest_scene import stored, write_vcf_arrays, write_vcf_zarr

import dpdist
from dpdist import DataError

HEAD = """##fileformat=VCFv4.3
##contig=<ID=X>
##FORMAT=<ID=GT,Number=1,Type=String,Description="Genotype">
##FORMAT=<ID=DS,Number=1,Type=Float,Description="Dosage">
#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ta\tb\tc\td
"""
SITES = (
    ("X", "10", "rs1", "A", "G", "GT:DS", "0/1:0.9", "1|1:2", "0/0:0.05", "./1:."),
    ("X", "20", ".", "A", "C,T", "GT:DS", "1/2:1", "0/2:0", "0/0:0", "2/2:0.1"),
    ("X", "30", "rs3", "A", ".", "GT:DS", "0/0:.", "0/0:.", "0/0:.", "0/0:."),
    ("X", "50", "rs5", "A", "G", "GT:DS", "0/0:0", "0/1", "1/1:1.5", "0/1:1"),
    ("X", "40", "rs4", "A", "G", "GT:DS", "1:1", "0/1:1", "0:0", "1/1:2"),
)
RULES = {"skip": {"multiallelic": "skip", "haploid": "single"}, "split": {"multiallelic": "split", "haploid": "double"}}
CALLS = np.array([  # of SITES, variant by variant; -2: no allele
    [[0, 1], [1, 1], [0, 0], [-1, 1]], [[1, 2], [0, 2], [0, 0], [2, 2]], [[0, 0]] * 4,
    [[0, 0], [0, 1], [1, 1], [0, 1]], [[1, -2], [0, 1], [0, -2], [1, 1]],
], dtype=np.int8)  # fmt: skip


def genotypes(path: Path, calls: Any = CALLS, version: Any = 2, **others: Any) -> Path:
    """Write SITES as VCF Zarr by hand."""
    arrays = {
        "call_genotype": calls,
        "call_DS": np.array([[0.9, 2, 0.05, np.nan], [0] * 4, [0] * 4, [0, np.nan, 1.5, 1], [1, 1, 0, 2]], np.float32),
        "contig_id": np.array(["X"], dtype="U2"),
        "sample_id": np.array(["a", "b", "c", "d"], dtype="U2"),
        "variant_contig": np.zeros(5, np.int8),
        "variant_position": np.array([10, 20, 30, 50, 40], np.int32),
        "variant_id": np.array(["rs1", ".", "rs3", "rs5", "rs4"], dtype="U4"),
        "variant_allele": np.array([["A", "G", ""], ["A", "C", "T"], ["A", "", ""], ["A", "G", ""], ["A", "G", ""]]),
    } | others
    write_vcf_arrays(path, {name: values for name, values in arrays.items() if values is not None}, version)
    return path


def read(path: Path, target: Path, **more: Any) -> tuple[tuple[str, ...], Any]:
    table = dpdist.ingest_rows(path, target, **more)
    return table.names, stored(target)


def bio2zarr(*arguments: object) -> None:
    command = [str(Path(sys.executable).with_name("vcf2zarr")), *map(str, arguments), "--no-progress"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def test_vcf_is_read_by_way_of_vcf_zarr(tmp_path: Path) -> None:
    lines = ["\t".join((*site[:5], ".", "PASS", ".", *site[5:])) for site in SITES]
    (tmp_path / "t.vcf").write_text(HEAD + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"vcf2zarr convert FILE NEW\.zarr"):
        read(tmp_path / "t.vcf", tmp_path / "no.zarr")
    bio2zarr("convert", tmp_path / "t.vcf", tmp_path / "theirs.zarr")
    ours = genotypes(tmp_path / "ours.zarr")
    for name, rules in (*RULES.items(), ("dosages", {"multiallelic": "skip", "field": "DS"})):
        pair = [read(at, at.with_name(f"{at.stem}-{name}.zarr"), genotypes=rules, missing=1)
                for at in (tmp_path / "theirs.zarr", ours)]  # fmt: skip
        assert pair[0][0] == pair[1][0]
        assert np.array_equal(pair[0][1], pair[1][1])


@pytest.mark.parametrize("version", [2, 3])
def test_sites_of_more_alleles_are_left_out_or_have_a_column_for_each(tmp_path: Path, version: int) -> None:
    source = genotypes(tmp_path / "t.zarr", version=version)
    names, rows = read(source, tmp_path / "skip.zarr", genotypes=RULES["skip"], missing=0)
    assert (names, rows.dtype) == (("rs1", "rs5", "rs4"), np.uint8)
    assert rows.tolist() == [[1, 0, 1], [2, 1, 1], [0, 2, 0], [0, 1, 2]]
    names, rows = read(source, tmp_path / "split.zarr", genotypes=RULES["split"], missing=0)
    assert names == ("rs1", "X:20:A:C", "X:20:A:T", "rs5", "rs4")
    assert rows.tolist() == [[1, 1, 1, 0, 2], [2, 0, 1, 1, 1], [0, 0, 0, 2, 0], [0, 0, 2, 1, 2]]
    selected = read(source, tmp_path / "some.zarr", genotypes=RULES["split"], columns=["rs5", "X:20:A:T"])
    assert selected[1].tolist() == [[0, 1], [1, 1], [2, 0], [1, 2]]  # of rs1, which is missing, nothing is read
    named = genotypes(tmp_path / "named.zarr", variant_id=np.array(["rs1", "rs2", "rs3", "rs5", "rs4"]))
    assert read(named, tmp_path / "names.zarr", genotypes=RULES["split"], missing=0)[0][1:3] == ("rs2:C", "rs2:T")


def test_dosages_are_expected_copies(tmp_path: Path) -> None:
    rules = {"multiallelic": "skip", "field": "DS"}
    names, rows = read(genotypes(tmp_path / "t.zarr"), tmp_path / "rows.zarr", genotypes=rules, missing=1)
    assert (names, rows.dtype) == (("rs1", "rs5", "rs4"), np.float32)
    assert np.allclose(rows, np.array([[0.9, 0, 1], [2, 1, 1], [0.05, 1.5, 0], [1, 1, 2]]))
    for number, dosage in enumerate((2.1, -0.1, np.inf)):
        bad = genotypes(tmp_path / f"{number}.zarr", call_DS=np.where(np.eye(5, 4, -1), dosage, 0.5))
        with pytest.raises(DataError, match=r"variant 3, sample 2 .*the dosage is not a number from 0 to 2"):
            read(bad, tmp_path / "no.zarr", genotypes=rules)
    with pytest.raises(DataError, match="no dosages"):
        read(genotypes(tmp_path / "n.zarr", call_DS=None), tmp_path / "no.zarr", genotypes=rules)
    with pytest.raises(DataError, match="one dosage per sample, but variant 1 has more alleles"):
        read(tmp_path / "t.zarr", tmp_path / "no.zarr", genotypes={"multiallelic": "split", "field": "DS"})


def test_public_frequencies_stand_for_what_is_missing_and_standardise(tmp_path: Path) -> None:
    counts = np.array([[0, 1, 2], [127, 2, 0], [1, 127, 0], [2, 0, 1]], dtype=np.uint8)
    write_vcf_zarr(tmp_path / "t.zarr", counts)
    p = np.array([0.25, 0.4, 0.1])
    text = "name,frequency\n" + "".join(f"rs{j},{p[j]}\n" for j in (2, 0, 1)) + "other,0.5\n"
    for file in ("p.csv", "moved.csv"):
        (tmp_path / file).write_text(text)
    filled = np.where(counts == 127, 2 * p, counts)
    rules, moved = ({"frequencies": str(tmp_path / file), "standardise": "yes"} for file in ("p.csv", "moved.csv"))
    _, rows = read(tmp_path / "t.zarr", tmp_path / "filled.zarr", genotypes={"frequencies": rules["frequencies"]})
    assert np.array_equal(rows, filled.astype(np.float32))
    _, rows = read(tmp_path / "t.zarr", tmp_path / "rows.zarr", genotypes=rules)
    assert np.allclose(rows, (filled - 2 * p) / np.sqrt(2 * p * (1 - p)), rtol=1e-6)
    for again in (rules, moved):  # and is known again
        assert len(read(tmp_path / "t.zarr", tmp_path / "rows.zarr", genotypes=again)[0]) == 3
    (tmp_path / "p.csv").write_text(text.replace("0.25", "0.3"))
    with pytest.raises(DataError, match="was not ingested from these files"):
        read(tmp_path / "t.zarr", tmp_path / "rows.zarr", genotypes=rules)
    with pytest.raises(DataError, match=r"missing.*public file of frequencies"):
        read(tmp_path / "t.zarr", tmp_path / "no.zarr")


def test_a_file_of_frequencies_that_is_wrong_is_refused(tmp_path: Path) -> None:
    write_vcf_zarr(tmp_path / "t.zarr", np.ones((4, 3), dtype=np.uint8))
    for content, message in (
        ("rs0,0.5\nrs1,0.5\n", "lacks the frequency of 1 variant, such as rs2"),
        *((f"rs0{cell}\n", "not a file of frequencies") for cell in (",0", ",1", ",nan", ",x", "")),
        ("", "lacks the frequency of 3 variants"),
        ("rs0,0.1\nrs0,0.2\n", "is repeated"),
    ):
        (tmp_path / "q.csv").write_text(content)
        with pytest.raises(DataError, match=message):
            read(tmp_path / "t.zarr", tmp_path / "no.zarr", genotypes={"frequencies": str(tmp_path / "q.csv")})


BAD_STORES: dict[str, tuple[dict[str, Any], str]] = {
    "three alleles": ({}, "variant 1 .counting from 0.: the site does not have two alleles"),
    "an allele that is not there": ({"calls": np.where(CALLS == -2, 5, CALLS), "skip": True}, "variant 4, sample 0"),
    "one allele": ({"skip": True}, r"variant 4, sample 0 .*genotypes=\{'haploid': 'single'\}"),
    "triploid": ({"calls": np.zeros((5, 4, 3), np.int8)}, "calls of 3 alleles"),
    "floats": ({"calls": CALLS.astype(np.float32)}, "not have the shape and type"),
    "a sample twice": (
        {"sample_id": np.array(["a", "b", "a", "d"]), "skip": True, "haploid": "single"}, "names a sample twice",
    ),
    "other samples": ({"sample_id": np.array(["a"], dtype="U2")}, "different numbers of sample names"),
    "other variants": ({"variant_position": np.array([1, 2], np.int32)}, "different numbers of variants"),
    "an empty allele before another": (
        {"variant_allele": np.array([["A", "", "G"], *[["A", "G", ""]] * 4])}, "variant 0 .*an allele is empty",
    ),
    "an allele twice": ({"variant_allele": np.array([["A", "A"]] * 5)}, "an allele is empty or repeated"),
    "alleles of one letter each": ({"variant_allele": np.array(["AG"] * 5)}, "variant_allele does not have the shape"),
    "places that are no numbers": ({"variant_position": np.array([1.5] * 5)}, "variant_position does not have"),
    "names in two dimensions": ({"variant_id": np.array([["a", "b"]] * 5)}, "variant_id does not have the shape"),
    "a chromosome from the end": ({"variant_contig": np.array([0, 0, 0, 0, -1], np.int8)}, "below 0"),
    "no contigs": ({"variant_contig": None}, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_STORES)
def test_vcf_zarr_that_is_no_such_store_is_refused(tmp_path: Path, bad: str) -> None:
    others, message = dict(BAD_STORES[bad][0]), BAD_STORES[bad][1]
    rules = {"multiallelic": "skip"} if others.pop("skip", False) else {}
    rules |= {"haploid": others.pop("haploid")} if "haploid" in others else {}
    store = genotypes(tmp_path / "t.zarr", **others)
    with pytest.raises(DataError, match=message):
        read(store, tmp_path / "rows.zarr", genotypes=rules or None, missing=0)
    assert not (tmp_path / "rows.zarr").exists()


def test_rules_that_make_no_sense_are_refused(tmp_path: Path, call: Call) -> None:
    genotypes(tmp_path / "t.zarr")
    np.save(tmp_path / "t.npy", np.ones((4, 3)))
    for source, rules, message in (
        ("t.zarr", "multiallelic=both", "multiallelic of --genotypes is skip or split"),
        ("t.zarr", "ploidy=2", "takes multiallelic, haploid, field, standardise, frequencies, not ploidy"),
        ("t.zarr", "standardise=yes", "needs frequencies"),
        ("t.zarr", "haploid", "NAME=VALUE"),
        ("t.npy", "haploid=single", "--genotypes is for VCF Zarr"),
    ):
        refused = call("ingest", tmp_path / source, tmp_path / "rows.zarr", "--genotypes", rules)
        assert (refused.code, message in refused.message) == (2, True), refused.message
    options = ("--genotypes", "multiallelic=skip", "--genotypes", "haploid=double", "--missing", "0")
    assert call("ingest", tmp_path / "t.zarr", tmp_path / "rows.zarr", *options).code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 0, 2], [2, 1, 1], [0, 2, 0], [0, 1, 2]]


def test_a_job_states_the_rules_too(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(genotypes(tmp_path / "t.zarr").parent)
    (tmp_path / "p.csv").write_text("rs1,0.5\nrs4,0.5\nrs5,0.5\n")
    job = (
        '[rows]\npath = "rows.zarr"\nsource = "t.zarr"\nbudget_epsilon = 3\n'
        'genotypes = {multiallelic = "skip", haploid = "double", frequencies = "p.csv"}\n'
        '[release]\npath = "r.zarr"\nepsilon = 1\nclip = 4\n'
    )
    (tmp_path / "job.toml").write_text(job.replace('"double"', '"twice"'))
    assert "haploid of genotypes in [rows] is single or double" in call("run", tmp_path / "job.toml").message
    (tmp_path / "job.toml").write_text(job)
    assert call("run", tmp_path / "job.toml").code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 0, 2], [2, 1, 1], [0, 2, 0], [1, 1, 2]]
