"""Questions on random words in SQuAD's format."""

import json

import numpy as np


def write_questions(path, count, seed, unanswerable=0.0):
    """Questions on contexts of 40 words that ask for the words after one of them."""
    rng = np.random.default_rng(seed)
    paragraphs = []
    for number in range(count):
        words = [f"w{word}" for word in rng.permutation(59)[:40]]
        at, length = int(rng.integers(0, 37)), int(rng.integers(1, 3))
        text = " ".join(words[at + 1 : at + 1 + length])
        start = len(" ".join(words[: at + 1])) + 1
        answers = [{"text": text, "answer_start": start}] if rng.random() >= unanswerable else []
        qas = [{"id": f"{path.stem}-{number}", "question": f"w59 {words[at]}", "answers": answers}]
        paragraphs.append({"title": f"t{number // 4}", "paragraphs": [{"context": " ".join(words), "qas": qas}]})
    path.write_text(json.dumps({"version": "1.1", "data": paragraphs}))
    return path
