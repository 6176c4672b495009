"""Arguments of a run: dataclasses, YAML and command-line parsing, value ranges, precision."""
