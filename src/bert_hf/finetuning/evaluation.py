"""The metrics of a finished model on labelled rows, under the names of a fine-tuning run: `accuracy`, `f1`, …"""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from bert_hf.config.parser import option
from bert_hf.data.text.tables import file_rows
from bert_hf.errors import InputError
from bert_hf.finetuning.choices import choice_row
from bert_hf.finetuning.decisions import probability_metrics
from bert_hf.finetuning.labelled_texts import REGRESSION, labelled_rows, without_empty
from bert_hf.finetuning.losses import cross_entropies, squared_errors
from bert_hf.finetuning.metrics import classification_metrics, confusion, predicted_classes, regression_metrics
from bert_hf.finetuning.prediction import (
    AnswerPredictor,
    ChoicePredictor,
    MaskPredictor,
    Predictor,
    TextPredictor,
    WordPredictor,
)
from bert_hf.finetuning.prediction_files import PredictorArguments
from bert_hf.finetuning.squad.decoding import decode
from bert_hf.finetuning.squad.files import read_questions
from bert_hf.finetuning.squad.metric import official_metrics
from bert_hf.finetuning.tagging.conll import check_labels, read_tagged, unify_schemes
from bert_hf.finetuning.tagging.entities import entity_table, tagging_metrics


@dataclass
class EvaluationArguments(PredictorArguments):
    """Options of `evaluate.py`."""

    output_dir: str | None = option(None, "Folder for test_results.json; without it the metrics are only printed.")
    label_column: str | None = option(None, "Column of the label. Default: that of the training, or a usual name.")


@functools.singledispatch
def evaluate(predictor: Predictor, evaluation_args: EvaluationArguments) -> tuple[dict[str, float], str]:
    """The metrics of the rows, without `test_`, and a text for the console: the rows, and a table of their classes."""
    where = evaluation_args.model_name_or_path
    raise InputError("not fine-tuned", where=where, remedy="`bert-hf pretrain --do_train false` evaluates it")


@evaluate.register
def _of_texts(predictor: TextPredictor, evaluation_args: EvaluationArguments) -> tuple[dict[str, float], str]:
    raw = file_rows(evaluation_args.test_file or [], evaluation_args.encoding, separator=evaluation_args.separator)
    columns = predictor.columns_of(raw[0])
    label = evaluation_args.label_column or predictor.trained_on.get("label_column")
    rows = without_empty(labelled_rows(raw, columns._replace(label=label)))
    logits = predictor.logits(rows.texts, rows.pairs)
    if predictor.regression:
        numbers = rows.numbers()
        losses = squared_errors(torch.from_numpy(logits), torch.from_numpy(numbers))
        return {**regression_metrics(logits, numbers), "loss": float(losses.mean())}, rows.line(REGRESSION)

    rows = rows.with_names(predictor.names)
    rows.check_labels(predictor.names)
    targets = rows.targets(predictor.names)
    losses = cross_entropies(torch.from_numpy(logits), torch.from_numpy(targets))
    table = confusion(targets, predicted_classes(logits, predictor.threshold), predictor.names)
    metrics = classification_metrics(logits, targets, (), predictor.threshold) | probability_metrics(logits, targets)
    return {**metrics, "loss": float(losses.mean())}, f"{rows.line()}\n{table}"


@evaluate.register
def _of_words(predictor: WordPredictor, evaluation_args: EvaluationArguments) -> tuple[dict[str, float], str]:
    rows = read_tagged(evaluation_args.test_file or [])
    unify_schemes({"test": rows})
    check_labels(rows, tuple(predictor.names))
    logits = predictor.logits(rows.words, rows.documents)
    tags = predictor.labels(logits, rows.words)
    targets = torch.tensor([predictor.names.index(tag) for tags in rows.tags for tag in tags])
    with_pieces = torch.from_numpy(~np.isnan(logits).any(1))
    losses = cross_entropies(torch.from_numpy(logits)[with_pieces], targets[with_pieces])
    return {**tagging_metrics(rows.tags, tags), "loss": float(losses.mean())}, entity_table(rows.tags, tags)


@evaluate.register
def _of_answers(predictor: AnswerPredictor, evaluation_args: EvaluationArguments) -> tuple[dict[str, float], str]:
    questions = read_questions(evaluation_args.test_file or [])
    windows, spans, losses = predictor.spans(questions)
    gold = {question.id: [answer.text for answer in question.answers] for question in questions}
    threshold = getattr(predictor.model.config, "null_score_diff_threshold", None)
    if threshold is None and not predictor.trained_on and not all(gold.values()):
        threshold = 0.0  # as the stock examples, which do not record theirs
    texts = {each.question.id: each.text(threshold) for each in decode(windows, spans, n_best=1)}
    loss = float(losses.mean()) / 2  # of start and end
    return {**official_metrics(gold, texts), "loss": loss}, f"{len(questions):,} questions"


@evaluate.register
def _of_choices(predictor: ChoicePredictor, evaluation_args: EvaluationArguments) -> tuple[dict[str, float], str]:
    raw = file_rows(evaluation_args.test_file or [])
    rows = list(map(choice_row, raw))
    labels = [row.label for row in rows]
    if None in labels:
        raise raw[labels.index(None)].error("the row has no label", "add a label, or remove the row")

    logits = predictor.logits(rows)
    right = [own.argmax() == label for own, label in zip(logits, labels, strict=True)]
    pairs = zip(logits, labels, strict=True)
    losses = [cross_entropies(torch.from_numpy(own)[None], torch.tensor([label])) for own, label in pairs]
    return {"accuracy": float(np.mean(right)), "loss": float(torch.cat(losses).mean())}, f"{len(rows):,} rows"


evaluate.register(MaskPredictor, evaluate.dispatch(Predictor))  # although it reads texts
