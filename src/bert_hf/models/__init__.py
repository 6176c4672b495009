"""The BERT network, attention without padding, safe loading of checkpoints, and FLOP counts."""
