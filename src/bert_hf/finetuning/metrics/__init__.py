"""The metrics of each head, as `evaluate.Metric`."""
