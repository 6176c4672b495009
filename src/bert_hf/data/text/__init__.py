"""Raw text: sources, readers, tokenizer training."""
