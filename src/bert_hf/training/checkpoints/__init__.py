"""Checkpoints: their files, their manifest, and what is saved and restored."""
