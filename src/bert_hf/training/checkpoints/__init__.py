"""Checkpoints: their folders and manifests, and the parts that are saved and restored."""
