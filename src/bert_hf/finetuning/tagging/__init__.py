"""Labelled words: CoNLL files, windows of words, entities, and the BiLSTM tagger on frozen features."""
