"""Data as rows: frames, columns, tables, sources of row blocks, rows computed when they are asked for."""
