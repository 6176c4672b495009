"""Tagged sentences that a tiny model learns, and checkpoints to fine-tune on them."""

from pathlib import Path

import numpy as np
from tiny import save_tiny_bert

from bert_hf.config.finetuning_arguments import TokenClassificationArguments


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[list[tuple[str, str]]]:
    """(word, tag) pairs: w0 to w9 begin a person, a w10 to w19 after them continues it, w20 to w24 are places."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        sentence: list[tuple[str, str]] = []
        for number in rng.integers(0, 40, rng.integers(1, longest + 1)):
            previous = sentence[-1][1] if sentence else "O"
            tag = "B-person" if number < 10 else "B-place" if 20 <= number < 25 else "O"
            if 10 <= number < 20 and previous.endswith("person"):
                tag = "I-person"
            sentence.append((f"w{number}" + "x1" * (number % 3), tag))
        made.append(sentence)
    return made


def write_conll(path: Path, rows: list[list[tuple[str, str]]]) -> str:
    """Writes a CoNLL file and returns its path."""
    path.write_text("\n".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in rows))
    return str(path)


def write_checkpoint(folder: Path, layers: int = 4) -> str:
    """Saves a stock BERT of random weights and its tokenizer, and returns the folder."""
    save_tiny_bert(folder, num_hidden_layers=layers)
    return str(folder)


def write_parts(folder: Path, test: bool = True) -> dict[str, list[str]]:
    """Options that name a training, a validation and (if asked for) a test file."""
    sizes = {"train": 60, "validation": 20, **({"test": 20} if test else {})}
    parts = {part: sentences(size, seed) for seed, (part, size) in enumerate(sizes.items())}
    return {f"{part}_file": [write_conll(folder / f"{part}.conll", rows)] for part, rows in parts.items()}


def asked_for(folder: Path, **options) -> TokenClassificationArguments:
    """Arguments of a task on these files."""
    defaults = {"max_seq_length": 16, **write_parts(folder)}
    return TokenClassificationArguments(**{**defaults, **options})
