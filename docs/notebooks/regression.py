# %% [markdown]
# # From rows to a regression
#
# Rows with a budget, one private release of them, and what follows from it at no further cost. The rows are made up.

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
# **Ingest**: a copy with an identity, and a budget that never changes.

# %%
budget = dpdist.PrivacyLoss.parse(2, "1e-6")
dpdist.ingest_rows(folder / "people.csv", folder / "rows.zarr", budget=budget)

# %% [markdown]
# **Release**: once, with a centre and a scale of each column that are found privately, and the mean. Rows
# longer than 4 deviations would be shortened; of three columns hardly any is. Run this cell again: it is the same
# release, and nothing more is spent.

# %%
request = dpdist.ReleaseRequest(
    "gaussian", dpdist.PrivacyLoss.parse(1, "1e-6"), clip_norm=4, scale="private", centring=dpdist.Centring.PRIVATE
)
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
outcome.release

# %% [markdown]
# **Regression**, with intervals for the noise. It is free, as is every other one among these columns. The default is a
# ridge, which noise makes necessary where columns are nearly collinear, and which shrinks coefficients a little. These
# two are not collinear, so none is taken. The rows were made with 30 and 5.

# %%
found = dpdist.PrivateRidge.from_release(outcome.release, "income", ridge=0)
for name, value, (low, high) in zip(found.feature_names_in_, found.coef_, found.coef_intervals_, strict=True):
    print(f"{name}: {value:.1f}, between {low:.1f} and {high:.1f}")
found

# %% [markdown]
# **Partial correlations**, given all other columns, and **synthetic rows** with the same mean and covariance.

# %%
covariance = dpdist.PrivateCovariance.from_release(outcome.release)
print(np.round(covariance.partial_correlation_, 2))
covariance.sample(3)
