"""A fine-tuned checkpoint is trained further: its own head where kind and classes are the same, else a new one."""

from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from tiny import tiny_config, tiny_tokenizer

from bert_hf import InputError
from bert_hf.config.finetuning_arguments import ClassificationArguments, TaskArguments, TokenClassificationArguments
from bert_hf.data.text.tables import Row
from bert_hf.finetuning.predict import load_predictor
from bert_hf.finetuning.tasks.classification import ClassificationTask
from bert_hf.finetuning.tasks.multiple_choice import MultipleChoiceTask
from bert_hf.finetuning.tasks.task import task_of_rows
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask
from bert_hf.finetuning.trainer import load_task_model

TEXTS = [{"text": f"w{number} w1", "label": "ab"[number % 2]} for number in range(20)]
WORDS = [{"tokens": ["w1", "w2"], "ner_tags": ["B-x", "O"]} for _ in range(20)]
CHOICES = [{"context": f"w{number}", "choices": ["w1", "w2"], "label": number % 2} for number in range(20)]
TASKS = {
    "texts": (ClassificationTask, ClassificationArguments, TEXTS),
    "words": (TokenClassificationTask, TokenClassificationArguments, WORDS),
    "choices": (MultipleChoiceTask, TaskArguments, CHOICES),
}


def save(folder, kind="SequenceClassification", names=("a", "b"), **config) -> Any:
    """Writes a fine-tuned stock checkpoint and returns it."""
    torch.manual_seed(1)
    named = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    network = getattr(transformers, f"BertFor{kind}")(tiny_config(0.0, **named, **config))
    network.save_pretrained(folder)
    return network


def open_head(folder, rows="texts", **options) -> Any:
    """Opens the checkpoint for training on the rows: the task, the network, the line on its head."""
    task_class, arguments, table = TASKS[rows]
    parts = dict.fromkeys(["train", "validation"], Dataset.from_list(options.pop("table", table)))
    task_args = arguments(str(folder), dataset_name=parts, max_seq_length=16, **options)
    task = task_class(task_args, tiny_tokenizer())
    return task, *load_task_model(task, seed=0)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_same_classes_keep_the_order_of_the_checkpoint(tmp_path, names):
    before = save(tmp_path, names=names)
    task, network, line = open_head(tmp_path)
    assert task.head.labels == names == tuple(network.config.id2label.values())
    assert line == task.describe_head() == f"head: the checkpoint's, trained further, for {', '.join(names)}"
    assert torch.equal(network.classifier.weight, before.classifier.weight)
    assert task.targets("train")[task.parts["train"].labels.index("a")] == names.index("a")


def test_words_and_several_labels_keep_the_order_too(tmp_path):
    before = save(tmp_path / "words", "TokenClassification", ("O", "B-x"))
    task, network, _ = open_head(tmp_path / "words", "words")
    assert task.head.labels == ("O", "B-x")
    assert torch.equal(network.classifier.weight, before.classifier.weight)

    before = save(tmp_path / "several", names=("b", "a"), problem_type="multi_label_classification")
    table = [{"text": "w1", "labels": ["a", "b"][: 1 + number % 2]} for number in range(20)]
    task, network, _ = open_head(tmp_path / "several", table=table)
    assert task.head.labels == ("b", "a")
    assert torch.equal(network.classifier.weight, before.classifier.weight)


def test_outputs_without_names_are_named_by_the_command(tmp_path):
    before = save(tmp_path, names=("LABEL_0", "LABEL_1"))
    task, network, _ = open_head(tmp_path, class_names=["b", "a"])
    assert task.head.labels == ("b", "a") == tuple(network.config.id2label.values())
    assert torch.equal(network.classifier.weight, before.classifier.weight)
    assert "classes LABEL_0, LABEL_1, the rows a, b" in open_head(tmp_path)[2]


@pytest.mark.parametrize(
    ("kind", "config", "rows", "reason"),
    [
        ("SequenceClassification", {"names": ("c", "d")}, "texts", "the classes c, d, the rows a, b"),
        ("SequenceClassification", {"names": ("a", "b", "c")}, "texts", "has the classes a, b, c, the rows a, b"),
        ("SequenceClassification", {"problem_type": "multi_label_classification"}, "texts", "several labels per row"),
        ("TokenClassification", {}, "texts", "the checkpoint has no layers for classification"),
        ("SequenceClassification", {"names": ("O", "B-x")}, "words", "no layers for token classification"),
        ("SequenceClassification", {"names": ("LABEL_0",)}, "choices", "no layers for multiple choice"),
    ],
)
def test_other_classes_and_kinds_get_a_new_head_and_a_line(tmp_path, capsys, kind, config, rows, reason):
    before = save(tmp_path, kind, **config)
    capsys.readouterr()
    task, network, line = open_head(tmp_path, rows)
    assert line.startswith(("newly initialized: bert.pooler", "newly initialized: classifier.bias, classifier.weight"))
    assert reason in line
    assert reason in task.describe_head()
    assert network.classifier.weight.shape != before.classifier.weight.shape or not torch.equal(
        network.classifier.weight, before.classifier.weight
    )
    assert network.classifier.weight.std() < 0.04
    assert "incompatible" not in capsys.readouterr().err  # as transformers warns


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("0", "1")])
def test_evaluate_names_outputs_without_names(tmp_path, names):
    save(tmp_path, names=names)
    rows = [Row(row, "rows.jsonl") for row in TEXTS]
    with pytest.raises(InputError, match=f"have no names: {', '.join(names)}; name them in this order: --class_names"):
        load_predictor(tmp_path, tiny_tokenizer()).evaluate(rows)
    with pytest.raises(InputError, match="3 names, the model has 2 classes"):
        load_predictor(tmp_path, tiny_tokenizer(), class_names=["a", "b", "c"])
    accuracies = [
        load_predictor(tmp_path, tiny_tokenizer(), class_names=names).evaluate(rows)[0]["accuracy"]
        for names in (["a", "b"], ["b", "a"])
    ]
    assert sum(accuracies) == 1


def test_numbered_classes_and_test_rows_without_labels(tmp_path):
    """Rows without labels name no class, so they do not contradict the classes 0 and 1."""
    save(tmp_path)
    numbered = Dataset.from_list([{"text": row["text"], "label": "ab".index(row["label"])} for row in TEXTS])
    parts = {"train": numbered, "validation": numbered, "test": numbered.remove_columns("label")}
    task = ClassificationTask(ClassificationArguments(str(tmp_path), dataset_name=parts), tiny_tokenizer())
    assert task.head.labels == ("0", "1")
    assert task.parts["test"].labels is None


def test_a_network_in_memory_keeps_its_order(tmp_path):
    network = save(tmp_path, names=("b", "a"))
    network.name_or_path = str(tmp_path)
    parts = dict.fromkeys(["train", "validation"], Dataset.from_list(TEXTS))
    task = task_of_rows(network, parts, "classification", tiny_tokenizer())
    assert task.head.labels == ("b", "a")
