"""Writing a run: to disk as Parquet parts, or to memory."""
