# %% [markdown]
# # Correlations of a mixed table
#
# A survey of 1974 asked 6366 married women about their marriage (Fair 1978; the table comes with statsmodels). The
# columns are ages, years, grades and an occupation, given as text. A schema declares their meaning. It is based on the
# public questionnaire, not on the answers.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

import dpdist

folder = Path(mkdtemp())
occupations = ["student", "unskilled", "white-collar", "skilled", "managerial", "professional"]
table = sm.datasets.fair.load_pandas().data
table["occupation"] = [occupations[int(code) - 1] for code in table["occupation"]]
table.to_csv(folder / "fair.csv", index=False)
print(dpdist.draft_schema(folder / "fair.csv", header="yes")[:600])

# %% [markdown]
# The draft contains only the names. Fill in the possible values by hand.

# %%
grades = [dpdist.Column(name, "number", range=(1, 5)) for name in ("rate_marriage", "religious")]
schema = dpdist.Schema(
    [
        *grades,
        dpdist.Column("age", "number", range=(17, 42)),
        dpdist.Column("yrs_married", "number", range=(0, 23)),
        dpdist.Column("children", "number", range=(0, 6)),
        dpdist.Column("educ", "number", range=(9, 20)),
        dpdist.Column("affairs", "number", range=(0, 10)),
        dpdist.Column("occupation", "category", categories=occupations),
        dpdist.Column("occupation_husb", "ignored"),
    ],
    scale="range",
)
print(f"no row has a norm above {schema.norm:.2f}")

# %%
budget = dpdist.PrivacyLoss.parse(1, "1e-6")
rows = dpdist.ingest_rows(folder / "fair.csv", folder / "rows.zarr", budget=budget, schema=schema, header="yes")
request = dpdist.ReleaseRequest("gaussian", budget, clip_norm="auto", scale="private", centring=dpdist.Centring.PRIVATE)
release = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request).release
release

# %% [markdown]
# **Principal components of the correlation matrix**, each with its share of the variance and its interval.

# %%
model = dpdist.fit_components(folder / "release.zarr", folder / "model.zarr", 3, correlation=True).model
model

# %% [markdown]
# **The correlations**, shrunk according to the distribution of the noise. They are as public as the release.

# %% mystnb={"image": {"alt": "Private correlations of all columns as a coloured table."}}
covariance = dpdist.PrivateCovariance.from_release(release)
names = [str(name) for name in covariance.feature_names_in_]
figure, axes = plt.subplots(figsize=(6.5, 5.5), layout="constrained")
drawn = axes.imshow(covariance.correlation_, cmap="RdBu_r", vmin=-1, vmax=1)
axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
axes.set_yticks(range(len(names)), names, fontsize=8)
axes.set_title(f"private correlations, {budget}", fontsize=10)
_ = figure.colorbar(drawn)

# %% [markdown]
# The large correlations that exceed the noise:

# %%
low, high = np.moveaxis(np.array(covariance.correlation_intervals_), -1, 0)
for i, j in zip(*np.triu_indices(len(names), 1), strict=True):
    if low[i, j] > 0.2 or high[i, j] < -0.2:
        value = covariance.correlation_[i, j]
        print(f"{names[i]:>16} {names[j]:<16} {value:+.2f}, between {low[i, j]:+.2f} and {high[i, j]:+.2f}")
