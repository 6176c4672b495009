"""Tools for finished checkpoints: studies, probe, features; and cost estimates."""
