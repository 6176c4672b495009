"""Shared helpers of the tests: short runs, corpora and commands."""
