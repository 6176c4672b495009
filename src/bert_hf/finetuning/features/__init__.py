"""Rows become inputs of the network: cut texts, windows of words, windows of contexts; and back to answers."""
