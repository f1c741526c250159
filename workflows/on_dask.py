"""The job of scores.toml in Python, on a Dask cluster: python on_dask.py, again after whatever happened."""

import dask.distributed

import dpdist

if __name__ == "__main__":  # every worker process imports this file
    budget, loss = dpdist.PrivacyLoss.parse(2, "1e-6"), dpdist.PrivacyLoss.parse(1, "1e-6")
    request = dpdist.ReleaseRequest("gaussian", loss, clip_norm=100)
    with dask.distributed.LocalCluster() as cluster:  # or the object of SLURMCluster, Gateway, Coiled; or a Client
        where = dpdist.Cluster(client=cluster)
        dpdist.ingest_rows("table.csv", "rows.zarr", budget=budget, cluster=where)
        dpdist.release_rows("rows.zarr", "release.zarr", request, cluster=where)
        dpdist.fit_components("release.zarr", "model.zarr", 10)
        dpdist.project_rows("rows.zarr", "model.zarr", "scores.zarr", cluster=where)
