"""Splits labelled rows: near-duplicate groups, stratified parts, folds and their files."""
