"""The rows of a classification task: given parts, checked, and those that are split off."""

import datasets
import pytest

from bert_hf import InputError
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.finetuning.tasks.classification import ClassificationTask


class Unsplit(ClassificationTask):
    """Splits nothing off the training rows."""

    def complete(self, parts):
        return parts


def read(**options) -> dict:
    return Unsplit(ClassificationArguments(**options), None).parts


def write(folder, name, content) -> list[str]:
    (folder / name).write_text(content)
    return [str(folder / name)]


@pytest.mark.parametrize(
    ("options", "content", "expected"),
    [
        ({"task": "spim"}, "", "--task: unknown task 'spim'; did you mean 'spam'?"),
        ({"data_dir": "glue"}, None, "--data_dir: needs --task and no --train_file"),
        ({"data_dir": "glue", "task": "spam"}, "", "--data_dir: needs --task and no --train_file"),
        ({}, None, "--train_file: no training data"),
        ({}, "ham\tx\nham\ty\n", "a.tsv: only one label: ham"),
        ({"problem_type": "regression"}, "label\ttext\n1.5\tx\nlow\ty\n", "a.tsv:3: label 'low' is not a number"),
    ],
)
def test_wrong_requests(tmp_path, options, content, expected):
    files = None if content is None else write(tmp_path, "a.tsv", content or "ham\tx\nspam\ty\n")
    with pytest.raises(InputError) as caught:
        read(train_file=files, **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(("task", "unlabelled"), [("stsb", -1.0), ("rte", -1), ("rte", 0)])
def test_test_labels_of_a_benchmark_on_the_hub_are_no_labels(monkeypatch, task, unlabelled):
    names = datasets.ClassLabel(names=["entailment", "not_entailment"])
    kinds = {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string")}
    features = datasets.Features({**kinds, "label": datasets.Value("float32") if task == "stsb" else names})
    texts = {"sentence1": ["a b", "c d"], "sentence2": ["x", "y"]}
    labels = {"train": [0, 1], "validation": [1, 0], "test": [unlabelled] * 2}
    splits = {
        part: datasets.Dataset.from_dict({**texts, "label": values}, features=features)
        for part, values in labels.items()
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(splits))
    parts = read(task=task)
    assert parts["test"].labels is None
    assert parts["validation"].labels == (["1", "0"] if task == "stsb" else ["not_entailment", "entailment"])


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ((), {"train": 140, "validation": 20, "test": 40}),
        (("test",), {"train": 180, "validation": 20, "test": 10}),
        (("validation",), {"train": 200, "validation": 10}),
        (("validation", "test"), {"train": 200, "validation": 10, "test": 10}),
    ],
)
def test_parts_that_are_not_given_are_split_off(tmp_path, rng, given, sizes):
    """Percentages are of the rows of the training file. Who gives validation rows is judged by these alone."""
    for name, count in {"train": 200, "validation": 10, "test": 10}.items():
        words = rng.integers(97, 123, (count, 8, 6))
        texts = [" ".join("".join(map(chr, word)) for word in text) for text in words]
        lines = [f"{('ham', 'spam')[number % 2]}\t{text}\n" for number, text in enumerate(texts)]
        write(tmp_path, f"{name}.tsv", "".join(lines))
    files = {f"{name}_file": [str(tmp_path / f"{name}.tsv")] for name in ("train", *given)}
    parts = ClassificationTask(ClassificationArguments(**files), None).parts
    assert {name: len(rows) for name, rows in parts.items()} == sizes
