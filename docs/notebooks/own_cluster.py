# %% [markdown]
# # A cluster of one's own
#
# The workers of your cluster write, sum and project the rows of a Dask computation. Here the cluster consists of two
# processes on this machine; pass the client of any other cluster in the same way.

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
# **A million lazy rows** with 20 columns and three strong directions. No process ever holds all rows. Each chunk is
# written by the worker that computes it.

# %%
random = da.random.default_rng(0)
directions = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 3)))[0] * [3, 2, 1]
rows = random.normal(size=(1_000_000, 3), chunks=(100_000, 3)) @ directions.T
rows = rows + 0.3 * random.normal(size=(1_000_000, 20), chunks=(100_000, 20))
budget = dpdist.PrivacyLoss.parse(1, "1e-9")
dpdist.ingest_rows(rows, folder / "rows.zarr", budget=budget, cluster=cluster)

# %% [markdown]
# **Release, components and scores** on the same workers. The workers see rows; this process adds the noise once.

# %%
request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("0.5", "1e-9"), clip_norm=10)
outcome = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request, cluster=cluster)
model = dpdist.fit_components(folder / "release.zarr", folder / "model.zarr", 3).model
dpdist.project_rows(folder / "rows.zarr", folder / "model.zarr", folder / "scores.zarr", cluster=cluster)
model

# %% [markdown]
# **If a worker dies**, Dask repeats its tasks on other workers. The release is still drawn only once.

# %%
client.cluster.workers[0].process.process.kill()
again = dpdist.release_rows(folder / "rows.zarr", folder / "release.zarr", request, cluster=cluster)
print("drawn again" if again.fresh else "the same release, nothing spent")
print(dpdist.Ledger(folder / "rows.ledger").balance())

# %% [markdown]
# **The scores** are a Zarr array of private rows with three columns, which Dask reads lazily.

# %%
scores = da.from_zarr(str(folder / "scores.zarr"))
print("variance of each score:", np.round(scores.var(axis=0).compute(), 2))
client.close()
client.cluster.close()
