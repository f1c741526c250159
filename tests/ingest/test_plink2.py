"""PLINK 2 files: alleles and dosages are read as they were written, and what is wrong with a file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pgenlib
import pytest
from support.ingest_scene import stored, write_pgen

import dpdist
from dpdist.errors import DataError, DpdistError

ALTS = ("G", "C,T", "G")
PAIRS = np.array([[[0, 1], [1, 1], [0, 0], [0, 1]], [[1, 2], [0, 2], [0, 0], [2, 2]], [[0, 0], [0, 1], [1, 1], [0, 1]]])
"""The alleles of each variant and sample."""


def files(folder: Path, samples: str = "#FID IID\nf a\nf b\ng a\ng c\n") -> Path:
    """Write sites of which one has three alleles."""
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


def read(path: Path, target: Path, rules: dict[str, str] | None = None, **more: Any) -> tuple[tuple[str, ...], Any]:
    """Return names and rows."""
    found = dpdist.ingest_rows(path, target, genotypes=rules, **more)
    return found.names, stored(target)


def test_each_alternative_allele_is_counted_by_a_rule(tmp_path: Path) -> None:
    source = files(tmp_path)
    with pytest.raises(DataError, match=r"t.pvar, line 4: not a site of two alleles"):
        read(source, tmp_path / "no.zarr")
    names, rows = read(source, tmp_path / "split.zarr", {"multiallelic": "split"})
    assert names == ("rs0", "1:10:A:C", "1:10:A:T", "1:20:A:G")
    counted = [(PAIRS[variant] == allele).sum(axis=1) for variant, allele in ((0, 1), (1, 1), (1, 2), (2, 1))]
    assert np.array_equal(rows, np.transpose(counted))
    assert rows.dtype == np.uint8
    names, rows = read(source, tmp_path / "skip.zarr", {"multiallelic": "skip"}, columns=["1:20:A:G", "rs0"])
    assert names == ("1:20:A:G", "rs0")
    assert np.array_equal(rows, np.transpose([counted[3], counted[0]]))


def test_what_stands_behind_the_fields_that_are_read_may_have_spaces(tmp_path: Path) -> None:
    write_pgen(tmp_path / "t.pgen", np.ones((4, 2), np.uint8))
    head = "#CHROM\tPOS\tID\tREF\tALT\tINFO\n"
    (tmp_path / "t.pvar").write_text(f"{head}1\t10\trs7\tA\tG\tCLN=of two words\n1\t20\trs8\tC\tT\t.\n")
    assert read(tmp_path / "t.pgen", tmp_path / "rows.zarr")[0] == ("rs7", "rs8")


def test_dosages_are_read_as_numbers(tmp_path: Path) -> None:
    dosages = np.array([[0.25, 1.5, 2.0, -9], [0, 0, 1, 0.5]], np.float32)
    write_pgen(tmp_path / "t.pgen", np.ones((4, 2), np.uint8))
    with pgenlib.PgenWriter(
        str(tmp_path / "t.pgen").encode(), 4, variant_ct=2, nonref_flags=False, dosage_present=True
    ) as writer:
        for each in dosages:
            writer.append_dosages(each)
    _, rows = read(tmp_path / "t.pgen", tmp_path / "rows.zarr", {"field": "DS"}, missing=1)
    assert rows.dtype == np.float32
    assert np.allclose(rows, np.where(dosages == -9, 1, dosages).T, atol=2**-14)
    with pytest.raises(DataError, match=r"sample 4, variant 'rs0': the genotype is missing"):
        read(tmp_path / "t.pgen", tmp_path / "no.zarr", {"field": "DS"})


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ("#IID SEX\na 0\nb 0\na 0\nc 0\n", "t.pgen names a sample twice"),
        ("#FID IID\nf a\nf b\ng a\n", "does not hold what its .psam and .pvar announce: 3 samples of 3 variants"),
        ("#FID IID\nf a\nf\n", "t.psam, line 3 has 1 fields, and is not what such a file has there"),
        ("#SEX\n0\n", "t.psam, line 1 has 1 fields, and is not what such a file has there"),
        ("", "does not hold what its .psam and .pvar announce: 0 samples"),
    ],
)
def test_samples_that_are_wrong_are_refused(tmp_path: Path, samples: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(files(tmp_path, samples), tmp_path / "no.zarr", {"multiallelic": "skip"})


@pytest.mark.parametrize(("unit", "kept"), [("FID,IID", 4), ("FID", 2), ("IID", 3)])
def test_a_person_may_be_who_owns_several_samples(tmp_path: Path, unit: str, kept: int) -> None:
    rules = {"multiallelic": "skip"}
    _, rows = read(files(tmp_path), tmp_path / "rows.zarr", rules, privacy_unit=unit, max_rows=1)
    assert np.count_nonzero(rows.any(axis=1)) == kept  # rows beyond one of each are zeros


def test_samples_without_a_header_are_those_of_a_fam(tmp_path: Path) -> None:
    source = files(tmp_path, "".join(f"f{i} s{i} 0 0 0 -9\n" for i in range(4)))
    assert read(source, tmp_path / "rows.zarr", {"multiallelic": "skip"})[1].shape == (4, 2)


def test_sites_without_a_header_are_those_of_a_bim(tmp_path: Path) -> None:
    write_pgen(tmp_path / "t.pgen", np.ones((4, 2), np.uint8))
    (tmp_path / "t.pvar").write_text("1 rs7 0 10 G A\n1 . 0 20 T C\n")
    assert read(tmp_path / "t.pgen", tmp_path / "rows.zarr")[0] == ("rs7", "1:20:C:T")


def test_what_is_missing_beside_it_is_named(tmp_path: Path) -> None:
    source = files(tmp_path)
    (tmp_path / "t.pvar").rename(tmp_path / "t.pvar.zst")
    with pytest.raises(DataError, match=r"needs t.pvar beside it. Unpack t.pvar.zst \(zstd -d\)"):
        read(source, tmp_path / "no.zarr")
    (tmp_path / "t.psam").unlink()
    (tmp_path / "t.pvar.zst").rename(tmp_path / "t.pvar")
    with pytest.raises(DataError, match=r"needs t.psam beside it. Put it there"):
        read(source, tmp_path / "no.zarr")


def test_a_file_that_is_cut_or_struck_is_refused_or_read_within_its_bounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_pgen(tmp_path / "t.pgen", rng.integers(0, 3, (40, 30)).astype(np.uint8))
    whole = (tmp_path / "t.pgen").read_bytes()
    for case in range(12):
        struck = bytearray(whole)
        struck[int(rng.integers(len(whole)))] ^= int(rng.integers(1, 256))
        (tmp_path / "t.pgen").write_bytes(struck if case % 3 else whole[: int(rng.integers(len(whole)))])
        try:
            _, rows = read(tmp_path / "t.pgen", tmp_path / f"{case}.zarr", missing=0)
        except DpdistError as error:
            assert "t.pgen" in str(error)  # noqa: PT017 - either is right
        else:
            assert rows.max() <= 2
