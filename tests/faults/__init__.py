"""Fault injection for runs: kills, damaged checkpoints, signals, full disks, failing ranks (`make faults`)."""
