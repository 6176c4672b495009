"""The metrics of each head as modules of the `evaluate` library, and further metrics by name.

    >>> from bert_hf.finetuning.metrics.evaluated import Classification
    >>> Classification().compute(predictions=[1, 0, 1], references=[1, 0, 0])["f1"]
    0.6666666666666666

They need no network and no file, and may be used in `evaluate.combine`.
"""

# pyright: reportIncompatibleMethodOverride=false
# The metrics of `evaluate` name the arguments of _compute

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import evaluate
import numpy as np
from datasets import Features, Value
from datasets import Sequence as Several

from bert_hf.errors import InputError, first_line
from bert_hf.finetuning.metrics.classification import classification_metrics, multi_label_metrics, regression_metrics
from bert_hf.finetuning.metrics.entities import tagging_metrics
from bert_hf.finetuning.metrics.squad import official_metrics

_INPUTS = ("predictions", "references")
_STRING = Value("string")


class _Metric(evaluate.Metric):
    """A function of predictions and references as a metric that keeps its inputs in memory, not in a cache file."""

    function: ClassVar[Callable[..., dict[str, float]]]  # called by `_compute`, which a subclass may define instead
    inputs: ClassVar[Mapping[str, Any]] = {}  # `datasets` types of predictions and references
    source = "Pedregosa et al. 2011, Scikit-learn: Machine Learning in Python, JMLR 12"  # the citation

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **options: Any):
        super().__init__(config_name, keep_in_memory, **options)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(self.__doc__),
            citation=self.source,
            inputs_description="Args: predictions and references, one entry for each row.",
            features=Features(self.inputs),
        )

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        return type(self).function(predictions, references, **options)


class Classification(_Metric):
    """Accuracy, F1 and Matthews correlation of class ids; with `logits` average precision, too.

    `combined` adds the mean of accuracy and F1 (GLUE's MRPC and QQP), `with_rates` the rates of class 1 of two.
    """

    function = staticmethod(classification_metrics)
    inputs = dict.fromkeys(_INPUTS, Value("int64"))


class MultiLabel(_Metric):
    """Micro and macro F1, accuracy of whole rows, and F1 of each label in `names`; a row has 0 or 1 for each label."""

    function = staticmethod(multi_label_metrics)
    inputs = dict.fromkeys(_INPUTS, Several(Value("int64")))


class Regression(_Metric):
    """Correlations and root mean squared error of numbers."""

    function = staticmethod(regression_metrics)
    inputs = dict.fromkeys(_INPUTS, Value("float64"))


class TokenClassification(_Metric):
    """Accuracy of labels and, if they are `of_entities`, precision, recall and F1, as conlleval computes them."""

    source = "Tjong Kim Sang and Buchholz 2000, Introduction to the CoNLL-2000 Shared Task: Chunking"
    inputs = dict.fromkeys(_INPUTS, Several(_STRING))

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        return tagging_metrics(references, predictions, **options)


class QuestionAnswering(_Metric):
    """SQuAD's exact match and F1, in percent; it takes what `squad_v2` of the `evaluate` library takes."""

    source = "Rajpurkar et al. 2018, Know What You Don't Know: Unanswerable Questions for SQuAD"
    inputs: ClassVar[Mapping[str, Any]] = {
        "predictions": {"id": _STRING, "prediction_text": _STRING, "no_answer_probability": Value("float64")},
        "references": {"id": _STRING, "answers": Several({"text": _STRING, "answer_start": Value("int32")})},
    }

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        gold = {each["id"]: list(each["answers"]["text"]) for each in references}
        answers = {each["id"]: each["prediction_text"] for each in predictions}
        return official_metrics(gold, answers, **options)


class MultipleChoice(_Metric):
    """Accuracy of the chosen numbers."""

    inputs = dict.fromkeys(_INPUTS, Value("int64"))

    def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}


def load_metrics(names: Sequence[str | evaluate.Metric], config: str | None = None) -> list[evaluate.Metric]:
    """Return metrics of the `evaluate` library, whose code runs on this machine; an `InputError` names what fails.

    Args:
        names: of local folders or scripts, or ids of the Hub; a metric in place of a name is returned as it is.
        config: name of a configuration, such as `multilabel`, for the metrics that have it.
    """
    metrics = []
    for name in names:
        if not isinstance(name, str):
            metrics.append(name)
            continue
        try:
            metrics.append(evaluate.load(name, config, keep_in_memory=True))
        except Exception as error:  # a missing file, the network, or anything that the script raises
            remedy = "give a folder or script of the evaluate library, or check the id and the network"
            raise InputError(f"metric cannot be loaded: {first_line(error)}", where=name, remedy=remedy) from None
    return metrics
