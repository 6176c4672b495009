"""Training from Python: five kinds of data, each with our model and trainer and with the stock ones."""

import datasets
import numpy as np
import pytest
import torch
import transformers
from helpers.corpora import Texts
from tiny import TinyWindows, tiny_config
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import bert_hf
from bert_hf import DataCollatorForPreTraining, InputError, PreTrainer, PreTrainingExamples, train_tokenizer
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.examples.samplers import ExampleNumber

FAMILIES = {"ours": (PreTrainer, bert_hf.BertForPreTraining), "stock": (Trainer, transformers.BertForPreTraining)}


@pytest.fixture
def trained(documents):
    return train_tokenizer(documents, vocab_size=300)


@pytest.fixture
def folder(documents, trained, tmp_path):
    prepare([Texts(tuple(documents))], trained, tmp_path / "corpus")
    return tmp_path / "corpus"


def segments(documents, tokenizer):
    """Rows of two segments, paired by other code than ours."""
    encode = [tokenizer(text.split("\n"), add_special_tokens=False)["input_ids"] for text in documents]
    return [
        {"segment_a": a[0], "segment_b": b[1], "next_sentence_label": label, "source": "elsewhere"}
        for label, others in enumerate((encode, encode[1:]))
        for a, b in zip(encode, others, strict=False)
    ]


def ready(documents, tokenizer):
    """Rows of padded ids, as a tokenizer returns them."""
    lines = [text.split("\n") for text in documents]
    rows = tokenizer([line[0] for line in lines], [line[1] for line in lines], padding="max_length", max_length=40)
    return [{**{name: rows[name][i] for name in rows}, "next_sentence_label": i % 2} for i in range(len(lines))]


def data_of(kind, documents, tokenizer, folder):
    """(data set, whether a stock trainer would remove columns that the collator needs)"""
    if kind == "folder":
        return PreTrainingExamples(str(folder), max_seq_length=48), False
    if kind == "dataset of texts":
        texts = datasets.Dataset.from_dict({"text": documents})
        return PreTrainingExamples(texts, tokenizer=tokenizer, max_seq_length=48), False
    if kind == "rows of segments":
        return segments(documents, tokenizer), True
    if kind == "dataset of segments":
        return datasets.Dataset.from_list(segments(documents, tokenizer)), True
    return datasets.Dataset.from_list(ready(documents, tokenizer)), False


