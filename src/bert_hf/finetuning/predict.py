"""What a finished model says about rows: labels, numbers, answers, tags, choices, or words for [MASK].

Inputs are made by the code of the training, at the length that the model was trained at; they are sorted by length, so
that a batch holds little padding, and the predictions come back in the order of the rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bert_hf.config.hardware import cpu_threads
from bert_hf.console import logger, progress
from bert_hf.data.text.tables import Row, choose_column, text_of
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.tasks.multiple_choice import ChoiceRow, choice_row, encode_choices
from bert_hf.finetuning.heads.frozen_features import BiLstmTagger, word_logits
from bert_hf.finetuning.rows.labelled_texts import Columns, LabelledTexts, find_columns
from bert_hf.finetuning.features.long_texts import average_windows, encode_texts
from bert_hf.finetuning.losses import span_cross_entropies
from bert_hf.finetuning.metrics.classification import predicted_classes
from bert_hf.finetuning.decisions.mistakes import drift_line, measures
from bert_hf.finetuning.features.answer_spans import best_spans, decode
from bert_hf.finetuning.rows.questions import Question
from bert_hf.finetuning.features.context_windows import WindowCollator, Windows, WindowShape, make_windows
from bert_hf.finetuning.rows.tagged_sentences import DOCUMENT_COLUMNS, WORD_COLUMNS
from bert_hf.finetuning.metrics.entities import OUTSIDE
from bert_hf.finetuning.features.word_windows import SPECIAL_TOKENS, tokenize_words
from bert_hf.finetuning.features.word_windows import make_windows as windows_of_words
from bert_hf.finetuning.tasks.task import TRAINED_ON
from bert_hf.models.loading import find_checkpoint, load_network, read_safe_json


class Predictor(ABC):
    """A model with one kind of head, its tokenizer, and how its inputs are made.

    Args:
        options: in place of what the training recorded in the model's configuration: columns, `long_texts`, sizes of
            windows.
    """

    auto_class: ClassVar[Any]
    collator: ClassVar[Any] = DataCollatorWithPadding
    columns: tuple[str, ...]  # that are added to each row

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]):
        self.model = model
        self.tokenizer = tokenizer
        self.options = options
        self.trained_on: dict[str, Any] = getattr(model.config, TRAINED_ON, None) or {}
        self.settings = self.trained_on | options
        self.collate = self.collator(tokenizer)
        longest = self.settings.get("max_seq_length", tokenizer.model_max_length)
        self.length = min(longest, model.config.max_position_embeddings)
        self.context = self.length if self.settings.get("document_context") else 0  # rows of each side
        names: Any = model.config.id2label
        self.names: list[str] = [names[number] for number in sorted(names)]

    def __call__(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """What is added to each row, by column."""
        items = [self.read(row) for row in rows]
        training = self.model.training
        self.model.eval()  # without dropout
        added = self.predict(items) if items else []
        self.model.train(training)
        return added

    @abstractmethod
    def read(self, row: Row) -> Any:
        """What the network reads of a row."""

    @abstractmethod
    def predict(self, items: list[Any]) -> list[dict[str, Any]]:
        """See `__call__`."""

    @torch.inference_mode()
    def outputs(self, features: Sequence[dict], keep: Callable[[dict, Any], Iterable]) -> list:
        """What `keep` takes from a batch and the network's outputs, for each feature, in order."""
        lengths = [len(feature["input_ids"]) for feature in features]
        kept: list = [None] * len(features)
        for numbers in batches_by_length(lengths, 4_096 if self.model.device.type == "cpu" else 65_536):
            batch = self.collate([features[number] for number in numbers])
            batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
            for number, value in zip(numbers, keep(batch, self.forward(batch)), strict=True):
                kept[number] = value
        return kept

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """The outputs of the network."""
        return self.model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})


