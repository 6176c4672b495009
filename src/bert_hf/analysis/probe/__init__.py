"""The probe of a checkpoint: the parts of recipes/probe.py."""
