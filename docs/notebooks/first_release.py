# %% [markdown]
# # A first release
#
# This notebook ingests 1797 handwritten digits of 8 x 8 pixels with a budget and publishes one private matrix. Its
# components and their error estimates cost nothing more. The last cell compares them with the exact answer, which is
# acceptable only because the digits are public.

# %%
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import dpdist

folder = Path(mkdtemp())
digits = load_digits().data
digits.shape

# %% [markdown]
# **Ingest** makes a copy with an identity and a fixed budget: the total that all releases may reveal about one row.

# %%
np.save(folder / "digits.npy", digits)
budget = dpdist.PrivacyLoss.parse(2, "1e-6")
dpdist.ingest_rows(folder / "digits.npy", folder / "rows.zarr", budget=budget)

# %% [markdown]
# **Forecast** the accuracy of the release before spending anything. The forecast reads no row. It uses public numbers
# and a guess of the variances of the components: 2500, 200, 150, 100 per row. A squared cosine of 1 is perfect
# alignment.

# %%
request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, "1e-6"), clip_norm=64)
forecast = dpdist.forecast_release(request, columns=64, rows=1797, spectrum=[2500, 200, 150, 100])
for each in forecast.expected:
    print(f"variance {each.variance:5.0f}: expected squared cosine {each.squared_cosine:.2f}")

# %% [markdown]
# **Release**: workers sum the rows exactly, and a single process adds noise once. The clip norm 64 follows from public
# knowledge: a quarter of the pixels at full ink. Run the cell again: the bytes are the same, and nothing is spent.

# %%
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
again = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
print(outcome.release.guarantee)
print("the second time:", "drawn" if again.fresh else "the same release")
print(dpdist.Ledger(folder / "rows.ledger").balance())

# %% [markdown]
# **Components**, with the effect of the noise on each. A component whose interval starts at 0 may be noise.

# %%
model = dpdist.fit_components(folder / "release.zarr", folder / "model.zarr", 5).model
model

# %% [markdown]
# **The cost of privacy**: private components above the exact ones.

# %% mystnb={"image": {"alt": "Five private components above five exact ones: the first agrees, the others are noisy."}}
_, exact = np.linalg.eigh(digits.T @ digits)
exact = exact[:, ::-1][:, :5].T
private = model.components.components
figure, axes = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
for i in range(5):
    cosine = private[i] @ exact[i]
    axes[0, i].imshow(private[i].reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
    axes[1, i].imshow(np.sign(cosine) * exact[i].reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
    axes[0, i].set_title(f"cos² {cosine**2:.2f}", fontsize=10)
for row, words in zip(axes, ("private", "exact"), strict=True):
    row[0].set_ylabel(words)
    for one in row:
        one.set(xticks=[], yticks=[])
