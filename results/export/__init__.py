"""Results as files (CSV, raw JSON, JSON Lines, Parquet), and the columns that lists and pivots read."""