def batches_by_length(lengths: Sequence[int], tokens: int) -> Iterable[list[int]]:
    """Numbers of inputs, longest first, in batches of at most so many tokens, padding included; with a progress bar.

    Lengths 3, 9, 4, 8 with 18 tokens: [1, 3], [2, 0].
    """
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    batches = []
    while order:
        count = max(1, tokens // lengths[order[0]])
        batches.append(order[:count])
        order = order[count:]
    return progress(batches, "computing", "batches")


def _numpy_logits(batch: dict, outputs: Any) -> np.ndarray:
    return outputs.logits.float().cpu().numpy()


# ---- texts


class TextPredictor(Predictor):
    """Classes of texts or of pairs of texts, or numbers."""

    auto_class = AutoModelForSequenceClassification
    columns = ("label", "score")

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]):
        super().__init__(model, tokenizer, options)
        if model.config.problem_type == "multi_label_classification":
            remedy = "use transformers' pipeline with top_k=None"
            raise InputError("a multi-label model", where=model.name_or_path, remedy=remedy)
        self.regression = model.config.num_labels == 1
        self.threshold: float | None = getattr(model.config, "decision_threshold", None)
        self._deciles: dict[str, list[float]] = self.trained_on.get("deciles", {})
        if self.regression:
            self.columns = ("score",)
        self._columns: Columns | None = None

    def read(self, row: Row) -> tuple[str, str | None]:
        self._columns = self._columns or self.columns_of(row)
        text, pair = self._columns.text, self._columns.pair
        return (text_of(row, str(text)) or "").strip(), None if pair is None else (text_of(row, pair) or "").strip()

    def columns_of(self, row: Row) -> Columns:
        """The columns that are read: the named ones, else those of the training, else those of usual names."""
        text, pair = self.options.get("text_column"), self.options.get("text_pair_column")
        trained = self.trained_on
        if text is None and trained.get("text_column") in row.values:
            text, pair = trained["text_column"], pair or trained["text_pair_column"]

        columns = find_columns(row, Columns(text, pair), needs_label=False)
        if pair is None and trained:
            is_pair = trained["text_pair_column"] is not None
            if is_pair and columns.pair is None:
                raise row.header_error("the model was trained on pairs of texts", "pass --text_pair_column")
            columns = columns if is_pair else columns._replace(pair=None)
        return columns

    def logits(self, texts: list[str], pairs: list[str] | None) -> np.ndarray:
        """(rows, classes)"""
        rows = LabelledTexts(texts, None, pairs=pairs)
        encoded = encode_texts(rows, None, self.tokenizer, self.length, self.settings.get("long_texts", "head"))
        kept = self.outputs(cast(list[dict], encoded.features.to_list()), _numpy_logits)
        logits = average_windows(np.stack(kept), encoded.row_of_feature)
        if self._deciles and (line := drift_line(measures(encoded.features, logits, self.tokenizer), self._deciles)):
            logger.info(line)
            self._deciles = {}  # once
        return logits

    def predict(self, items: list[tuple[str, str | None]]) -> list[dict[str, Any]]:
        texts, pairs = zip(*items, strict=True)
        logits = self.logits(list(texts), None if pairs[0] is None else list(pairs))
        if self.regression:
            return [{"score": float(value)} for value in logits[:, 0]]

        scores = torch.from_numpy(logits).softmax(-1).numpy()
        best = predicted_classes(logits, self.threshold)
        return [{"label": self.names[int(n)], "score": float(row[n])} for n, row in zip(best, scores, strict=True)]


class MaskPredictor(TextPredictor):
    """The likeliest word for each [MASK] of a text."""

    auto_class = AutoModelForMaskedLM
    columns = ("words", "scores")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """(masks of the batch, vocabulary): the head reads the masks alone."""
        network: Any = self.model
        states = network.base_model(**batch).last_hidden_state
        return network.cls.predictions(states[batch["input_ids"] == self.tokenizer.mask_token_id])

    def predict(self, items: list[tuple[str, str | None]]) -> list[dict[str, Any]]:
        features: Any = [self.tokenizer(*item, truncation=True, max_length=self.length) for item in items]

        def best_words(batch: dict, logits: Tensor) -> Iterator[dict[str, Any]]:
            counts = (batch["input_ids"] == self.tokenizer.mask_token_id).sum(1).tolist()
            for of_text in logits.float().softmax(-1).split(counts):
                scores, ids = (values.tolist() for values in of_text.max(-1))
                yield {"words": self.tokenizer.convert_ids_to_tokens(ids), "scores": scores}

        return self.outputs(features, best_words)


# ---- words


