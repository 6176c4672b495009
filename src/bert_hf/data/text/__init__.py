"""From files to text: where text lies, how it is read, and how a tokenizer is trained on it."""
