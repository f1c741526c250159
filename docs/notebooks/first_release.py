# %% [markdown]
# # A first release
#
# 1797 handwritten digits of 8 x 8 pixels become rows with a budget. One private matrix of them is published. Its
# components, and what is known of their error, cost nothing more. The digits are public: only therefore may the last
# cell compare with the exact answer.

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
# **Ingest**: a copy with an identity, and a budget. It says what may ever be learned of one row, and never changes.

# %%
np.save(folder / "digits.npy", digits)
budget = dpdist.PrivacyLoss.parse(2, "1e-6")
dpdist.ingest_rows(folder / "digits.npy", folder / "rows.zarr", budget=budget)

# %% [markdown]
# **Before anything is spent**: what will this release be worth? The forecast reads no row. It takes public numbers, and
# a guess of the variances of components: 2500, 200, 150, 100 for each row. A squared cosine of 1 is a perfect
# direction.

# %%
request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, "1e-6"), clip_norm=64)
forecast = dpdist.forecast_release(request, columns=64, rows=1797, spectrum=[2500, 200, 150, 100])
for each in forecast.expected:
    print(f"variance {each.variance:5.0f}: expected squared cosine {each.squared_cosine:.2f}")

# %% [markdown]
# **Release**: workers sum the rows exactly, one process adds noise, once. 64 is a public norm: a quarter of the pixels
# at full ink. Run the cell again: the same bytes, and nothing is spent.

# %%
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
again = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request)
print(outcome.release.guarantee)
print("the second time:", "drawn" if again.fresh else "the same release")
print(dpdist.Ledger(folder / "rows.ledger").balance())

# %% [markdown]
# **Components**, with what noise does to each. Those whose interval begins at 0 may be noise.

# %%
model = dpdist.fit_components(folder / "release.zarr", folder / "model.zarr", 5).model
model

# %% [markdown]
# **What privacy cost.** Private components above the exact ones.

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
