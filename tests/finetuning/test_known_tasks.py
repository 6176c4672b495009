"""The table of known tasks, and which of two classes is the positive one."""

import pytest
from tiny import tiny_config, tiny_tokenizer
from transformers import BertForSequenceClassification

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.finetuning.rows.known_tasks import TASKS, order_labels
from bert_hf.finetuning.tasks.classification import ClassificationTask

GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


def test_the_nine_tasks_of_the_benchmark():
    assert tuple(task for task, row in TASKS.items() if row.hub_id == "nyu-mll/glue") == GLUE
    assert all(TASKS[task].config == task for task in GLUE)
    selecting = {task: TASKS[task].metrics[0] for task in GLUE}
    assert selecting == {
        "cola": "matthews_correlation",
        "mrpc": "combined_score",
        "qqp": "combined_score",
        "stsb": "combined_score",
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), "accuracy"),
    }


@pytest.mark.parametrize(
    ("names", "task", "expected"),
    [
        ({"spam", "ham"}, "spam", ("ham", "spam")),
        ({"entailment", "neutral"}, "mnli", ("entailment", "neutral", "contradiction")),
        ({"no", "yes"}, None, ("no", "yes")),
        ({"nein", "Ja"}, None, ("nein", "Ja")),
        ({"positive", "zzz"}, None, ("zzz", "positive")),
        ({"c", "a", "b"}, None, ("a", "b", "c")),
        ({"1", "0"}, None, ("0", "1")),
        ({"1", "-1"}, None, ("-1", "1")),
        ({"1", "2"}, None, ("1", "2")),
        ({"2", "10"}, None, ("2", "10")),
        ({"10", "9", "-1.5"}, None, ("-1.5", "9", "10")),
        ({"10", "9", "b"}, None, ("10", "9", "b")),
    ],
)
def test_label_order(names, task, expected):
    assert order_labels(dict.fromkeys(names, 1), task) == expected


def test_the_rare_one_of_two_unknown_labels_is_positive():
    assert order_labels({"ok": 900, "junk": 120}) == ("ok", "junk")
    assert order_labels({"ok": 500, "junk": 400}) == ("junk", "ok")
    assert order_labels({"junk": 100, "spam": 900}) == ("junk", "spam")


def test_f1_of_a_benchmark_is_of_its_positive_class(tmp_path):
    """A checkpoint whose first class is the positive one gets a new head."""
    names = {0: "equivalent", 1: "not_equivalent"}
    config = tiny_config(id2label=names, label2id={name: number for number, name in names.items()})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    for part in ("train", "validation"):
        rows = "equivalent\tA cat.\tA cat.\nnot_equivalent\tYes.\tNo.\n"
        (tmp_path / f"{part}.tsv").write_text("label\tsentence1\tsentence2\n" + rows)
    files = {f"{part}_file": [str(tmp_path / f"{part}.tsv")] for part in ("train", "validation")}
    task = ClassificationTask(
        ClassificationArguments(str(tmp_path / "bert"), task="mrpc", max_seq_length=16, **files), tiny_tokenizer()
    )
    assert task.head.labels == ("not_equivalent", "equivalent")
    assert "F1 is of 'equivalent'" in task.new_head
