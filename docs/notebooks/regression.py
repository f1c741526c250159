# %% [markdown]
# # From rows to a regression
#
# This notebook ingests synthetic rows with a budget, makes one private release, and computes answers from it at no
# further cost.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import dpdist

folder = Path(mkdtemp())
random = np.random.default_rng(1)
age, height = random.normal(45, 15, 20_000), random.normal(170, 10, 20_000)
income = 800 + 30 * age + 5 * height + random.normal(0, 400, 20_000)
header = "age,height,income"
np.savetxt(folder / "people.csv", np.column_stack([age, height, income]), delimiter=",", header=header, comments="")

# %% [markdown]
# **Ingest** makes a copy with an identity and a fixed budget.

# %%
budget = dpdist.PrivacyLoss.parse(2, "1e-6")
dpdist.ingest_rows(folder / "people.csv", folder / "rows.zarr", budget=budget)

# %% [markdown]
# **Release** once, with a privately estimated centre and scale for each column, and with the mean. Rows longer than 4
# standard deviations are clipped; with three columns there are hardly any. Run this cell again: the release is the
# same, and nothing more is spent.

# %%
request = dpdist.ReleaseRequest(
    "gaussian", dpdist.PrivacyLoss.parse(1, "1e-6"), clip_norm=4, scale="private", centring=dpdist.Centring.PRIVATE
)
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
outcome.release

# %% [markdown]
# **Regression**, with intervals that account for the noise. It is free, like every other regression among these
# columns. By default a ridge is used if columns are nearly collinear, because the noise requires it; it shrinks
# coefficients slightly. These two columns are not collinear, so no ridge is used. The true coefficients are 30 and 5.

# %%
found = dpdist.PrivateRidge.from_release(outcome.release, "income", ridge=0)
for name, value, (low, high) in zip(found.feature_names_in_, found.coef_, found.coef_intervals_, strict=True):
    print(f"{name}: {value:.1f}, between {low:.1f} and {high:.1f}")
found

# %% [markdown]
# **Partial correlations** given all other columns, and **synthetic rows** with the same mean and covariance.

# %%
covariance = dpdist.PrivateCovariance.from_release(outcome.release)
print(np.round(covariance.partial_correlation_, 2))
covariance.sample(3)
