"""Feature extraction: texts → hidden states of a BERT, in Parquet files."""
