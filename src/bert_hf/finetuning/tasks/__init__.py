"""Tasks: the rows of a run, their baselines, and its report."""
