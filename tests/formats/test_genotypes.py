"""Genotypes that are more than a pair of two alleles, or less: read by rules that a person states, refused without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pgenlib
import pytest
from support.cli_scene import Call
from support.ingest_scene import GENOTYPES, stored, write_bed, write_pgen, write_vcf_arrays

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
    table = dpdist.ingest_rows(path, target, **more)
    return table.names, stored(target)


def test_sites_of_more_alleles_are_left_out_or_have_a_column_for_each(tmp_path: Path) -> None:
    source = vcf(tmp_path / "t.vcf")
    names, rows = read(source, tmp_path / "skip.zarr", genotypes=RULES["skip"], missing=0)
    assert (names, rows.dtype) == (("rs1", "rs4", "rs5"), np.uint8)
    assert rows.tolist() == [[1, 1, 0], [2, 1, 1], [0, 0, 2], [0, 2, 1]]
    names, rows = read(source, tmp_path / "split.zarr", genotypes=RULES["split"], missing=0)
    assert names == ("rs1", "1:20:A:C", "1:20:A:T", "rs4", "rs5")
    assert rows.tolist() == [[1, 1, 1, 2, 0], [2, 0, 1, 1, 1], [0, 0, 0, 0, 2], [0, 0, 2, 2, 1]]
    selected = read(source, tmp_path / "some.zarr", genotypes=RULES["split"], columns=["rs5", "1:20:A:T"])
    assert selected[1].tolist() == [[0, 1], [1, 1], [2, 0], [1, 2]]  # of rs1, which is missing, nothing is read
    one = vcf(tmp_path / "named.vcf", [("1", "1", "rs", "A", "G,T", "GT", "0/1", "1/2", "2/2", "0/0")])
    assert read(one, tmp_path / "named.zarr", genotypes=RULES["split"])[0] == ("rs:G", "rs:T")


def test_dosages_are_expected_copies(tmp_path: Path) -> None:
    source = vcf(tmp_path / "t.vcf")
    rules = {"multiallelic": "split", "field": "DS"}
    _, rows = read(source, tmp_path / "rows.zarr", genotypes=rules, missing=1)
    assert rows.dtype == np.float32
    dosages: Any = [[0.9, 1, 0.7], [2, 0, 1], [0.05, 0, 0], [1, 0.1, 1.8]]
    assert np.allclose(rows[:, :3], dosages)
    assert np.allclose(rows[:, 4], [0, 1, 1.5, 1])  # a field at the end that is left out is missing
    for cell in ("2.1", "-0.1", "nan", "inf", "x", "1,1", ""):
        sites = [("1", "1", name, "A", "G", "GT:DS", "0/0:0", "0/1:1", f"0/0:{cell}", "0/1:1") for name in "st"]
        bad = vcf(tmp_path / "bad.vcf", sites)
        with pytest.raises(DataError, match="line 3, sample 3: the dosage is not a number from 0 to 2"):
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
    for file in ("p.csv", "moved.csv"):
        (tmp_path / file).write_text(text)
    filled = np.where(counts == 127, 2 * p, counts)
    rules, moved = ({"frequencies": str(tmp_path / file), "standardise": "yes"} for file in ("p.csv", "moved.csv"))
    _, rows = read(tmp_path / name, tmp_path / "filled.zarr", genotypes={"frequencies": rules["frequencies"]})
    assert np.array_equal(rows, filled.astype(np.float32))
    _, rows = read(tmp_path / name, tmp_path / "rows.zarr", genotypes=rules)
    assert np.allclose(rows, (filled - 2 * p) / np.sqrt(2 * p * (1 - p)), rtol=1e-6)
    for again in (rules, moved):  # and is known again
        assert len(read(tmp_path / name, tmp_path / "rows.zarr", genotypes=again)[0]) == 3
    (tmp_path / "p.csv").write_text(text.replace("0.25", "0.3"))
    with pytest.raises(DataError, match="was not ingested from these files"):
        read(tmp_path / name, tmp_path / "rows.zarr", genotypes=rules)
    with pytest.raises(DataError, match=r"missing.*public file of frequencies"):
        read(tmp_path / name, tmp_path / "no.zarr")


def test_a_file_of_frequencies_that_is_wrong_is_refused(tmp_path: Path) -> None:
    write_bed(tmp_path / "t.bed", np.ones((4, 3), dtype=np.uint8))
    for content, message in (
        ("rs0,0.5\nrs1,0.5\n", "lacks the frequency of 1 variant, such as rs2"),
        *((f"rs0{cell}\n", "not a file of frequencies") for cell in (",0", ",1", ",nan", ",x", "")),
        ("", "lacks the frequency of 3 variants"),
        ("rs0,0.1\nrs0,0.2\n", "is repeated"),
    ):
        (tmp_path / "q.csv").write_text(content)
        with pytest.raises(DataError, match=message):
            read(tmp_path / "t.bed", tmp_path / "no.zarr", genotypes={"frequencies": str(tmp_path / "q.csv")})


CALLS = np.array([  # of SITES, variant by variant; -2: no allele
    [[0, 1], [1, 1], [0, 0], [-1, -1]], [[1, 2], [0, 2], [0, 0], [2, 2]], [[0, 0]] * 4,
    [[1, -2], [0, 1], [0, -2], [1, 1]], [[0, 0], [0, 1], [1, 1], [0, 1]],
], dtype=np.int8)  # fmt: skip


def vcf_zarr(path: Path, calls: Any = CALLS, version: Any = 2, **others: Any) -> Path:
    """Write what bio2zarr makes of SITES."""
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
    write_vcf_arrays(path, {name: values for name, values in arrays.items() if values is not None}, version)
    return path


RULES = {"skip": {"multiallelic": "skip", "haploid": "single"}, "split": {"multiallelic": "split", "haploid": "double"}}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
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


BAD_STORES: dict[str, tuple[dict[str, Any], str]] = {
    "three alleles": ({}, "variant 1 .counting from 0.: the site does not have two alleles"),
    "an allele that is not there": ({"calls": np.where(CALLS == -2, 5, CALLS), "skip": True}, "variant 3, sample 0"),
    "one allele": ({"skip": True}, "variant 3, sample 0 .*haploid=single"),
    "triploid": ({"calls": np.zeros((5, 4, 3), np.int8)}, "more than two alleles"),
    "floats": ({"calls": CALLS.astype(np.float32)}, "not have the shape and type"),
    "a sample twice": (
        {"sample_id": np.array(["a", "b", "a", "d"]), "skip": True, "haploid": "single"}, "names a sample twice",
    ),
    "other samples": ({"sample_id": np.array(["a"], dtype="U2")}, "different numbers of sample names"),
    "other variants": ({"variant_position": np.array([1, 2], np.int32)}, "different numbers of variants"),
    "no contigs": ({"variant_contig": None}, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_STORES)
def test_vcf_zarr_that_is_no_such_store_is_refused(tmp_path: Path, bad: str) -> None:
    others, message = dict(BAD_STORES[bad][0]), BAD_STORES[bad][1]
    rules = {"multiallelic": "skip"} if others.pop("skip", False) else {}
    rules |= {"haploid": others.pop("haploid")} if "haploid" in others else {}
    store = vcf_zarr(tmp_path / "t.zarr", **others)
    with pytest.raises(DataError, match=message):
        read(store, tmp_path / "rows.zarr", genotypes=rules or None, missing=0)
    assert not (tmp_path / "rows.zarr").exists()


def test_rules_that_make_no_sense_are_refused(tmp_path: Path, call: Call) -> None:
    write_bed(tmp_path / "t.bed", np.ones((4, 3), dtype=np.uint8))
    vcf(tmp_path / "t.vcf")
    np.save(tmp_path / "t.npy", np.ones((4, 3)))
    for source, rules, message in (
        ("t.vcf", "multiallelic=both", "multiallelic of --genotypes is skip or split"),
        ("t.vcf", "ploidy=2", "takes multiallelic, haploid, field, standardise, frequencies, not ploidy"),
        ("t.vcf", "standardise=yes", "needs frequencies"),
        ("t.vcf", "haploid", "NAME=VALUE"),
        ("t.bed", "haploid=single", "Leave haploid out of --genotypes"),
        ("t.npy", "haploid=single", "--genotypes is for .bed, .pgen, .vcf"),
    ):
        refused = call("ingest", tmp_path / source, tmp_path / "rows.zarr", "--genotypes", rules)
        assert (refused.code, message in refused.message) == (2, True), refused.message
    options = ("--genotypes", "multiallelic=skip", "--genotypes", "haploid=double", "--missing", "0")
    assert call("ingest", tmp_path / "t.vcf", tmp_path / "rows.zarr", *options).code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2, 0], [2, 1, 1], [0, 0, 2], [0, 2, 1]]


def test_a_job_states_the_rules_too(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(vcf(tmp_path / "t.vcf").parent)
    (tmp_path / "p.csv").write_text("rs1,0.5\nrs4,0.5\nrs5,0.5\n")
    job = (
        '[rows]\npath = "rows.zarr"\nsource = "t.vcf"\nbudget_epsilon = 3\n'
        'genotypes = {multiallelic = "skip", haploid = "double", frequencies = "p.csv"}\n'
        '[release]\npath = "r.zarr"\nepsilon = 1\nclip = 4\n'
    )
    (tmp_path / "job.toml").write_text(job.replace('"double"', '"twice"'))
    assert "haploid of genotypes in [rows] is single or double" in call("run", tmp_path / "job.toml").message
    (tmp_path / "job.toml").write_text(job)
    assert call("run", tmp_path / "job.toml").code == 0
    assert stored(tmp_path / "rows.zarr").tolist() == [[1, 2, 0], [2, 1, 1], [0, 0, 2], [1, 2, 1]]


# --- PLINK 2 ---

ALTS = ("G", "C,T", "G")
PAIRS = np.array([[[0, 1], [1, 1], [0, 0], [0, 1]], [[1, 2], [0, 2], [0, 0], [2, 2]], [[0, 0], [0, 1], [1, 1], [0, 1]]])
"""The alleles of each variant and sample."""


def files(folder: Path, samples: str = "#FID IID\nf a\nf b\ng a\ng c\n") -> Path:
    """Write sites; one has three alleles."""
    with pgenlib.PgenWriter(
        str(folder / "t.pgen").encode(), 4, variant_ct=3, nonref_flags=False, allele_ct_limit=3
    ) as writer:
        for pairs, alts in zip(PAIRS, ALTS, strict=True):
            writer.append_alleles(pairs.astype(np.int32).ravel(), allele_ct=2 + alts.count(","))
    head = "##source=x\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\n"
    sites = "".join(f"1\t{10 * i}\t{'.' if i else 'rs0'}\tA\t{alts}\t.\n" for i, alts in enumerate(ALTS))
    (folder / "t.pvar").write_text(head + sites)
    (folder / "t.psam").write_text(samples)
    return folder / "t.pgen"


def test_each_alternative_allele_is_counted_by_a_rule(tmp_path: Path) -> None:
    source = files(tmp_path)
    with pytest.raises(DataError, match=r"t.pvar, line 4: the site does not have two alleles"):
        read(source, tmp_path / "no.zarr")
    names, rows = read(source, tmp_path / "split.zarr", genotypes={"multiallelic": "split"})
    assert names == ("rs0", "1:10:A:C", "1:10:A:T", "1:20:A:G")
    counted = [(PAIRS[variant] == allele).sum(axis=1) for variant, allele in ((0, 1), (1, 1), (1, 2), (2, 1))]
    assert np.array_equal(rows, np.transpose(counted))
    assert rows.dtype == np.uint8
    names, rows = read(source, tmp_path / "skip.zarr", genotypes={"multiallelic": "skip"}, columns=["1:20:A:G", "rs0"])
    assert names == ("1:20:A:G", "rs0")
    assert np.array_equal(rows, np.transpose([counted[3], counted[0]]))


def test_files_without_a_header_are_those_of_plink_1_and_other_fields_may_have_spaces(
    tmp_path: Path,
) -> None:
    write_pgen(tmp_path / "t.pgen", np.ones((4, 2), np.uint8))
    for number, (sites, names) in enumerate((
        ("#CHROM\tPOS\tID\tREF\tALT\tINFO\n1\t10\trs7\tA\tG\tCLN=of two words\n1\t20\trs8\tC\tT\t.\n", ("rs7", "rs8")),
        ("1 rs7 0 10 G A\n1 . 0 20 T C\n", ("rs7", "1:20:C:T")),
    )):  # fmt: skip
        (tmp_path / "t.pvar").write_text(sites)
        assert read(tmp_path / "t.pgen", tmp_path / f"{number}.zarr")[0] == names
    source = files(tmp_path, "".join(f"f{i} s{i} 0 0 0 -9\n" for i in range(4)))
    assert read(source, tmp_path / "rows.zarr", genotypes={"multiallelic": "skip"})[1].shape == (4, 2)


def test_dosages_are_read_as_numbers(tmp_path: Path) -> None:
    dosages = np.array([[0.25, 1.5, 2.0, -9], [0, 0, 1, 0.5]], np.float32)
    write_pgen(tmp_path / "t.pgen", np.ones((4, 2), np.uint8))
    with pgenlib.PgenWriter(
        str(tmp_path / "t.pgen").encode(), 4, variant_ct=2, nonref_flags=False, dosage_present=True
    ) as writer:
        for dosage in dosages:
            writer.append_dosages(dosage)
    _, rows = read(tmp_path / "t.pgen", tmp_path / "rows.zarr", genotypes={"field": "DS"}, missing=1)
    assert rows.dtype == np.float32
    assert np.allclose(rows, np.where(dosages == -9, 1, dosages).T, atol=2**-14)
    with pytest.raises(DataError, match=r"sample 4, variant 'rs0': the genotype is missing"):
        read(tmp_path / "t.pgen", tmp_path / "no.zarr", genotypes={"field": "DS"})


def test_samples_that_are_wrong_are_refused(tmp_path: Path) -> None:
    for samples, message in (
        ("#IID SEX\na 0\nb 0\na 0\nc 0\n", "t.pgen names a sample twice"),
        ("#FID IID\nf a\nf b\ng a\n", "does not match its .psam and .pvar: 3 samples of 3 variants"),
        ("#FID IID\nf a\nf\n", "t.psam, line 3 has 1 fields. Expected: "),
        ("#SEX\n0\n", "t.psam, line 1 has 1 fields. Expected: "),
        ("", "does not match its .psam and .pvar: 0 samples"),
    ):
        with pytest.raises(DataError, match=message):
            read(files(tmp_path, samples), tmp_path / "no.zarr", genotypes={"multiallelic": "skip"})


def test_a_companion_file_that_is_packed_is_named_with_what_unpacks_it(tmp_path: Path) -> None:
    source = files(tmp_path)
    (tmp_path / "t.pvar").rename(tmp_path / "t.pvar.zst")
    with pytest.raises(DataError, match=r"needs t.pvar in the same folder. Unpack t.pvar.zst \(zstd -d\)"):
        read(source, tmp_path / "no.zarr")
