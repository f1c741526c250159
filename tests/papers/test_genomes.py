"""Ancestry from genomes: cohorts are aligned and kept apart, and a small version runs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import PUBLIC_DATA
from support.paper_runs import PNG, run

from dpdist.core.errors import DataError
from papers import genomes

VARIANTS, PEOPLE = 400, 300


def cohort(seed: int, people: int, names: list[str]) -> dict[str, Any]:
    truth = np.random.default_rng(0)
    frequency = truth.uniform(0.1, 0.9, (3, VARIANTS))
    rng = np.random.default_rng(seed)
    of = np.arange(people) % 3
    return {
        "X": rng.binomial(2, frequency[of]).astype(np.uint8),
        "sample_id": np.array(names),
        "snp_id": np.array([f"rs{i}" for i in range(VARIANTS)]),
        "allele1": np.full(VARIANTS, "A"),
        "allele2": np.full(VARIANTS, "G"),
        "y": np.where(rng.random(people) < 0.1, "", np.array(["one", "two", "three"])[of]),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # the panel in another order, with 50 people of the private cohort and missing genotypes
    found = tmp_path_factory.mktemp("genomes")
    held = cohort(1, PEOPLE, [f"p{i}" for i in range(PEOPLE)])
    panel = cohort(2, 200, [*(f"p{i}" for i in range(50)), *(f"q{i}" for i in range(150))])
    panel["X"][60, 7] = panel["X"][61, 8] = genomes.MISSING
    order = np.random.default_rng(3).permutation(VARIANTS)
    panel |= {name: panel[name][..., order] for name in ("X", "snp_id", "allele1", "allele2")}
    np.savez(found / "thousand_genomes.npz", **held)
    np.savez(found / "hapmap3.npz", **panel)
    return found


def test_variants_are_aligned_and_nobody_is_in_both_cohorts(folder: Path) -> None:
    found = genomes.read(folder)
    assert found.private.shape[1] == found.panel.shape[1] == found.facts["variants kept"]
    assert found.facts["people of the panel"] == len(found.panel) == 150
    assert found.facts["correlation of the allele frequencies of the two"] > 0.9
    assert np.isfinite(found.panel).all()
    # standardised by the panel
    assert np.abs(found.panel.mean(axis=0)).max() < 1e-12
    assert np.abs(found.private.mean(axis=0)).mean() < 0.2
    # the first two components of three populations point the same way in both
    own = np.linalg.svd(found.private, full_matrices=False)[2][:2]
    assert ((own @ found.basis("panel 2").T) ** 2).sum() / 2 > 0.8
    for route in ("panel 5", "variants 30"):
        basis = found.basis(route)
        assert np.allclose(basis @ basis.T, np.eye(len(basis)))


def test_directions_and_clip_norm_do_not_depend_on_the_private_cohort(folder: Path, tmp_path: Path) -> None:
    other = dict(np.load(folder / "thousand_genomes.npz"))
    other["X"] = 2 - other["X"]
    np.savez(tmp_path / "thousand_genomes.npz", **other)
    (tmp_path / "hapmap3.npz").write_bytes((folder / "hapmap3.npz").read_bytes())
    one, two = genomes.read(folder), genomes.read(tmp_path)
    for route in ("panel 5", "variants 30"):
        assert np.array_equal(one.basis(route), two.basis(route))
    first, second = (genomes.route_of(cohorts, "panel 5").moment.bound for cohorts in (one, two))
    assert first == second


def test_other_alleles_and_missing_private_genotypes_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hapmap3.npz").write_bytes((folder / "hapmap3.npz").read_bytes())
    for name, change, match in (("X", genomes.MISSING, "is missing"), ("allele1", "T", "same alleles")):
        held = dict(np.load(folder / "thousand_genomes.npz"))
        held[name].flat[5] = change
        np.savez(tmp_path / "thousand_genomes.npz", **held)
        with pytest.raises(DataError, match=match):
            genomes.read(tmp_path)


def test_a_small_version_runs(scheduler: str, folder: Path, tmp_path: Path) -> None:
    found, rows = run(genomes, scheduler, tmp_path, "--data", str(folder))
    assert (tmp_path / f"{genomes.NAME}_scores.png").read_bytes()[:4] == PNG
    assert len(rows) == 2 * 2 * 2 * 2 * 2  # routes, mechanisms, relations, epsilons, draws
    base = found["without noise"]["PCA without privacy"]
    assert (base["captured"], base["overlap"]) == (pytest.approx(100, abs=0.01), pytest.approx(1, abs=1e-4))
    assert base["accuracy"] > 90  # three populations, well apart
    assert found["without noise"]["the most frequent population"]["accuracy"] < 40
    means = {(m["route"], m["mechanism"], m["neighbours"], m["epsilon"]): m for m in found["means"]}
    for mechanism, relation in product(genomes.MECHANISMS, genomes.RELATIONS):
        mean = means["panel 5", mechanism, relation, "10"]
        assert mean["accuracy"]["mean"] > 90
        assert mean["captured"]["mean"] <= found["without noise"]["panel 5, without noise"]["captured"] + 0.5
    told = {(f["route"], f["epsilon"]): f for f in found[f"forecast for {genomes.FORECAST_ROWS} people"]}
    assert told["panel 5", "10"]["squared cosines"][0] > 0.99
    assert told["all variants", "1"]["threshold in people"][0] > told["panel 5", "1"]["threshold in people"][0]


@pytest.mark.skipif(not (PUBLIC_DATA / "hapmap3.npz").exists(), reason="the real genomes are not here")
def test_the_real_cohorts_agree_in_their_alleles() -> None:
    found = genomes.read(PUBLIC_DATA)
    assert found.facts["people of the panel"] == 393
    assert found.facts["correlation of the allele frequencies of the two"] > 0.9
    assert len(found.private) == 1092
