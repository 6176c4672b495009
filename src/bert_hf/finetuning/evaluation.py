"""The metrics of a finished model on labelled rows, under the names of a fine-tuning run: `accuracy`, `f1`, …"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_hf.config.parser import option
from bert_hf.data.text.tables import file_rows
from bert_hf.errors import InputError
from bert_hf.finetuning.choice_rows import choice_row
from bert_hf.finetuning.labelled_texts import Columns, read_labelled
from bert_hf.finetuning.losses import cross_entropies, squared_errors
from bert_hf.finetuning.metrics import classification_metrics, regression_metrics
from bert_hf.finetuning.prediction import (
    AnswerPredictor,
    ChoicePredictor,
    MaskPredictor,
    Predictor,
    TextPredictor,
    WordPredictor,
)
from bert_hf.finetuning.squad.files import read_questions
from bert_hf.finetuning.squad.metric import official_metrics
from bert_hf.finetuning.tagging.conll import check_labels, read_tagged, unify_schemes
from bert_hf.finetuning.tagging.entities import tagging_metrics


@dataclass
class EvaluationArguments:
    """Which model is evaluated on which rows."""

    model_name_or_path: str | None = option(None, "Fine-tuned model (folder or Hub id).")
    test_file: list[str] | None = option(None, "Labelled rows, in the format of the training rows.")
    output_dir: str | None = option(None, "Folder for test_results.json; without it the metrics are only printed.")
    text_column: str | None = option(None, "Column of the text; by default that of the training, or a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    label_column: str | None = option(None, "Column of the label; by default a usual name, such as label.")
    long_texts: str | None = option(
        None, "Part of a longer text that is read; by default as in training.", ("head", "head_tail", "windows")
    )
    tag_names: list[str] | None = option(None, "Names of the labels of words 0, 1, …, if the data hold only numbers.")
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")


def evaluate(predictor: Predictor, evaluation_args: EvaluationArguments) -> dict[str, float]:
    """The metrics of the rows, without `test_`.

    Raises:
        InputError: with file and line; or a label that the model does not know.
    """
    files = evaluation_args.test_file or []
    if isinstance(predictor, TextPredictor) and not isinstance(predictor, MaskPredictor):
        return _of_texts(predictor, files, evaluation_args)
    if isinstance(predictor, WordPredictor):
        return _of_words(predictor, files, evaluation_args.tag_names)
    if isinstance(predictor, AnswerPredictor):
        return _of_answers(predictor, files)
    if isinstance(predictor, ChoicePredictor):
        return _of_choices(predictor, files)
    where = evaluation_args.model_name_or_path
    raise InputError("not fine-tuned", where=where, remedy="`bert-hf pretrain --do_train false` evaluates it")


def _of_texts(predictor: TextPredictor, files: list[str], evaluation_args: EvaluationArguments) -> dict[str, float]:
    first = next(iter(file_rows(files[:1], evaluation_args.encoding)))
    columns = predictor.columns_of(first)
    named = Columns(columns.text, columns.pair, evaluation_args.label_column)
    rows = read_labelled(files, named, evaluation_args.encoding)
    logits = predictor.logits(rows.texts, rows.pairs)
    if predictor.regression:
        targets = rows.numbers()
        loss = squared_errors(torch.from_numpy(logits), torch.from_numpy(targets))
        return {**regression_metrics(logits, targets), "loss": float(loss.mean())}

    names = predictor.names
    for label, (where, line) in zip(rows.class_names(), rows.places, strict=True):
        if label not in names:
            remedy = f"the model's labels: {', '.join(names[:10])}"
            raise InputError(f"the model has no label {label!r}", where=where, line=line, remedy=remedy)
    targets = rows.targets(names)
    loss = cross_entropies(torch.from_numpy(logits), torch.from_numpy(targets))
    return {**classification_metrics(logits, targets), "loss": float(loss.mean())}


def _of_words(predictor: WordPredictor, files: list[str], names: Sequence[str] | None) -> dict[str, float]:
    rows = read_tagged(files, names)
    unify_schemes({"test": rows})
    check_labels(rows, tuple(predictor.names))
    documents = rows.documents if predictor.settings.get("document_context") else None
    return tagging_metrics(rows.tags, predictor.tags(rows.words, documents))


def _of_answers(predictor: AnswerPredictor, files: list[str]) -> dict[str, float]:
    questions = read_questions(files)
    gold = {question.id: [answer.text for answer in question.answers] for question in questions}
    threshold = getattr(predictor.model.config, "null_score_diff_threshold", None)
    found = {prediction.question.id: prediction.text(threshold) for prediction in predictor.predictions(questions)}
    return official_metrics(gold, found)


def _of_choices(predictor: ChoicePredictor, files: list[str]) -> dict[str, float]:
    rows = file_rows(files)
    labels = [choice_row(row).label for row in rows]
    if None in labels:
        raise rows[labels.index(None)].error("the row has no label", "add a label, or remove the row")
    chosen = [each["choice"] for each in predictor(rows)]
    return {"accuracy": float(np.mean(np.array(chosen) == np.array(labels)))}
