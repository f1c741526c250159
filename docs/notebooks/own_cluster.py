# %% [markdown]
# # A cluster of one's own
#
# Rows that a Dask program makes are written, summed and projected by the workers of its own cluster. Here they are two
# processes of this machine; the client of any other cluster is given in the same way.

# %%
from pathlib import Path
from tempfile import mkdtemp

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import dpdist

folder = Path(mkdtemp())
client = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None))
cluster = dpdist.Cluster(client=client)
client.nthreads()

# %% [markdown]
# **A million rows, lazily**: 20 columns that three directions explain. No process ever holds all of them. Each chunk is
# written by the worker that computes it.

# %%
random = da.random.default_rng(0)
directions = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 3)))[0] * [3, 2, 1]
rows = random.normal(size=(1_000_000, 3), chunks=(100_000, 3)) @ directions.T
rows = rows + 0.3 * random.normal(size=(1_000_000, 20), chunks=(100_000, 20))
budget = dpdist.PrivacyLoss.parse(1, "1e-9")
dpdist.ingest_rows(rows, folder / "rows.zarr", budget=budget, cluster=cluster)

# %% [markdown]
# **Release, components, scores** on the same workers. The workers see rows; this process adds the noise, once.

# %%
request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("0.5", "1e-9"), clip_norm=10)
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request, cluster=cluster)
model = dpdist.fit_components(folder / "release.zarr", folder / "model.zarr", 3).model
dpdist.project_rows(folder / "rows.zarr", folder / "model.zarr", folder / "scores.zarr", cluster=cluster)
model

# %% [markdown]
# **A worker dies.** Dask computes its tasks again elsewhere; a release stays the same one, whatever is repeated.

# %%
client.cluster.workers[0].process.process.kill()
again = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request, cluster=cluster)
print("drawn again" if again.fresh else "the same release, nothing spent")
print(dpdist.Ledger(folder / "rows.ledger").balance())

# %% [markdown]
# **The scores** are a Zarr array of private rows, in three columns: Dask reads them lazily.

# %%
scores = da.from_zarr(str(folder / "scores.zarr"))
print("variance of each score:", np.round(scores.var(axis=0).compute(), 2))
client.close()
client.cluster.close()
