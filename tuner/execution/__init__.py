"""Where the steps of the coordinator run: warm children with limits and filters, or a Dask cluster of such."""
