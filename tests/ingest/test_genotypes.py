"""Genotypes that are more than a pair of two alleles, or less: read by rules that a person states, refused without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.cli_scene import Call
from support.ingest_scene import GENOTYPES, stored, write_bed

import dpdist
from dpdist import DataError

HEAD = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\ta\tb\tc\td\n"
SITES = (
    ("1", "10", "rs1", "A", "G", "GT:DS", "0/1:0.9", "1|1:2", "0/0:0.05", "./1:."),
    ("1", "20", ".", "A", "C,T", "GT:DS", "1/2:1,0.7", "0/2:0,1", "0/0:0,0", "2/2:0.1,1.8"),
    ("1", "30", "rs3", "A", ".", "GT:DS", "0/0:.", "0/0:.", "0/0:.", "0/0:."),
    ("X", "40", "rs4", "A", "G", "GT:DS", "1:1", "0/1:1", "0:0", "1/1:2"),
    ("1", "50", "rs5", "A", "G", "GT:DS", "0/0:0", "0/1", "1/1:1.5", "0/1:1"),
)


def vcf(path: Path, sites: Any = SITES) -> Path:
    lines = ["\t".join((*site[:5], ".", "PASS", ".", *site[5:])) for site in sites]
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path


def read(path: Path, target: Path, **more: Any) -> tuple[tuple[str, ...], Any]:
    found = dpdist.ingest_rows(path, target, **more)
    return found.names, stored(target)


def test_sites_of_more_alleles_are_left_out_or_have_a_column_for_each(tmp_path: Path) -> None:
    source = vcf(tmp_path / "t.vcf")
    rules = {"multiallelic": "skip", "haploid": "single"}
    names, rows = read(source, tmp_path / "skip.zarr", genotypes=rules, missing=0)
    assert (names, rows.dtype) == (("rs1", "rs4", "rs5"), np.uint8)
    assert rows.tolist() == [[1, 1, 0], [2, 1, 1], [0, 0, 2], [0, 2, 1]]
    rules = {"multiallelic": "split", "haploid": "double"}
    names, rows = read(source, tmp_path / "split.zarr", genotypes=rules, missing=0)
    assert names == ("rs1", "1:20:A:C", "1:20:A:T", "rs4", "rs5")
    assert rows.tolist() == [[1, 1, 1, 2, 0], [2, 0, 1, 1, 1], [0, 0, 0, 0, 2], [0, 0, 2, 2, 1]]
    names, rows = read(source, tmp_path / "some.zarr", genotypes=rules, columns=["rs5", "1:20:A:T"])
    assert rows.tolist() == [[0, 1], [1, 1], [2, 0], [1, 2]]  # of rs1, which is missing, nothing is read
    one = vcf(tmp_path / "named.vcf", [("1", "1", "rs", "A", "G,T", "GT", "0/1", "1/2", "2/2", "0/0")])
    assert read(one, tmp_path / "named.zarr", genotypes=rules)[0] == ("rs:G", "rs:T")


def test_dosages_are_expected_copies(tmp_path: Path) -> None:
    source = vcf(tmp_path / "t.vcf")
    rules = {"multiallelic": "split", "field": "DS"}
    _, rows = read(source, tmp_path / "rows.zarr", genotypes=rules, missing=1)
    assert rows.dtype == np.float32
    wanted: Any = [[0.9, 1, 0.7], [2, 0, 1], [0.05, 0, 0], [1, 0.1, 1.8]]
    assert np.allclose(rows[:, :3], wanted)
    assert np.allclose(rows[:, 4], [0, 1, 1.5, 1])  # a field at the end that is left out is missing
    for cell in ("2.1", "-0.1", "nan", "inf", "x", "1,1", ""):
        sites = [("1", "1", name, "A", "G", "GT:DS", "0/0:0", "0/1:1", f"0/0:{cell}", "0/1:1") for name in "st"]
        bad = vcf(tmp_path / "bad.vcf", sites)
        with pytest.raises(DataError, match="line 3, sample 3: the dosage is not a number of copies"):
            read(bad, tmp_path / "bad.zarr", genotypes={"field": "DS"})
    with pytest.raises(DataError, match="no dosages"):
        read(vcf(tmp_path / "n.vcf", [("1", "1", "rs", "A", "G", "GT", *["0/1"] * 4)]), tmp_path / "n.zarr",
             genotypes={"field": "DS"})  # fmt: skip


@pytest.mark.parametrize("name", ["t.bed", "t.pgen", "t.vcf"])
def test_public_frequencies_stand_for_what_is_missing_and_standardise(tmp_path: Path, name: str) -> None:
    counts = np.array([[0, 1, 2], [127, 2, 0], [1, 127, 0], [2, 0, 1]], dtype=np.uint8)
    GENOTYPES[name](tmp_path / name, counts)
    p = np.array([0.25, 0.4, 0.1])
    text = "name,frequency\n" + "".join(f"rs{j},{p[j]}\n" for j in (2, 0, 1)) + "other,0.5\n"
    (tmp_path / "p.csv").write_text(text)
    filled = np.where(counts == 127, 2 * p, counts)
    rules = {"frequencies": str(tmp_path / "p.csv")}
    _, rows = read(tmp_path / name, tmp_path / "filled.zarr", genotypes=rules)
    assert np.array_equal(rows, filled.astype(np.float32))
    rules["standardise"] = "yes"
    _, rows = read(tmp_path / name, tmp_path / "rows.zarr", genotypes=rules)
    assert np.allclose(rows, (filled - 2 * p) / np.sqrt(2 * p * (1 - p)), rtol=1e-6)
    again = dpdist.ingest_rows(tmp_path / name, tmp_path / "rows.zarr", genotypes=rules)  # and is known again
    assert again.columns == 3
    (tmp_path / "moved.csv").write_text(text)
    dpdist.ingest_rows(
        tmp_path / name, tmp_path / "rows.zarr", genotypes={**rules, "frequencies": str(tmp_path / "moved.csv")}
    )
    (tmp_path / "p.csv").write_text(text.replace("0.25", "0.3"))
    with pytest.raises(DataError, match="was not ingested from these files"):
        dpdist.ingest_rows(tmp_path / name, tmp_path / "rows.zarr", genotypes=rules)
    wrong = {
        "rs0,0.5\nrs1,0.5\n": "no frequency of 1 variant, such as rs2",
        "rs0,0\n": "no file of frequencies", "rs0,1\n": "no file of frequencies", "rs0,nan\n": "no file of freq",
        "rs0\n": "no file of frequencies", "rs0,x\n": "no file of frequencies", "": "no frequency of 3 variants",
        "rs0,0.1\nrs0,0.2\n": "has a frequency already",
    }  # fmt: skip
    for content, said in wrong.items():
        (tmp_path / "q.csv").write_text(content)
        with pytest.raises(DataError, match=said):
            read(tmp_path / name, tmp_path / "no.zarr", genotypes={"frequencies": str(tmp_path / "q.csv")})
    with pytest.raises(DataError, match=r"missing.*public file of frequencies"):
        read(tmp_path / name, tmp_path / "no.zarr")


CALLS = np.array([  # of SITES, variant by variant; -2: no allele
    [[0, 1], [1, 1], [0, 0], [-1, -1]], [[1, 2], [0, 2], [0, 0], [2, 2]], [[0, 0]] * 4,
    [[1, -2], [0, 1], [0, -2], [1, 1]], [[0, 0], [0, 1], [1, 1], [0, 1]],
], dtype=np.int8)  # fmt: skip


def vcf_zarr(path: Path, calls: Any = CALLS, version: Any = 2, **others: Any) -> Path:
    """Write what bio2zarr makes of SITES."""
    group = zarr.create_group(path, zarr_format=version, attributes={"vcf_zarr_version": "0.4"})
    arrays = {
        "call_genotype": calls,
        "call_DS": np.array([[0.9, 2, 0.05, np.nan], [0] * 4, [0] * 4, [1, 1, 0, 2], [0, np.nan, 1.5, 1]], np.float32),
        "contig_id": np.array(["1", "X"], dtype="U2"),
        "sample_id": np.array(["a", "b", "c", "d"], dtype="U2"),
        "variant_contig": np.array([0, 0, 0, 1, 0], np.int8),
        "variant_position": np.array([10, 20, 30, 40, 50], np.int32),
        "variant_id": np.array(["rs1", ".", "rs3", "rs4", "rs5"], dtype="U4"),
        "variant_allele": np.array([["A", "G", ""], ["A", "C", "T"], ["A", "", ""], ["A", "G", ""], ["A", "G", ""]]),
    } | others
    for name, values in arrays.items():
        if values is not None:
            chunks = (2, *values.shape[1:]) if values.ndim > 1 else values.shape
            group.create_array(name, data=values, chunks=chunks)
    return path


RULES = {"skip": {"multiallelic": "skip", "haploid": "single"}, "split": {"multiallelic": "split", "haploid": "double"}}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_vcf_zarr_gives_the_rows_of_the_text_it_was_made_of(tmp_path: Path, rules: Any, version: int) -> None:
    store, source = vcf_zarr(tmp_path / "t.zarr", version=version), vcf(tmp_path / "t.vcf")
    text = read(source, tmp_path / "text.zarr", genotypes=rules, missing=1)
    names, rows = read(store, tmp_path / "rows.zarr", genotypes=rules, missing=1)
    assert names == text[0]
    assert rows.dtype == text[1].dtype
    assert np.array_equal(rows, text[1])
    order = list(reversed(names))
    assert np.array_equal(read(store, tmp_path / "o.zarr", genotypes=rules, missing=1, columns=order)[1], rows[:, ::-1])
    (tmp_path / "p.csv").write_text("".join(f"{name},0.25\n" for name in names))
    more = {**rules, "frequencies": str(tmp_path / "p.csv"), "standardise": "yes"}
    ours = read(store, tmp_path / "ours.zarr", genotypes=more)[1]
    assert np.array_equal(ours, read(source, tmp_path / "theirs.zarr", genotypes=more)[1])
    doses = read(store, tmp_path / "d.zarr", genotypes={"multiallelic": "skip", "field": "DS"}, missing=1)[1]
    assert np.allclose(doses, np.array([[0.9, 1, 0], [2, 1, 1], [0.05, 0, 1.5], [1, 2, 1]]))


READ = {"skip": True, "rules": {"haploid": "single"}}
BAD_STORES: dict[str, tuple[dict[str, Any], str]] = {
    "three alleles": ({}, "variant 1 .counting from 0.: not a site of two alleles"),
    "an allele that is not there": ({"calls": np.where(CALLS == -2, 5, CALLS), "skip": True}, "variant 3, sample 0"),
    "one allele": ({"skip": True}, "variant 3, sample 0 .*haploid=single"),
    "triploid": ({"calls": np.zeros((5, 4, 3), np.int8)}, "more than two alleles"),
    "floats": ({"calls": CALLS.astype(np.float32)}, "another shape or type"),
    "a sample twice": ({"sample_id": np.array(["a", "b", "a", "d"]), **READ}, "names a sample twice"),
    "other samples": ({"sample_id": np.array(["a"], dtype="U2")}, "another number of samples"),
    "other variants": ({"variant_position": np.array([1, 2], np.int32)}, "different numbers of variants"),
    "no contigs": ({"variant_contig": None}, "cannot be read"),
}


@pytest.mark.parametrize("bad", BAD_STORES.values(), ids=BAD_STORES)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_vcf_zarr_that_is_no_such_store_is_refused(tmp_path: Path, bad: tuple[dict[str, Any], str]) -> None:
    others, said = dict(bad[0]), bad[1]
    rules = {"multiallelic": "skip", **others.pop("rules", {})} if others.pop("skip", False) else None
    store = vcf_zarr(tmp_path / "t.zarr", **others)
    with pytest.raises(DataError, match=said):
        read(store, tmp_path / "rows.zarr", genotypes=rules, missing=0)
    assert not (tmp_path / "rows.zarr").exists()


def test_rules_that_make_no_sense_are_refused(tmp_path: Path, call: Call) -> None:
    write_bed(tmp_path / "t.bed", np.ones((4, 3), dtype=np.uint8))
    source = vcf(tmp_path / "t.vcf")
    np.save(tmp_path / "t.npy", np.ones((4, 3)))
    for given, rules, said in (
        (source, "multiallelic=both", "multiallelic of --genotypes is skip or split"),
        (source, "ploidy=2", "takes multiallelic, haploid, field, standardise, frequencies, not ploidy"),
        (source, "standardise=yes", "needs frequencies"),
        (source, "haploid", "NAME=VALUE"),
        (tmp_path / "t.bed", "haploid=single", "leave haploid out of --genotypes"),
        (tmp_path / "t.npy", "haploid=single", "--genotypes is for .bed, .pgen, .vcf"),
    ):
        refused = call("ingest", given, tmp_path / "rows.zarr", "--genotypes", rules)
        assert (refused.code, said in refused.message) == (2, True), refused.message
    assert call("ingest", source, tmp_path / "rows.zarr", "--genotypes", "frequencies=nowhere.csv").code == 4
    asked = ("--genotypes", "multiallelic=skip", "--genotypes", "haploid=double", "--missing", "0")
    assert call("ingest", source, tmp_path / "rows.zarr", *asked).code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2, 0], [2, 1, 1], [0, 0, 2], [0, 2, 1]]


def test_a_job_states_the_rules_too(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vcf(tmp_path / "t.vcf")
    (tmp_path / "p.csv").write_text("rs1,0.5\nrs4,0.5\nrs5,0.5\n")
    (tmp_path / "job.toml").write_text(
        '[rows]\npath = "rows.zarr"\nsource = "t.vcf"\nbudget_epsilon = 3\n'
        'genotypes = {multiallelic = "skip", haploid = "double", frequencies = "p.csv"}\n'
        '[release]\npath = "r.zarr"\nepsilon = 1\nclip = 4\n'
    )
    assert call("run", tmp_path / "job.toml").code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2, 0], [2, 1, 1], [0, 0, 2], [1, 2, 1]]
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace('"double"', '"twice"'))
    assert "haploid of genotypes in [rows] is single or double" in call("run", tmp_path / "job.toml").message
