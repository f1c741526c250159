"""How work runs: Dask clusters, their keys, processes."""
