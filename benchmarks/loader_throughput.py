"""Tokens a second of the data loader alone: ours compared with that of run_mlm, in one process.

python benchmarks/loader_throughput.py                               # the embedded default corpus
python benchmarks/loader_throughput.py --train_file runs/corpus

Ours draws next-sentence pairs and masks on the fly from the memory-mapped store, in random order. The stock way is an
Arrow dataset of ready blocks of `--max_seq_length` tokens (no pairs) and `DataCollatorForLanguageModeling`, in random
order, too. Non-padding tokens per second of CPU time of one core, median of the rounds; the sides take turns. Prints a
table, then a JSON line. A minute.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, TokenizerArguments
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus, load_or_train_tokenizer
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import ExampleNumber, Phase
from bert_hf.errors import one_line_errors

SEQUENCES = 64  # of a batch, at 128 tokens; fewer where they are longer


@dataclass
class LoaderArguments:
    rounds: int = option(5, "Times that every row is measured.")
    batches: int = option(60, "Batches in a round.")


def batch_size(length: int) -> int:
    return max(1, SEQUENCES * 128 // length)


def ours(corpus, tokenizer, length: int, **choice) -> tuple:
    """(dataset, collator, example numbers in random order)."""
    nsp = choice.pop("nsp", True)
    examples = PreTrainingExamples(corpus, (Phase(length, None),), nsp=nsp)
    collator = DataCollatorForPreTraining(tokenizer, nsp=nsp, **choice)
    order = np.random.default_rng(0).permutation(examples.window_length(0, 0, 0))
    return examples, collator, [ExampleNumber(0, 0, 0, index) for index in order.tolist()]


def stock(corpus, tokenizer, length: int) -> tuple:
    """run_mlm's blocks and its collator."""
    window = corpus.window(corpus.windows()[0])
    ids = np.concatenate(
        [window.ids(*ends) for ends in zip(window.document_starts, window.document_ends, strict=True)]
    )
    ids = ids[: min(len(ids), 8_000_000) // (length - 2) * (length - 2)].reshape(-1, length - 2)
    whole = np.pad(ids.astype(np.int32), ((0, 0), (1, 1)))
    whole[:, 0], whole[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    columns = {
        "input_ids": list(whole),
        "attention_mask": list(np.ones_like(whole, np.int8)),
        "token_type_ids": list(np.zeros_like(whole, np.int8)),
        "special_tokens_mask": list(np.isin(whole, tokenizer.all_special_ids).astype(np.int8)),
    }
    order = np.random.default_rng(0).permutation(len(whole)).tolist()
    return datasets.Dataset.from_dict(columns), DataCollatorForLanguageModeling(tokenizer), order


def batches(size: int, dataset, collator, order: list) -> Iterator[dict]:
    """Batches without end, made in this process."""
    while True:
        for begin in range(0, len(order) - size + 1, size):
            yield collator([dataset[number] for number in order[begin : begin + size]])


def rate(stream: Iterator[dict], count: int) -> float:
    """Non-padding tokens per CPU second."""
    begin = time.process_time()
    tokens = sum(int(next(stream)["attention_mask"].sum()) for _ in range(count))
    return tokens / (time.process_time() - begin)


def rows(corpus, tokenizer) -> dict[str, Iterator[dict]]:
    """{name: batches}."""
    sides = {f"ours, {length}": (ours(corpus, tokenizer, length), length) for length in (128, 512)}
    sides["ours, 128, whole words"] = ours(corpus, tokenizer, 128, whole_word_mask=True), 128
    sides["ours, 128, MLM alone"] = ours(corpus, tokenizer, 128, nsp=False), 128
    sides |= {f"stock, {length}": (stock(corpus, tokenizer, length), length) for length in (128, 512)}
    return {name: batches(batch_size(length), *side) for name, (side, length) in sides.items()}


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    tokens, text, _, options = parse((TokenizerArguments, CorpusArguments, ExampleArguments, LoaderArguments), argv)
    torch.set_num_threads(1)
    tokenizer = load_or_train_tokenizer(tokens, text)
    corpus = load_or_prepare_corpus(text, tokenizer, text.train_file)
    table = rows(corpus, tokenizer)
    for stream in table.values():
        next(stream)  # maps the files, draws the plan
    seen = {name: [] for name in table}
    for _ in range(options.rounds):
        for name, stream in table.items():
            seen[name].append(rate(stream, options.batches))
    result = {name: statistics.median(metrics) for name, metrics in seen.items()}
    print(f"{corpus.tokens:,} tokens; {options.rounds} rounds of {options.batches} batches")
    for name, metric in result.items():
        times = f"{metric / result['stock, 512' if ', 512' in name else 'stock, 128']:6.1f} ×"
        print(f"{name:28}{metric:12,.0f} tokens/s a core {times} stock")
    print(json.dumps({name: round(metric) for name, metric in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
