"""The BERT network, its unpadded kernels, safe loading of checkpoints, FLOP counts."""
