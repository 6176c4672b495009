"""What looks at finished checkpoints: studies, the probe, features, cost estimates."""
