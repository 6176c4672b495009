"""Decisions by labelled rows: thresholds, baselines, error analysis."""
