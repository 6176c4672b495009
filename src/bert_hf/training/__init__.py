"""Trainers, checkpoints, preemption, optimizers, and the start and end of every run."""
