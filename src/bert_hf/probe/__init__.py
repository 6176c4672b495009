"""What a checkpoint knows: the parts of recipes/probe.py."""
