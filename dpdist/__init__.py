"""Differentially private second-moment matrices and PCA of large tables, on Dask and Zarr."""

__version__ = "0.1.0"
