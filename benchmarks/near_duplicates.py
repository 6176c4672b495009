"""Grouping near-duplicates: MinHash compared with counting the three-word sequences that each pair of texts shares.

python benchmarks/near_duplicates.py --train_file wikipedia_en/main.jsonl.xz
python benchmarks/near_duplicates.py --train_file wikipedia_en/main.jsonl.xz --characters 200 --texts 20000

The texts are cut from documents, and a tenth of them are planted copies: exact ones; ones of other case, digits and
signs; ones of which passages of 20-32 % of the words are replaced, with a Jaccard similarity of 0.5 or more. A copy is
found when it has its original's group number. CPU seconds of one process and one thread; the sides take turns, and the
fastest turn counts.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from random import Random

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from bert_hf.data.text.input_files import expand
from bert_hf.data.text.readers import documents
from bert_hf.data.text.sources import TextFile
from bert_hf.finetuning.near_duplicates import near_duplicate_groups

COUNTING, OURS = "counting shared sequences", "MinHash, verified"
FREQUENT = 50  # the counting side ignores sequences of more texts than this: its work is quadratic in their number


# ---- the peer: the algorithm of version 0.2


def counted_groups(texts: list[str]) -> np.ndarray:
    """(N,) group numbers, from the number of three-word sequences that each pair of texts shares."""
    words = [re.findall(r"[^\W\d_]+", text.lower()) for text in texts]
    first: dict[str, int] = {}
    links = [(first.setdefault(" ".join(words[row]) or texts[row], row), row) for row in range(len(texts))]
    links += counted_links(words, list(first.values()))

    rows, others = np.array(links).T
    graph = coo_matrix((np.ones(len(links)), (rows, others)), shape=(len(texts), len(texts)))
    return connected_components(graph, directed=False)[1]


def counted_links(words: list[list[str]], rows: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of these rows that have half of their three-word sequences in common."""
    shingles = {row: sequences(words[row]) for row in rows}
    rows_with: dict[tuple, list[int]] = defaultdict(list)
    for row in rows:
        for shingle in shingles[row]:
            rows_with[shingle].append(row)

    shared: Counter[tuple[int, int]] = Counter()
    for holders in rows_with.values():
        if len(holders) <= FREQUENT:
            shared.update(combinations(holders, 2))
    for (one, other), count in shared.items():
        if count >= 0.5 * len(shingles[one] | shingles[other]):
            yield one, other


def sequences(words: list[str]) -> set[tuple[str, ...]]:
    """The different three-word sequences."""
    return set(zip(words, words[1:], words[2:], strict=False))


# ---- texts with planted copies


def planted_texts(files: list[str], texts: int, characters: int, rng: Random) -> tuple[list[str], dict]:
    """(texts in random order, {kind of copy: [(number of the copy, number of its original), …]})."""
    originals = cut_texts(files, texts - texts // 10, characters)
    kinds = {
        "exact": str,
        "case, digits, signs": lambda text: disguised(text, rng),
        "edited": lambda text: edited(text, rng),
    }
    chosen = rng.sample(range(len(originals)), texts - len(originals))

    copies = []
    for number, original in enumerate(chosen):
        kind = list(kinds)[number % len(kinds)]
        copies.append((kind, original, kinds[kind](originals[original])))

    order = list(range(texts))
    rng.shuffle(order)
    everything = [*originals, *(text for _, _, text in copies)]
    place = {old: new for new, old in enumerate(order)}
    pairs = defaultdict(list)
    for number, (kind, original, _) in enumerate(copies, len(originals)):
        pairs[kind].append((place[number], place[original]))
    return [everything[old] for old in order], dict(pairs)


def cut_texts(files: list[str], count: int, characters: int) -> list[str]:
    """Consecutive parts of the documents, `characters` long."""
    parts = []
    for file in files:
        for document in documents(TextFile(file).read()):
            starts = range(0, len(document) - characters + 1, characters)
            parts += [document[start : start + characters] for start in starts]
            if len(parts) >= count:
                return parts[:count]
    sys.exit(f"error: {len(parts):,} texts of {characters} characters instead of {count:,}: give more files")


def disguised(text: str, rng: Random) -> str:
    """The same words: upper case, other digits, no commas, an exclamation mark at the end."""
    return re.sub(r"\d", lambda _: str(rng.randrange(10)), text.upper()).replace(",", " ") + "!"


def edited(text: str, rng: Random) -> str:
    """Passages of 20–32 % of the words are replaced; at 0.5 of the sequences or more in common."""
    while True:
        words = text.split()
        passages = rng.randint(1, 3)
        length = int(len(words) * rng.uniform(0.2, 0.32) / passages)
        for passage in range(passages):
            begin = passage * len(words) // passages + rng.randint(0, len(words) // passages - length)
            words[begin : begin + length] = [f"{rng.choice('abcdefgh')}new{rng.choice(words)}" for _ in range(length)]
        result = " ".join(words)
        if 0.5 <= similarity(text, result) < 0.7:
            return result


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of the three-word sequences."""
    a, b = (sequences(re.findall(r"[^\W\d_]+", text.lower())) for text in (one, other))
    return len(a & b) / len(a | b)


# ---- measurement


def measured(group: Callable[[list[str]], np.ndarray], texts: list[str], pairs: dict) -> dict:
    """CPU seconds, the number of groups, and the copies of each kind that were found."""
    begin = time.process_time()
    groups = group(texts)
    seconds = time.process_time() - begin
    found = {kind: sum(int(groups[copy] == groups[original]) for copy, original in own) for kind, own in pairs.items()}
    return {"cpu_seconds": seconds, "groups": int(groups.max()) + 1, "found": found}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train_file", nargs="+", required=True, help="files or globs of documents")
    parser.add_argument("--texts", type=int, default=2893)
    parser.add_argument("--characters", type=int, default=3000, help="of a text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the copies")
    options = parser.parse_args(argv)
    texts, pairs = planted_texts(expand(options.train_file), options.texts, options.characters, Random(options.seed))

    # The first call loads modules
    sides = {COUNTING: counted_groups, OURS: near_duplicate_groups}
    near_duplicate_groups(texts[:10])
    turns = {side: [] for side in sides}
    for _ in range(options.repeats):
        for side, group in sides.items():
            turns[side].append(measured(group, texts, pairs))
    results = {side: min(own, key=lambda result: result["cpu_seconds"]) for side, own in turns.items()}

    planted = ", ".join(f"{len(own)} {kind}" for kind, own in pairs.items())
    print(f"{len(texts):,} texts of {options.characters:,} characters; planted copies: {planted}")
    print(f"{'':28} {'CPU s':>7} {'groups':>7}  copies found")
    for side, result in results.items():
        found = ", ".join(f"{count} {kind}" for kind, count in result["found"].items())
        print(f"{side:28} {result['cpu_seconds']:7.2f} {result['groups']:7,}  {found}")

    ratio = results[OURS]["cpu_seconds"] / results[COUNTING]["cpu_seconds"]
    print(f"MinHash takes 1/{1 / ratio:.1f} of the CPU time")
    print(
        json.dumps({"texts": len(texts), "planted": {k: len(v) for k, v in pairs.items()}, "ratio": ratio, **results})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
