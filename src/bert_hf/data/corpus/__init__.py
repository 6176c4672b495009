"""From text to a corpus: tokenized documents in memory-mapped shards, and a report on them."""
