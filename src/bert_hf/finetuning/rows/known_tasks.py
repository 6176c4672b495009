"""Table of known tasks (GLUE, SMS spam): their data on the Hub, columns, labels and metrics.

A task is one entry of `TASKS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bert_hf.finetuning.metrics.classification import CORRELATION
from bert_hf.finetuning.rows.labelled_texts import as_number

_GLUE = "nyu-mll/glue"
_SPLITS = {"train": "train", "validation": "validation", "test": "test"}
_MNLI_SPLITS = {
    "train": "train",
    "validation": "validation_matched",
    "validation_mm": "validation_mismatched",
    "test": "test_matched",
    "test_mm": "test_mismatched",
}


@dataclass(frozen=True)
class TaskData:
    """The place and the contents of a downstream task's data.

    Attributes:
        columns: its text, second text (or None) and label.
        labels: names by id, in the dataset's order; of two, the second is the positive class. Empty for regression.
        hub_id, config: dataset on the Hub, used where no file is given.
        metrics: names of the benchmark's; the first selects a model. Without them, the usual ones of a classification.
        splits: the task's parts, and the name of each on the Hub. Metrics are named after parts: `validation_mm` →
            `eval_mm_accuracy`.
    """

    columns: tuple[str, str | None, str]
    labels: tuple[str, ...]
    hub_id: str = _GLUE
    config: str | None = None
    metrics: tuple[str, ...] = ()
    splits: dict[str, str] = field(default_factory=lambda: _SPLITS)

    @property
    def regression(self) -> bool:
        """Return whether labels are numbers."""
        return not self.labels

    @property
    def hides_test_labels(self) -> bool:
        """Return whether the test rows have -1 in place of labels, as all of GLUE."""
        return self.hub_id == _GLUE


_ACCURACY, _ACCURACY_AND_F1 = ("accuracy",), ("combined_score", "accuracy", "f1")
_PAIR = ("sentence1", "sentence2", "label")

TASKS = {
    # One sentence
    "cola": TaskData(
        ("sentence", None, "label"), ("unacceptable", "acceptable"), config="cola", metrics=("matthews_correlation",)
    ),
    "sst2": TaskData(("sentence", None, "label"), ("negative", "positive"), config="sst2", metrics=_ACCURACY),
    # Similarity and paraphrase
    "mrpc": TaskData(_PAIR, ("not_equivalent", "equivalent"), config="mrpc", metrics=_ACCURACY_AND_F1),
    "qqp": TaskData(
        ("question1", "question2", "label"),
        ("not_duplicate", "duplicate"),
        config="qqp",
        metrics=_ACCURACY_AND_F1,
    ),
    "stsb": TaskData(_PAIR, (), config="stsb", metrics=CORRELATION),
    # Inference
    "mnli": TaskData(
        ("premise", "hypothesis", "label"),
        ("entailment", "neutral", "contradiction"),
        config="mnli",
        metrics=_ACCURACY,
        splits=_MNLI_SPLITS,
    ),
    "qnli": TaskData(
        ("question", "sentence", "label"), ("entailment", "not_entailment"), config="qnli", metrics=_ACCURACY
    ),
    "rte": TaskData(_PAIR, ("entailment", "not_entailment"), config="rte", metrics=_ACCURACY),
    # 65 of the 71 validation texts of WNLI are also training texts, 62 of these with the other label
    "wnli": TaskData(_PAIR, ("not_entailment", "entailment"), config="wnli", metrics=_ACCURACY),
    # Almeida & Hidalgo 2011, "Contributions to the study of SMS spam filtering"
    "spam": TaskData(("sms", None, "label"), ("ham", "spam"), hub_id="ucirvine/sms_spam"),
}

_POSITIVE_NAMES = (  # of two labels, without a task
    "spam", "1", "yes", "true", "positive", "pos",
    "ja", "oui", "sí", "si", "sim", "tak", "evet", "да", "positiv", "positif", "positivo",
)  # fmt: skip


def order_labels(counts: Mapping[str, int], task: str | None = None) -> tuple[str, ...]:
    """Return the label names by id: the task's order, else sorted, with the positive one of two last.

    Numbers are sorted by value: of 0 and 1 the positive one is last, but 1 is not the positive one of 1 and 2. Of two
    other names the rare one is positive, if it has less than a third of the rows.
    """
    if task is not None and counts.keys() <= set(TASKS[task].labels):
        return TASKS[task].labels
    ordered = sorted(counts)
    numbers = {name: number for name in ordered if (number := as_number(name)) is not None}
    if len(numbers) == len(ordered):
        return tuple(sorted(ordered, key=numbers.__getitem__))

    if len(ordered) == 2:
        is_rare = 2 * counts[ordered[0]] < counts[ordered[1]] and ordered[1].lower() not in _POSITIVE_NAMES
        if is_rare or ordered[0].lower() in _POSITIVE_NAMES:
            ordered.reverse()
    return tuple(ordered)
