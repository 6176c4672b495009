"""Pre-training: its trainer, losses, step budget, report and model card."""
