"""From a corpus to batches: sentence pairs, masks, their order, and the collator."""
