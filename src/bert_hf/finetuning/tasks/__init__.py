"""Tasks: the rows of a run, what they are compared with, and what is reported of it."""
