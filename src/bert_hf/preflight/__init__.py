"""Checks of the options of each recipe before anything is built: inputs, folders, sizes. (Ranges: `parse` itself.)

The checks run before the ranks of a run connect and before a model is made. They read the beginnings and sizes of
files, not whole corpora, yield a line for each successful check, and raise `InputError` for the first failed one.
`--check true` runs them alone.
"""
