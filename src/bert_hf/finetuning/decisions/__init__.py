"""Decisions by labelled rows: thresholds, baselines, drift."""
