"""Fine-tuning on downstream tasks: labelled data, splits, metrics, baselines."""
