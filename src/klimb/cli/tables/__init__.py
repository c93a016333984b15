"""Reading and writing tables: CSV, Parquet, npz, svmlight; a chunk at a time, only the columns that are asked for."""
