"""What every training shares: checkpoints and resume, optimizers, and the start and end of a run."""
