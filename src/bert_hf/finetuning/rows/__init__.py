"""Labelled rows: read from files and the Hub, split into parts, grouped by near-duplicates."""
