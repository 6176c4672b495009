"""Runs a fine-tuning recipe for every combination of model, fold, seed, training size and setting, and compares."""
