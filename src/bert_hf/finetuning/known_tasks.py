"""Lists the downstream tasks: where the data of each are, its columns, labels and metric.

The nine tasks of GLUE (Wang et al. 2019), SICK (Marelli et al. 2014) and SMS spam. `glue.py` reads the benchmark's own
files and writes its submission files.
"""

from dataclasses import dataclass, field

from bert_hf.finetuning.labelled.columns import as_number
from bert_hf.finetuning.metrics import (
    AccuracyAndF1Metric,
    AccuracyMetric,
    ClassificationMetric,
    CorrelationMetric,
    LocalMetric,
    MatthewsMetric,
)

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
    """Where the data of a downstream task are, and what they hold.

    Attributes:
        hub_id: data set on the Hub, used where no file is given.
        text, label: its columns; None: they are found.
        labels: names by id, in the data set's order; of two, the second is the positive class. Empty for regression.
        pair: column of the second text; None: the task has one text.
        config: configuration of the Hub data set.
        metric: the benchmark's; its first metric is the one by which a model is selected.
        regression: labels are numbers.
        labels_are_ids: the benchmark's files, and its submission files, hold ids in place of names.
        score_range: of a regression's submission: predictions are clipped to it.
        splits: its parts, and the name of each on the Hub. Metrics are named after parts: `validation_mm` →
            `eval_mm_accuracy`.
        benchmark: name of its folder and its submission file in the benchmark; None: nothing is submitted.
        test_has_labels: test metrics can be computed here, and not only by the benchmark's server.
        note: printed when the task is run.
    """

    hub_id: str
    text: str | None
    label: str | None
    labels: tuple[str, ...]
    pair: str | None = None
    config: str | None = None
    metric: type[LocalMetric] = ClassificationMetric
    regression: bool = False
    labels_are_ids: bool = False
    score_range: tuple[float, float] | None = None
    splits: dict[str, str] = field(default_factory=lambda: _SPLITS)
    benchmark: str | None = None
    test_has_labels: bool = False
    note: str = ""

    @property
    def submissions(self) -> dict[str, str]:
        """Name of the submission file of each test part: {"test": "MNLI-m.tsv", "test_mm": "MNLI-mm.tsv"}."""
        if self.benchmark is None:
            return {}
        if "test_mm" in self.splits:
            return {"test": f"{self.benchmark}-m.tsv", "test_mm": f"{self.benchmark}-mm.tsv"}
        return {"test": f"{self.benchmark}.tsv"}


UNNAMED = TaskData("", None, None, ())  # of a run without --task: everything is found in its files


def _glue(config: str, benchmark: str, text: str, pair: str | None, labels: tuple[str, ...], **more) -> TaskData:
    return TaskData("nyu-mll/glue", text, "label", labels, pair, config, benchmark=benchmark, **more)


TASKS = {
    # One sentence
    "cola": _glue(
        "cola", "CoLA", "sentence", None, ("unacceptable", "acceptable"), metric=MatthewsMetric, labels_are_ids=True
    ),
    "sst2": _glue(
        "sst2", "SST-2", "sentence", None, ("negative", "positive"), metric=AccuracyMetric, labels_are_ids=True
    ),
    # Similarity and paraphrase
    "mrpc": _glue(
        "mrpc", "MRPC", "sentence1", "sentence2", ("not_equivalent", "equivalent"),
        metric=AccuracyAndF1Metric, labels_are_ids=True,
    ),
    "qqp": _glue(
        "qqp", "QQP", "question1", "question2", ("not_duplicate", "duplicate"),
        metric=AccuracyAndF1Metric, labels_are_ids=True,
    ),
    "stsb": _glue(
        "stsb", "STS-B", "sentence1", "sentence2", (),
        metric=CorrelationMetric, regression=True, score_range=(0.0, 5.0),
    ),
    # Inference
    "mnli": _glue(
        "mnli", "MNLI", "premise", "hypothesis", ("entailment", "neutral", "contradiction"),
        metric=AccuracyMetric, splits=_MNLI_SPLITS,
    ),
    "qnli": _glue("qnli", "QNLI", "question", "sentence", ("entailment", "not_entailment"), metric=AccuracyMetric),
    "rte": _glue("rte", "RTE", "sentence1", "sentence2", ("entailment", "not_entailment"), metric=AccuracyMetric),
    "wnli": _glue(
        "wnli", "WNLI", "sentence1", "sentence2", ("not_entailment", "entailment"),
        metric=AccuracyMetric, labels_are_ids=True,
        note="WNLI: validation contradicts training. 65 of the 71 validation texts are also training texts, and for "
        "62 of these the most similar training pair has the other label: what is learned there is wrong here",
    ),
    # Not in GLUE. On the Hub SICK is a loading script, which is not run: --data_dir
    "sick": TaskData(
        "RobZamp/sick", "sentence_A", "label", ("entailment", "neutral", "contradiction"), "sentence_B",
        metric=AccuracyMetric, test_has_labels=True,
    ),
    "sick_relatedness": TaskData(
        "RobZamp/sick", "sentence_A", "relatedness_score", (), "sentence_B",
        metric=CorrelationMetric, regression=True, test_has_labels=True,
    ),
    # Almeida & Hidalgo 2011, "Contributions to the study of SMS spam filtering"
    "spam": TaskData("ucirvine/sms_spam", "sms", "label", ("ham", "spam"), test_has_labels=True),
}  # fmt: skip

POSITIVE_NAMES = ("spam", "1", "yes", "true", "positive", "pos")  # of the positive one of two labels, without a task


def order_labels(names: set[str], task: str | None = None) -> tuple[str, ...]:
    """Label names by id: the task's order, else sorted, with the positive one of two last.

    Numbers are sorted by value: of 0 and 1 the positive one is last, but 1 is not the positive one of 1 and 2.
    """
    if task is not None and names <= set(TASKS[task].labels):
        return TASKS[task].labels
    ordered = sorted(names)
    if all(as_number(name) is not None for name in names):
        ordered.sort(key=float)
    if len(ordered) == 2 and ordered[0].lower() in POSITIVE_NAMES and as_number(ordered[1]) is None:
        ordered.reverse()
    return tuple(ordered)
