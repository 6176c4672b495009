"""The task of classification: what its model card says and calls, and what is printed at the end."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from tiny import tiny_config, tiny_tokenizer
from torch import nn
from transformers import BertForSequenceClassification

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.finetuning.tasks.classification import ClassificationTask


def made_task(folder, pairs: bool = False, **options) -> ClassificationTask:
    header, second = ("label\tsentence1\tsentence2\n", "\tw2 w3") if pairs else ("label\ttext\n", "")
    rows = "".join(f"{'yes' if n % 2 else 'no'}\tw{n} w{n + 1} w{n + 7}{second}\n" for n in range(40))
    (folder / "rows.tsv").write_text(header + rows)
    (folder / "validation.tsv").write_text(header + 2 * rows)
    files = [str(folder / "rows.tsv")]
    names = {"train_file": files, "validation_file": files, "test_file": files, "max_seq_length": 16}
    return ClassificationTask(ClassificationArguments(**{**names, **options}), tiny_tokenizer())


def test_balanced_weights_are_those_of_scikit_learn(tmp_path):
    long = "".join(f"yes\t{'w1 ' * 60}\n" for _ in range(3))  # each window is an input
    (tmp_path / "long.tsv").write_text(f"label\ttext\n{long}no\tw1\nno\tw2\n")
    options = {"train_file": [str(tmp_path / "long.tsv")], "long_texts": "windows"}
    task = made_task(tmp_path, class_weight="balanced", **options)
    targets = task.encoded("train").features["labels"]
    assert np.mean(targets) > 0.8
    expected = compute_sample_weight("balanced", targets)
    np.testing.assert_allclose(task.head.label_weights(torch.tensor(targets)), expected, rtol=1e-6)
    assert made_task(tmp_path).head.label_weights(torch.tensor(targets)) == 1


def test_only_a_linear_head_is_calibrated_and_a_new_training_decides_anew(tmp_path):
    task = made_task(tmp_path, best_f1_threshold=True, validation_file=[str(tmp_path / "validation.tsv")])
    logits = np.eye(2, dtype=np.float32)[np.array(task.targets("validation"))]  # 80 rows, all of them right
    linear = nn.Linear(4, 2)
    whole = linear.weight.clone()

    task.decide(logits, SimpleNamespace(classifier=nn.Sequential(linear)))
    assert torch.equal(linear.weight, whole)
    assert task.head.threshold is not None
    task.decide(logits, SimpleNamespace(classifier=linear))
    torch.testing.assert_close(linear.weight, whole / 0.5, rtol=1e-3, atol=0)

    task.forget_decisions()
    assert task.head.threshold is None


@pytest.mark.parametrize("pairs", [False, True])
def test_the_card_cuts_a_text_as_training_does(tmp_path, pairs):
    """A text of 300 tokens, where the model has 64 positions and was trained at 16 tokens."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(tiny_config(initializer_range=0.5)).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 16  # as a run saves it
    tokenizer.save_pretrained(tmp_path / "model")

    long_text = "w5 w6 w7 " * 100
    code = made_task(tmp_path, pairs).usage(str(tmp_path / "model"))
    code = code.replace("An example sentence.", long_text)
    called = "found = classify(".join(code.rsplit("classify(", 1))
    names: dict = {}
    exec(called, names)

    texts = [long_text, "Another one."] if pairs else [long_text]
    inputs = tiny_tokenizer()(*texts, truncation=True, max_length=16, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 16)
    with torch.no_grad():
        expected = model(**inputs).logits.softmax(-1).max().item()
    found = names["found"][0] if isinstance(names["found"], list) else names["found"]
    assert found["score"] == pytest.approx(expected, abs=1e-5)


def test_a_subset_of_the_training_rows_has_the_same_positive_class(tmp_path):
    """A study with four training rows once reported F1 of `ok`, and with all rows that of `junk`."""
    labels = {"train": ["ok", "ok", "junk", "junk"], "test": ["ok"] * 30 + ["junk"] * 6}
    for part, names in labels.items():
        rows = "".join(f"{name}\tw{n} w{n + 9}\n" for n, name in enumerate(names))
        (tmp_path / f"{part}.tsv").write_text("label\ttext\n" + rows)
    subset, test = [str(tmp_path / "train.tsv")], [str(tmp_path / "test.tsv")]
    task = made_task(tmp_path, train_file=subset, validation_file=subset, test_file=test)
    assert task.head.labels == ("ok", "junk")


def test_classes_of_other_names_are_not_written_as_those_of_the_benchmark(tmp_path):
    task = made_task(tmp_path, pairs=True, task="rte")
    task.write_predictions(tmp_path, "test", np.tile([1.0, 0.0], (40, 1)))
    assert not (tmp_path / "submission").exists()
    task.head.labels = ("entailment", "not_entailment")
    for drawn in (40, 50):  # nor some rows as all of them
        task.task_args.max_eval_samples = drawn
        task.write_predictions(tmp_path, "test", np.eye(2)[[0] * 40])
        assert (tmp_path / "submission").exists() == (drawn == 50)
