import pickle

import numpy as np
import pytest
import torch
from tiny import TinyStore, TinyWindows
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from bert_hf import DataCollatorForPreTraining, InputError, PreTrainingExamples
from bert_hf.data.examples.samplers import ExampleNumber, Phase, RunSampler


def test_a_batch_is_literally_this(tokenizer):
    feature = {"next_sentence_label": 1, "number": ExampleNumber(0, 0, 0, 0), "seed": 0, "max_seq_length": 16}
    features = [
        {**feature, "segment_a": np.array([5, 6, 7]), "segment_b": np.array([8, 9])},
        {**feature, "segment_a": np.array([10]), "segment_b": np.array([11]), "next_sentence_label": 0},
    ]
    batch = DataCollatorForPreTraining(tokenizer)(features)
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert restored.tolist() == [[2, 5, 6, 7, 3, 8, 9, 3], [2, 10, 3, 11, 3, 0, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch["next_sentence_label"].tolist() == [1, 0]
    assert (batch["labels"] != -100).sum(1).tolist() == [1, 1]
    assert batch["masked_positions"].tolist() == (batch["labels"].flatten() != -100).nonzero().flatten().tolist()
    assert next(iter(batch)) == "input_ids"  # Trainer takes the batch size from the first tensor


def test_special_tokens_and_types_are_those_of_the_tokenizer_s_template():
    """Of XLM-RoBERTa's, which multilingual BERTs may have: <s> A </s> </s> B </s>, all of type 0."""
    words = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefgh"])}
    rust = Tokenizer(models.WordLevel(words, "<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    stock = PreTrainedTokenizerFast(tokenizer_object=rust, **{f"{name}_token": word for name, word in names.items()})

    collator = DataCollatorForPreTraining(stock, max_seq_length=8)
    for a, b in ((["a b"], ["c"]), (["a b c"], None)):
        segments = [stock(text, add_special_tokens=False)["input_ids"][0] if text else [] for text in (a, b)]
        row = collator.example({"segment_a": segments[0], "segment_b": segments[1]})
        restored = np.where(row["labels"] == -100, row["input_ids"], row["labels"])
        assert restored.tolist() == stock(a, b)["input_ids"][0]
        assert not row["token_type_ids"].any()
    cut = collator.example({"segment_a": [5] * 9, "segment_b": [6] * 9})
    assert len(cut["input_ids"]) == 8


def rows_of(store, tokenizer, *, batch_size, start=0, rank=0, ranks=1, **loading) -> dict:
    """{number: example} of a two-phase run, made by a loader with these batches, ranks and workers."""
    examples = PreTrainingExamples(store, (Phase(32, 120), Phase(64, None)), seed=9)
    sampler = RunSampler(examples.phases, examples.window_length, 200, 9, start)
    numbers = list(sampler)
    batches = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)][rank::ranks]
    collator = DataCollatorForPreTraining(tokenizer)
    examples = pickle.loads(pickle.dumps(examples))  # as worker processes get them where they are not forked
    loader = DataLoader(examples, batch_sampler=batches, collate_fn=collator, **loading)
    rows = {}
    for batch_numbers, batch in zip(batches, loader, strict=True):
        for row, number in enumerate(batch_numbers):
            length = int(batch["attention_mask"][row].sum())
            names = ("input_ids", "token_type_ids", "labels")
            kept = [batch[name][row, :length].tolist() for name in names]
            rows[number] = (*kept, int(batch["next_sentence_label"][row]))
    return rows


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores: on purpose
@pytest.mark.parametrize("store", [TinyStore(), TinyWindows()], ids=["one window", "three windows"])
def test_an_example_is_a_function_of_its_number_alone(store, tokenizer):
    """The same with any batch size, number of workers, prefetching, number of ranks, and start."""
    expected = rows_of(store, tokenizer, batch_size=8)
    assert len(expected) == 200
    assert rows_of(store, tokenizer, batch_size=50) == expected
    assert rows_of(store, tokenizer, batch_size=8, num_workers=1, prefetch_factor=1) == expected
    assert rows_of(store, tokenizer, batch_size=8, num_workers=4, prefetch_factor=4) == expected
    ranks = [rows_of(store, tokenizer, batch_size=4, rank=rank, ranks=4) for rank in range(4)]
    assert {number: row for rows in ranks for number, row in rows.items()} == expected
    resumed = rows_of(store, tokenizer, batch_size=8, start=136)
    assert resumed == {number: row for number, row in expected.items() if number in resumed}
    assert len(resumed) == 64


def test_no_example_that_was_consumed_is_read_again(store, tokenizer):
    examples = PreTrainingExamples(store, (Phase(32, None),))
    read = []
    get = examples.corpus.ids
    examples.corpus.ids = lambda *span: read.append(span) or get(*span)
    for number in RunSampler(examples.phases, examples.window_length, 100, 42, start=90):
        examples[number]
    assert len(read) == 20  # ten examples, two segments each


def test_without_pairs_there_is_one_segment(store, tokenizer):
    examples = PreTrainingExamples(store, (Phase(48, None),), nsp=False)
    batch = DataCollatorForPreTraining(tokenizer, nsp=False)([examples[i] for i in range(8)])
    assert "next_sentence_label" not in batch
    assert not batch["token_type_ids"].any()
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert ((restored == tokenizer.sep_token_id).sum(1) == 1).all()


@pytest.mark.parametrize(("sizes", "message"), [([5], "at least 2 documents"), ([1, 1, 1], "no document has two")])
def test_pairs_need_documents(sizes, message):
    store = TinyStore(3)
    store.document_ends = np.cumsum(sizes)
    store.document_starts = store.document_ends - sizes
    with pytest.raises(InputError, match=message):
        PreTrainingExamples(store)
    assert len(PreTrainingExamples(store, nsp=False)) > 0


def test_plain_indices_are_a_fixed_selection(store):
    examples = PreTrainingExamples(store, (Phase(32, None),), limit=10)
    assert len(examples) == 10
    assert len({examples[i]["number"] for i in range(10)}) == 10
    assert [examples[i]["number"] for i in range(10)] == [examples[i]["number"] for i in range(10)]
    with pytest.raises(IndexError):
        examples[10]
