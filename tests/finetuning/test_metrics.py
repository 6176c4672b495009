import evaluate
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from bert_hf.finetuning.metrics import ClassificationMetric, confusion
from bert_hf.finetuning.tasks import order_labels

TRUE, GUESS = [1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 0, 0]


def test_binary_figures_are_those_of_the_positive_class():
    metric = ClassificationMetric()
    assert isinstance(metric, evaluate.Metric)
    figures = metric.compute(predictions=GUESS, references=TRUE)
    assert figures == {
        "accuracy": pytest.approx(4 / 6),
        "f1": pytest.approx(f1_score(TRUE, GUESS)),
        "matthews_correlation": pytest.approx(matthews_corrcoef(TRUE, GUESS)),
    }


def test_more_classes_are_macro_averaged():
    figures = ClassificationMetric(3).compute(predictions=[0, 1, 1], references=[0, 1, 2])
    assert figures["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_batches_add_up():
    metric = ClassificationMetric()
    for start in (0, 3):
        metric.add_batch(predictions=GUESS[start : start + 3], references=TRUE[start : start + 3])
    assert metric.compute()["accuracy"] == pytest.approx(4 / 6)


def test_confusion_matrix():
    lines = [line.split() for line in confusion(TRUE, GUESS, ("ham", "spam")).splitlines()]
    assert lines == [["true", "\\", "predicted", "ham", "spam"], ["ham", "2", "1"], ["spam", "1", "2"]]


@pytest.mark.parametrize(
    ("names", "task", "expected"),
    [
        ({"spam", "ham"}, "spam", ("ham", "spam")),
        ({"no", "yes"}, None, ("no", "yes")),
        ({"positive", "zzz"}, None, ("zzz", "positive")),
        ({"c", "a", "b"}, None, ("a", "b", "c")),
    ],
)
def test_label_order(names, task, expected):
    assert order_labels(names, task) == expected
