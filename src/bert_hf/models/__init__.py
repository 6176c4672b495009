"""The BERT network, attention without padding, safe loading of checkpoints, FLOP counts and cost estimates."""
