"""Classes from one private release: near the exact models, in the units of X, and free from a release with a schema."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

import dpdist
from dpdist import Column, PrivateLDA, PrivateLogisticRegression, Schema
from dpdist.answers.logistic import logistic
from dpdist.answers.variables import variables
from dpdist.core.errors import BelowNoiseError, DataError, PrivacyLeakWarning, UsageError
from dpdist.estimators.checked import RowsError

Matrix = npt.NDArray[np.float64]
N = 20_000
ASK: dict[str, Any] = {"epsilon": 1, "delta": 1e-6}
MUCH: dict[str, Any] = {"epsilon": 1000, "delta": 1e-6, "clip": 9, "scale": "private"}
KINDS = [PrivateLogisticRegression, PrivateLDA]
pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released", "ignore:Epsilon 1000")
SCHEMA = Schema(
    [
        Column("region", "category", categories=["north", "south", "east"], weight=2), Column("premium", "boolean"),
        Column("age", "integer", range=(18, 90), bins=[30, 50]), Column("income", "number", missing="pairwise"),
        Column("churned", "boolean"), Column("plan", "category", categories=["a", "b", "c"]),
    ]
)  # fmt: skip


def numbers(seed: int = 1) -> tuple[Matrix, Any]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(N, 3)) * [3, 1, 5] + [50, 0, -7]  # noqa: N806
    return X, random.random(N) < expit(0.3 * (X[:, 0] - 50) - X[:, 1] - 0.5)


def people(seed: int = 2) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    region, age = random.choice(["north", "south", "east"], N), random.integers(18, 91, N)
    premium, income = random.random(N) < 0.3, random.normal(40, 12, N)
    churned = random.random(N) < expit(-0.5 + (region == "east") - premium + 0.03 * (age - 50) - 0.04 * (income - 40))
    plan = np.where(random.random(N) < 0.5, np.where(region == "north", "a", "b"), random.choice(["a", "b", "c"], N))
    income[random.random(N) < 0.1] = np.nan
    return pd.DataFrame(
        {"region": region, "premium": premium, "age": age, "income": income, "churned": churned, "plan": plan}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_with_little_noise_it_is_near_the_model_of_the_rows(kind: Any) -> None:
    X, y = numbers()  # noqa: N806
    exact: Any = LogisticRegression(C=1e9) if kind is PrivateLogisticRegression else LinearDiscriminantAnalysis()
    exact.fit(X, y)
    found = kind(**MUCH).fit(X, y)
    assert np.abs((found.coef_ - exact.coef_) * [3, 1, 5]).max() < 0.05  # per deviation
    assert np.abs(found.predict_proba(X) - exact.predict_proba(X)).max() < 0.03
    assert (found.predict(X) == exact.predict(X)).mean() > 0.98
    assert np.allclose(found.decision_function(X), X @ found.coef_[0] + found.intercept_)
    assert found.classes_.tolist() == [0, 1]
    with pytest.warns(PrivacyLeakWarning):
        assert found.score(X, y) == pytest.approx(exact.score(X, y), abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_at_epsilon_one_it_ranks_nearly_as_well(kind: Any) -> None:
    X, y = numbers()  # noqa: N806
    X -= [50, 0, -7]  # noqa: N806
    found = kind(**ASK, clip=4, scale=[3, 1, 5, 1]).fit(X, y)  # a private scale is far off in one of a thousand
    exact = LogisticRegression().fit(X, y)
    assert roc_auc_score(y, found.decision_function(X)) > roc_auc_score(y, exact.decision_function(X)) - 0.01
    assert found.guarantee_.loss.epsilon == 1


def test_intervals_are_those_of_the_effects_in_units_of_x() -> None:
    X, y = numbers()  # noqa: N806
    found = PrivateLogisticRegression(**ASK).fit(X, y)
    (model,) = logistic(variables(found.release_), "y")  # whose coverage tests/answers/test_logistic.py measures
    assert np.allclose(found.coef_[0], [each.value for each in model.effects])
    assert np.allclose(found.coef_intervals_[0], [each.interval for each in model.effects])
    assert found.intercept_[0] == pytest.approx(model.intercept)
    frame = people()
    by_schema = PrivateLogisticRegression(**ASK, schema=SCHEMA).fit(frame, "churned")
    effects = {each.name: each for each in logistic(variables(by_schema.release_), "churned")[0].effects}
    place = list(by_schema.feature_names_in_).index
    for feature, effect in (("region=east", "region=east"), ("premium", "premium=yes"), ("age", "age")):
        assert by_schema.coef_[0, place(feature)] == pytest.approx(effects[effect].value)  # whatever weights
        assert np.allclose(by_schema.coef_intervals_[0, place(feature)], effects[effect].interval)
    assert by_schema.coef_[0, place("region=north")] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", ["none", "range"])
def test_a_dataframe_is_of_the_source_even_if_its_names_are_those_of_the_rows(kind: Any, scale: str) -> None:
    X, y = numbers()  # noqa: N806
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    schema = Schema(
        [Column("a", "number", range=(30, 70)), Column("b", "number", range=(-5, 5)),
         Column("c", "number", range=(-40, 30)), Column("y", "boolean")], scale,
    )  # fmt: skip
    fitted = kind(epsilon=1000, delta=1e-6, schema=schema).fit(frame, "y")
    exact: Any = LogisticRegression(C=1e9) if kind is PrivateLogisticRegression else LinearDiscriminantAnalysis()
    exact.fit(X, y)
    assert np.abs((fitted.coef_ - exact.coef_) * [3, 1, 5]).max() < 0.05  # in units of the source
    assert np.abs(fitted.predict_proba(frame.drop(columns="y")) - exact.predict_proba(X)).max() < 0.03
    encoded = schema.transform(frame)[["a", "b", "c"]].to_numpy()
    with pytest.warns(UserWarning, match="valid feature names"):  # of scikit-learn, for every array
        assert np.allclose(fitted.predict_proba(encoded), fitted.predict_proba(frame))
    alone = kind.from_release(fitted.release_, "y", "a")
    assert alone.predict(frame[["a"]]).shape == (N,)


def test_labels_are_read_as_the_schema_reads_them() -> None:
    frame = people()
    schema = Schema([Column("age", "number", range=(18, 90)), Column("class", "category", categories=["1", "2"]),
                     Column("paid", "boolean")])  # fmt: skip
    near = frame["age"] + np.random.default_rng(6).normal(0, 15, N)
    frame["class"], frame["paid"] = np.where(near > 50, 2, 1), np.where(near > 40, "yes", "no")
    fitted = PrivateLDA(epsilon=1000, delta=1e-6, schema=schema).fit(frame[["age", "class", "paid"]], "class")
    paid = PrivateLDA.from_release(fitted.release_, "paid")
    for model, labels in ((fitted, frame["class"]), (fitted, frame["class"].astype(str)), (paid, frame["paid"])):
        with pytest.warns(PrivacyLeakWarning):
            assert model.score(frame, labels) > 0.75
    with pytest.raises(DataError, match="not among the categories"):
        fitted.score(frame, frame["class"] + 7)
    X, y = numbers()  # noqa: N806
    for labels in (pd.Series(y).astype("boolean").mask(X[:, 0] > 60), np.where(y, "yes", "no")):
        with pytest.raises(RowsError, match=r"another class than 0, 1|requires|lacks one"):
            PrivateLDA(**MUCH).fit(X, labels)
        with pytest.raises(DataError, match=r"another class than 0, 1"):
            PrivateLDA(**MUCH).fit(
                dd.from_pandas(pd.DataFrame(X), npartitions=2),
                dd.from_pandas(pd.Series(labels).astype(object), npartitions=2),
            )
    plain = PrivateLDA(**MUCH).fit(X, y)
    with pytest.raises(RowsError, match="another class"):
        plain.score(X, np.where(y, "1", "0"))


def test_a_model_of_bins_alone_reads_their_number_as_it_is(tmp_path: Path) -> None:
    fitted = PrivateLDA(epsilon=1000, delta=1e-6, schema=SCHEMA).fit(people(), "churned")
    bins = PrivateLDA.from_release(fitted.release_, "churned", ["age_bins"])
    assert bins.predict_proba(pd.DataFrame({"age": [20, 40, 60]})).shape == (3, 2)
    for age in (["old"], [np.nan]):
        with pytest.raises(DataError, match="age"):
            bins.predict_proba(pd.DataFrame({"age": age}))
    with pytest.raises(RowsError, match=r"X lacks columns of the source: age\."):
        bins.predict_proba(pd.DataFrame({"ages": [1]}))
    frame = people()
    encoded = SCHEMA.transform(frame)[list(fitted.feature_names_in_)].fillna(fitted._fills)
    assert np.allclose(fitted.predict_proba(encoded), fitted.predict_proba(frame))
    units = Schema([*SCHEMA.sources, Column("person", "privacy unit")])
    frame["person"] = np.arange(N)
    frame.to_csv(tmp_path / "people.csv", index=False)
    dpdist.ingest_rows(tmp_path / "people.csv", tmp_path / "rows.zarr", schema=units,
                       budget=dpdist.PrivacyLoss.parse(100, "1e-6"))  # fmt: skip
    stored = PrivateLDA(epsilon=100, delta=1e-6).fit(tmp_path / "rows.zarr", "churned")
    assert stored.predict(frame).shape == (N,)


def test_a_class_that_a_column_determines_is_no_error_of_discriminants() -> None:
    random = np.random.default_rng(6)
    place = random.integers(0, 3, N)
    X = np.column_stack([place == 0, random.normal(size=N) + (place == 1)]) + random.normal(0, 0.05, (N, 2))  # noqa: N806
    fitted = PrivateLDA([0, 1, 2], **MUCH).fit(X, place)
    assert (fitted.predict(X)[place == 0] == 0).mean() > 0.99


def test_persons_are_named_by_a_column_that_the_schema_leaves_out() -> None:
    frame = people().assign(person=np.arange(N) // 4)
    schema = Schema(SCHEMA.sources, others="ignored")
    by_name, by_values = (
        PrivateLDA(epsilon=100, delta=1e-6, schema=schema).fit(frame, "churned", groups=groups)
        for groups in ("person", frame["person"])
    )
    assert by_name.release_.unit is not None
    assert by_values.release_.unit is not None
    with pytest.raises(UsageError, match="X has no 'nobody' there"):
        PrivateLDA(**ASK, schema=schema).fit(frame, "churned", groups="nobody")


def test_a_class_below_the_noise_keeps_its_place_and_its_share() -> None:
    random = np.random.default_rng(4)
    x, rare = random.normal(size=N), random.random(N) < 0.002
    y = np.where(rare, "rare", np.where(x + random.normal(size=N) > 0, "high", "low"))
    fitted = PrivateLogisticRegression(["rare", "low", "high"], **ASK).fit(np.column_stack([x, x**2 % 1]), y)
    odds = fitted.predict_proba(np.column_stack([x, x**2 % 1]))
    assert fitted.coef_.shape == (3, 2)
    assert odds.shape == (N, 3)
    assert (fitted.coef_[0] == 0).all()
    assert np.isinf(fitted.coef_intervals_[0]).all()
    assert odds[:, 0].mean() < 0.05
    assert (fitted.predict(np.array([[2.0, 0.5], [-2.0, 0.5]])) == ["high", "low"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_with_a_schema_answers_for_each_category_and_for_rows_of_the_source(
    kind: Any, tmp_path: Path
) -> None:
    frame = people()
    fitted = kind(epsilon=1000, delta=1e-6, schema=SCHEMA).fit(frame, "churned")
    again = kind.from_release(fitted.release_, "churned")
    assert np.array_equal(again.coef_, fitted.coef_)
    assert fitted.classes_.tolist() == [False, True]
    left_out = {"churned", "income=missing", *(name for name in SCHEMA.features if name.startswith("age_bins"))}
    names = [name for name in SCHEMA.features if name not in left_out]
    assert sorted(fitted.feature_names_in_) == sorted(names)
    odds = fitted.predict_proba(frame)  # by the columns of the source, also without the target
    assert np.array_equal(odds, fitted.predict_proba(frame.drop(columns="churned")))
    rows = SCHEMA.transform(frame)[list(fitted.feature_names_in_)].fillna(fitted._fills)
    assert np.allclose(odds, fitted.predict_proba(rows))
    assert np.allclose(odds, np.asarray(fitted.predict_proba(dd.from_pandas(frame, npartitions=3))))
    known = frame[frame["income"].notna()]
    design = np.column_stack(
        [known["region"] == "south", known["region"] == "east", known["premium"], known["age"], known["income"]]
    ).astype(float)
    exact = LogisticRegression(C=1e9, max_iter=5000).fit(design, known["churned"]).predict_proba(design)
    assert np.abs(fitted.predict_proba(known) - exact).mean() < 0.03
    plan = kind.from_release(fitted.release_, "plan", ["region", "age"])
    assert plan.classes_.tolist() == ["a", "b", "c"]
    assert np.allclose(plan.predict_proba(frame).sum(axis=1), 1)
    assert list(plan.feature_names_in_) == ["region=north", "region=south", "region=east", "age"]
    north = plan.predict(frame)[(frame["region"] == "north").to_numpy()]
    assert (north == "a").all()
    frame.to_csv(tmp_path / "people.csv", index=False)
    dpdist.ingest_rows(tmp_path / "people.csv", tmp_path / "rows.zarr", schema=SCHEMA,
                       budget=dpdist.PrivacyLoss.parse(1, 1e-6))  # fmt: skip
    stored = kind(**ASK).fit(tmp_path / "rows.zarr", "churned")
    assert roc_auc_score(frame["churned"], stored.predict_proba(frame)[:, 1]) > 0.6


def test_classes_are_named_and_several_are_coded() -> None:
    X, y = numbers()  # noqa: N806
    words = np.where(y, "yes", "no")
    with pytest.raises(RowsError, match="y has another class than 0, 1, or lacks one"):
        PrivateLogisticRegression(**MUCH).fit(X, words)
    named = PrivateLogisticRegression(["no", "yes"], **MUCH).fit(X, words)
    plain = PrivateLogisticRegression(**MUCH, budget_epsilon=5000, budget_delta=1e-4).fit(X, y)
    assert np.allclose(named.coef_, plain.coef_, atol=0.02)
    assert set(named.predict(X)) == {"no", "yes"}
    near = X[:, 1] + np.random.default_rng(3).normal(0, 0.3, N)
    three = np.where(near > 0.5, "high", np.where(near < -0.5, "low", "middle"))
    asked = {**MUCH, "budget_epsilon": 9000, "budget_delta": 1e-3}
    several = PrivateLogisticRegression(["low", "middle", "high"], **asked).fit(X, three)
    assert several.coef_.shape == (3, 3)
    assert several.predict_proba(X).shape == (N, 3)
    assert (several.predict(X)[X[:, 1] > 1.5] == "high").all()
    steep = LogisticRegression(C=1e9, max_iter=5000).fit(X, three == "high").coef_[0, 1]
    assert several.coef_[2, 1] == pytest.approx(steep, rel=0.1)  # 6 per deviation
    for classes in (["one"], ["a", "a"], "ab"):
        with pytest.raises(UsageError, match="two different classes or more"):
            PrivateLogisticRegression(classes, **ASK).fit(X, y)


def test_classes_that_a_column_determines_have_no_odds() -> None:
    X, _ = numbers()  # noqa: N806
    with pytest.raises(UsageError, match="determine y without error, as far as"):
        PrivateLogisticRegression(**MUCH).fit(np.column_stack([X, X[:, 0] > 50]), X[:, 0] > 50)


def test_lazy_rows_and_classes_give_lazy_probabilities() -> None:
    X, y = numbers()  # noqa: N806
    lazy, classes = da.from_array(X, chunks=(3000, 3)), da.from_array(y, chunks=3000)
    found = PrivateLogisticRegression(**MUCH).fit(lazy, classes)
    assert isinstance(found.predict_proba(lazy), da.Array)
    assert np.allclose(found.predict_proba(lazy).compute(), found.predict_proba(X))


def test_it_is_an_estimator() -> None:
    X, y = numbers()  # noqa: N806
    asked = PrivateLogisticRegression([0, 1], **MUCH)
    assert clone(asked).get_params() == asked.get_params()
    found = asked.fit(X, y)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - of this test
    assert np.array_equal(again.predict(X), found.predict(X))
    assert found.__sklearn_tags__().estimator_type == "classifier"
    piped = make_pipeline(SCHEMA, PrivateLogisticRegression(epsilon=1000, delta=1e-6))
    frame = people()
    with pytest.raises(RowsError):
        piped.fit(frame, frame["churned"].map({True: "y", False: "n"}))


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_refused_before_it_is_charged_or_kept(kind: Any, register: Any) -> None:
    X, y = numbers()  # noqa: N806
    for arguments, match in (
        ((X, None), "requires y"), ((X, "churned"), "no column 'churned'"), ((X, y[:5]), "inconsistent numbers"),
        ((X, np.column_stack([y, y])), "one class per row"),
    ):  # fmt: skip
        with pytest.raises(RowsError, match=match):
            kind(**ASK).fit(*arguments)
    with pytest.raises(UsageError, match=r"no boolean or category of the schema\. These are: region, premium"):
        kind(**ASK, schema=SCHEMA).fit(people(), "age")
    missing = Schema([Column("age", "number"), Column("paid", "boolean", missing="pairwise"),
                      Column("land", "category", categories=["here"])])  # fmt: skip
    for target, match in (("paid", "three classes"), ("land", "has one category")):
        with pytest.raises(UsageError, match=match):
            kind(**ASK, schema=missing).fit(people(), target)
    with pytest.raises(UsageError, match="Leave classes out"):
        kind([0, 1], **ASK, schema=SCHEMA).fit(people(), "churned")
    for centre, scale in (("none", "private"), ([50.0, 0.0, -7.0, 0.5], "none"), ("private", [1.0, 1.0, 1.0, 1.0])):
        with pytest.raises(UsageError, match="needs the mean"):
            kind(**ASK, clip=4, centre=centre, scale=scale).fit(X, y)
    assert register._fits == []
    random, refused = np.random.default_rng(5), 0
    for _ in range(4):  # each is refused in 95 of 100 fits
        nothing = kind(epsilon=0.1, delta=1e-6, clip=4, scale=[1, 1, 1, 1])
        with suppress(BelowNoiseError):
            nothing.fit(random.normal(size=(3000, 3)), random.random(3000) < 0.5)
        refused += not hasattr(nothing, "coef_") and nothing.release_.rows == 3000
    assert refused >= 2
    ridge = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=5).fit(random.normal(size=(3000, 3)))
    with pytest.raises(UsageError, match="This release has no categories"):
        kind.from_release(ridge.release_, "c0")
