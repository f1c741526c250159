"""Sources beyond tables and arrays: AnnData, HDF5, NetCDF, genotypes, and arrays with labels."""