class WordPredictor(Predictor):
    """A label for each word: of a list in a column `tokens` or `words`, else of a text, between white space."""

    auto_class = AutoModelForTokenClassification
    columns = ("labels",)

    def read(self, row: Row) -> tuple[list[str], str]:
        """The words of a sentence, and the name of its document."""
        column = self.settings.get("text_column")
        column = column or next((name for name in WORD_COLUMNS if name in row.values), None) or choose_column(row)
        words = row.values.get(column)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            words = (text_of(row, column) or "").split()

        document = next((row.values[name] for name in DOCUMENT_COLUMNS if name in row.values), "")
        return words, f"{row.where} {document}"

    def predict(self, items: list[tuple[list[str], str]]) -> list[dict[str, Any]]:
        sentences, documents = zip(*items, strict=True)
        numbers = np.unique(documents, return_inverse=True)[1].tolist()
        return [{"labels": labels} for labels in self.labels(self.logits(sentences, numbers), sentences)]

    def labels(self, logits: np.ndarray, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """A label for each word of each sentence."""
        empty = np.isnan(logits).any(1)
        labels = np.where(empty, OUTSIDE, np.array(self.names, dtype=object)[logits.argmax(1)])
        words = iter(labels.tolist())
        return [[next(words) for _ in sentence] for sentence in sentences]

    def logits(self, sentences: Sequence[Sequence[str]], documents: Sequence[int]) -> np.ndarray:
        """(words, labels) of all sentences; NaN for a word that the tokenizer turns into nothing."""
        longest = self.length - SPECIAL_TOKENS
        pieces = tokenize_words(sentences, self.tokenizer, longest)
        windows = windows_of_words(pieces, longest, documents if self.context else None)
        inputs = windows.inputs(pieces, self.tokenizer)
        features = [{"input_ids": ids, "token_type_ids": [0] * len(ids)} for ids in inputs]

        kept = self.outputs(features, _numpy_logits)
        logits = np.full((len(pieces.empty), len(self.names)), np.nan, np.float32)
        places = windows.window_of_word, windows.position_of_word(pieces.starts)
        for word in np.flatnonzero(~pieces.empty):
            window, position = (int(place[word]) for place in places)
            logits[word] = kept[window][position]
        return logits


class FrozenFeaturesPredictor(WordPredictor):
    """The same by a BiLSTM on the hidden states of a frozen BERT."""

    auto_class = BiLstmTagger

    def logits(self, sentences: Sequence[Sequence[str]], documents: Sequence[int]) -> np.ndarray:
        own = documents if self.context else None
        return word_logits(cast(BiLstmTagger, self.model), self.tokenizer, sentences, own)


# ---- questions


class AnswerPredictor(Predictor):
    """The answer to a question in a context; "" where there is none."""

    auto_class = AutoModelForQuestionAnswering
    collator = WindowCollator
    columns = ("answer", "score")

    def read(self, row: Row) -> Question:
        texts = [row.values.get("question"), row.values.get("context")]
        if not all(isinstance(text, str) for text in texts):
            raise row.error("question or context is missing", "give rows of question and context")
        number = str(row.values.get("id", row.line))
        return Question(number, *map(str, texts), answers=(), file=row.where, line=row.line)

    def predict(self, items: list[Question]) -> list[dict[str, Any]]:
        threshold = getattr(self.model.config, "null_score_diff_threshold", None)
        windows, spans, _ = self.spans(items)
        answers = []
        for prediction in decode(windows, spans, self.settings.get("n_best_size", 20)):
            none = prediction.text(threshold) == ""
            span = prediction.null if none else prediction.spans[0]
            score = dict(prediction.ranked(with_null=threshold is not None))[span]
            answers.append({"answer": span.text, "score": score})
        return answers

    def spans(self, questions: Sequence[Question]) -> tuple[Windows, list[np.ndarray], np.ndarray]:
        """The windows of questions, their best spans (the fields of `WindowSpans`), and (W,) their losses."""
        stride = self.settings.get("doc_stride", self.length // 3)
        query = self.settings.get("max_query_length", min(64, self.length // 2))
        sizes = self.settings.get("n_best_size", 20), self.settings.get("max_answer_length", 30)
        windows = make_windows(questions, self.tokenizer, WindowShape(self.length, stride, query))

        def best(batch: dict, outputs: Any) -> Iterator[tuple]:
            logits = outputs.start_logits, outputs.end_logits
            losses = span_cross_entropies(*logits, batch["attention_mask"], batch["labels"])
            spans = best_spans(*logits, batch["in_context"], batch["limits"], *sizes)
            return zip(*(column.cpu().numpy() for column in (*spans, losses)), strict=True)

        features = cast(list[dict], windows.data.to_list())
        *spans, losses = map(np.stack, zip(*self.outputs(features, best), strict=True))
        return windows, spans, losses


# ---- choices


class ChoicePredictor(Predictor):
    """The number of the choice that fits best, from 0."""

    auto_class = AutoModelForMultipleChoice
    columns = ("choice", "score")

    def read(self, row: Row) -> ChoiceRow:
        return choice_row(row._replace(values={name: value for name, value in row.values.items() if name != "label"}))

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Each choice is a row of its own: rows may have different numbers of choices."""
        return super().forward({name: values[:, None] for name, values in batch.items()})

    def predict(self, items: list[ChoiceRow]) -> list[dict[str, Any]]:
        scores = [torch.from_numpy(logits).softmax(0) for logits in self.logits(items)]
        return [{"choice": int(own.argmax()), "score": float(own.max())} for own in scores]

    def logits(self, rows: Sequence[ChoiceRow]) -> list[np.ndarray]:
        """(choices,) of each row."""
        single = [row._replace(choices=(choice,)) for row in rows for choice in row.choices]
        encoded = encode_choices(single, self.tokenizer, self.length)
        inputs = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
        features = [{"input_ids": ids, "token_type_ids": types} for [ids], [types] in inputs]
        logits = np.concatenate(self.outputs(features, _numpy_logits))
        return np.split(logits, np.cumsum([len(row.choices) for row in rows])[:-1])


# ---- loading


_KINDS = {
    "BiLstmTagger": FrozenFeaturesPredictor,
    "ForSequenceClassification": TextPredictor,
    "ForTokenClassification": WordPredictor,
    "ForQuestionAnswering": AnswerPredictor,
    "ForMultipleChoice": ChoicePredictor,
    "ForMaskedLM": MaskPredictor,
    "ForPreTraining": MaskPredictor,
}


def _kind_of(architectures: Sequence[str], where: str | Path) -> type[Predictor]:
    """The predictor of the first known class, such as `BertForTokenClassification`."""
    for architecture in architectures:
        for ending, kind in _KINDS.items():
            if architecture.endswith(ending):
                return kind
    what = f"a model of class {architectures[0]} predicts nothing"
    raise InputError(what, where=where, remedy=f"give one of {', '.join(f'Bert{ending}' for ending in _KINDS)}")


def load_predictor(where: str | Path, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any) -> Predictor:
    """A finished model by the head that its configuration names; an option of None is as in training."""
    config = read_safe_json(find_checkpoint(where, weights=False) / "config.json")
    kind = _kind_of(config.get("architectures") or ["BertModel"], where)
    model, tokenizer, _ = open_network(where, kind.auto_class, (), tokenizer)
    return make_predictor(model, tokenizer, **options)


def open_network(
    where: str | Path, model_class: type, heads: tuple[str, ...], tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[Any, PreTrainedTokenizerBase, list[str]]:
    """A checkpoint by a stock class in fp32, on the accelerator where there is one, and its tokenizer.

    Returns the names of the weights that the checkpoint lacks, too; `heads` are prefixes of those that may be missing.
    """
    model, missing = load_network(model_class, find_checkpoint(where), where, heads, dtype=torch.float32)
    tokenizer = tokenizer or load_tokenizer(where)
    check_tokenizer(tokenizer, model.config.vocab_size)

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(cpu_threads())
    return model.to(device).eval(), tokenizer, missing


def make_predictor(model: Any, tokenizer: PreTrainedTokenizerBase, **options: Any) -> Predictor:
    """The predictor of a model in memory, of a stock class or a class derived from one; see `load_predictor`."""
    kind = _kind_of([cls.__name__ for cls in type(model).__mro__], "model")
    return kind(model, tokenizer, {name: value for name, value in options.items() if value is not None})


def predict(
    model: Any, texts: Iterable[Any], tokenizer: PreTrainedTokenizerBase | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The predictions of a finished model, one dictionary per text.

        >>> predict("runs/spam", ["You won a prize!", "See you at eight."])
        [{'label': 'spam', 'score': 0.99}, {'label': 'ham', 'score': 0.98}]

    Args:
        model: its folder or Hub id, or a stock model in memory with any of the BERT heads.
        texts: texts; pairs of texts as tuples; lists of words; or dictionaries by column, such as
            `{"question": …, "context": …}` and `{"context": …, "choices": […]}`. As in a file, sentences are one
            document, or several by `document_id`.
        tokenizer: by default the model's own.
        options: `long_texts`, `text_column`, … in place of those of the training.

    Returns:
        `label` and `score`; `score` of a regression; `labels` of words; `answer` and `score`; `choice` and `score`;
        with a pre-trained model `words` and `scores`, one for each [MASK].
    """
    texts = list(texts)
    if texts and isinstance(texts[0], str):  # `_as_values` names the columns
        options["text_column"] = "text"
    elif texts and isinstance(texts[0], tuple):
        options |= {"text_column": "text", "text_pair_column": "text_pair"}
    if isinstance(model, str | Path):
        predictor = load_predictor(model, tokenizer, **options)
    else:
        predictor = make_predictor(model, tokenizer or load_tokenizer(model.name_or_path), **options)
    return predictor([Row(_as_values(text), "texts", number) for number, text in enumerate(texts, 1)])


def _as_values(text: Any) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    if isinstance(text, tuple):
        return dict(zip(("text", "text_pair"), text, strict=True))
    return {"words" if isinstance(text, list) else "text": text}
