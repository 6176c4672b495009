"""From raw text to batches: readers, tokenization, corpus store, sentence pairs, masks, collator."""
