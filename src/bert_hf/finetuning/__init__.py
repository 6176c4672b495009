"""Downstream tasks: labelled data, splits, metrics, baselines."""