KINDS = ["folder", "dataset of texts", "rows of segments", "dataset of segments", "dataset of ready rows"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_trains(kind, family, documents, trained, folder, tmp_path):
    trainer_class, model_class = FAMILIES[family]
    data, strips = data_of(kind, documents, trained, folder)
    model = model_class(tiny_config(vocab_size=len(trained)))
    keep = {"remove_unused_columns": False} if strips and family == "stock" else {}
    args = TrainingArguments(str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=4, learning_rate=1e-3,
                             use_cpu=True, logging_steps=1, disable_tqdm=True, report_to="none", **keep)  # fmt: skip
    trainer = trainer_class(model, args, DataCollatorForPreTraining(trained), data, data, trained)
    trainer.train()
    metrics = trainer.evaluate()

    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    expected = np.log(len(trained)) + np.log(2)  # of an untrained model: all tokens equally likely, and both classes
    assert len(losses) == 3
    assert all(abs(loss - expected) < 1 for loss in [*losses, metrics["eval_loss"]])


def test_a_row_is_a_dict_and_a_loader_s_row_is_not(store):
    examples = PreTrainingExamples(store, max_seq_length=48)
    assert type(examples[3]) is dict
    assert list(examples[3])[:3] == ["segment_a", "segment_b", "next_sentence_label"]
    (row,) = next(iter(DataLoader(examples, collate_fn=list)))
    assert not isinstance(row, dict)  # else a stock Trainer removes the segments
    assert row.keys() == examples[3].keys()


def test_the_stock_model_ignores_our_two_tensors(store, tokenizer):
    """One collator serves both models: stock logits and loss are the same without the two extra tensors."""
    examples = PreTrainingExamples(store, max_seq_length=48)
    batch = DataCollatorForPreTraining(tokenizer)([examples[i] for i in range(6)])
    model = transformers.BertForPreTraining(tiny_config(0.0)).eval()
    with torch.no_grad():
        whole = model(**batch)
        bare = model(**{name: x for name, x in batch.items() if name not in ("masked_positions", "token_positions")})
    assert whole.loss == bare.loss
    assert torch.equal(whole.prediction_logits, bare.prediction_logits)
    assert torch.equal(whole.seq_relationship_logits, bare.seq_relationship_logits)


def test_set_epoch_changes_the_examples_of_plain_indices(store, tokenizer):
    examples = PreTrainingExamples(store, max_seq_length=48, seed=5)
    first = [examples[i] for i in range(len(examples))]
    examples.set_epoch(1)
    second = [examples[i] for i in range(len(examples))]
    assert {row["number"][1] for row in second} == {1}
    assert len({row["number"] for row in second}) > 0.95 * len(second)  # an epoch may be a few examples shorter
    pairs = [{tuple(row["segment_a"]) + tuple(row["segment_b"]) for row in rows} for rows in (first, second)]
    assert len(pairs[0] & pairs[1]) < 0.3 * len(first)
    examples.set_epoch(0)
    assert [row["number"] for row in first] == [examples[i]["number"] for i in range(len(examples))]

    held_out = PreTrainingExamples(store, max_seq_length=48, fixed=True)
    held_out.set_epoch(3)
    assert held_out[0]["number"].epoch == 0


def test_plain_indices_reach_the_first_window_only(caplog):
    examples = PreTrainingExamples(TinyWindows(), max_seq_length=48)
    assert len(examples) == examples.window_length(0, 0, 0) < examples.epoch_length(0, 0)
    transformers.utils.logging.enable_propagation()
    try:
        assert examples[len(examples) - 1]["number"].window == 0
    finally:
        transformers.utils.logging.disable_propagation()
    assert "plain indices reach the first window of the corpus only" in caplog.text


def test_segments_without_a_number_draw_from_torch_s_generator(documents, trained):
    rows = segments(documents, trained)[:8]
    collator = DataCollatorForPreTraining(trained)
    torch.manual_seed(1)
    first, second = collator(rows), collator(rows)
    torch.manual_seed(1)
    again = collator(rows)
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["labels"], second["labels"])
    restored = torch.where(first["labels"] == -100, first["input_ids"], first["labels"])
    special = trained.cls_token_id, trained.sep_token_id
    expected = [[special[0], *row["segment_a"], special[1], *row["segment_b"], special[1]] for row in rows]
    lengths = first["attention_mask"].sum(1).tolist()
    assert [ids[:length] for ids, length in zip(restored.tolist(), lengths, strict=True)] == expected
    short = DataCollatorForPreTraining(trained, max_seq_length=12)(rows)
    assert short["input_ids"].shape[1] == 12

    numbered = [{**row, "seed": 3, "number": ExampleNumber(0, 0, 0, i)} for i, row in enumerate(rows)]
    state = torch.random.get_rng_state()
    assert torch.equal(collator(numbered)["labels"], collator(numbered)["labels"])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("side", ["right", "left"])
def test_ready_rows_literally(tokenizer, side):
    ids, types, mask = [2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1], [1] * 6
    padding = ([], [0, 0]) if side == "right" else ([0, 0], [])
    row = {
        name: padding[0] + values + padding[1]
        for name, values in (("input_ids", ids), ("token_type_ids", types), ("attention_mask", mask))
    }
    row["next_sentence_label"] = torch.tensor(1)
    batch = DataCollatorForPreTraining(tokenizer)([row, {**row, "labels": [-100] * 8}])
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert restored.tolist() == [ids] * 2
    assert batch["token_type_ids"].tolist() == [types] * 2
    assert batch["attention_mask"].tolist() == [[1] * 6] * 2
    assert batch["next_sentence_label"].tolist() == [1, 1]
    assert (batch["labels"] != -100).sum(1).tolist() == [1, 0]  # round(0.15 · 3) but at least one; masked already
    state = torch.get_rng_state()
    DataCollatorForPreTraining(tokenizer)([{**row, "labels": [-100] * 8}])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"next_sentence_label": 0}, "neither segment_a nor input_ids, but 'next_sentence_label'; pass remove_unused"),
        ({"segment_a": [5], "segment_b": [6]}, "no next_sentence_label; pass nsp=False"),
        ({"input_ids": [2, 5, 3]}, "no next_sentence_label; pass nsp=False"),
    ],
)
def test_other_rows_are_refused(tokenizer, row, message):
    with pytest.raises(InputError, match=message):
        DataCollatorForPreTraining(tokenizer)([row])


def test_a_short_run_prints_its_loss(tmp_path, documents, trained, capsys):
    """With the stock arguments, as in the README: they log every 500 steps."""
    examples = PreTrainingExamples(documents, tokenizer=trained, max_seq_length=32)
    model = bert_hf.BertForPreTraining(tiny_config(vocab_size=len(trained)))
    args = TrainingArguments(str(tmp_path), max_steps=4, per_device_train_batch_size=4, report_to=[], use_cpu=True)
    trainer = PreTrainer(model, args, DataCollatorForPreTraining(trained), examples, examples, trained)
    trainer.train()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [f"step {step} of 4" for step in range(1, 5)]
    assert all(" left" in line for line in lines[:4])
