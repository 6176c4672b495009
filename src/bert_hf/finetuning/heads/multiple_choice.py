"""The best of several choices: each is an input of its own, scored by one new vector on [CLS].

Devlin et al. 2019, section 4.4. Shapes: B rows of a batch, C choices of a row, L tokens of the longest choice.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase

from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.finetuning.features.long_texts import token_ids
from bert_hf.finetuning.heads.head import Features, Head, Kept, Labels
from bert_hf.finetuning.heads.pictures import bars
from bert_hf.finetuning.losses import IGNORE_INDEX, cross_entropies
from bert_hf.finetuning.rows.choices import ChoiceRow, choice_row


class MultipleChoiceHead(Head):
    """The number of the choice that fits best, from 0; rows may have different numbers of choices."""

    name = "multiple_choice"
    auto_class = AutoModelForMultipleChoice
    architectures = ("ForMultipleChoice",)
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "multiple-choice"
    own_metric = "MultipleChoice"
    extra_columns = ("choices",)
    text_columns = ("context", "question", "choices")

    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> list[ChoiceRow]:
        choice_rows = [choice_row(row, with_label=labels != "ignored") for row in rows]
        for row, choices in zip(rows, choice_rows, strict=True):
            if choices.label is None and labels == "needed":
                remedy = "add one as `label`, or remove the row (only test rows may lack it)"
                raise row.error(f"missing label (columns: {', '.join(row.values)})", remedy)
        return choice_rows

    def encode(self, rows: Sequence[ChoiceRow]) -> Features:
        return Features(encode_choices(rows, self.tokenizer, self.length))

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return a batch: tensors (B, C, L), `choices` (B,), and `labels` (B,) where known.

        A row with fewer choices than another is filled up with inputs of one token, which count in no loss.
        """
        pad = self.tokenizer.pad_token_id
        counts = [len(feature["input_ids"]) for feature in features]  # of choices
        most = max(counts)
        ids, types = [], []
        for feature, count in zip(features, counts, strict=True):
            ids += [*feature["input_ids"], *([[pad]] * (most - count))]
            types += [*feature["token_type_ids"], *([[0]] * (most - count))]

        padded = pad_inputs(ids, pad, torch.device("cpu"), types)  # (B · C, L)
        batch = {name: values.unflatten(0, (len(features), most)) for name, values in padded.items()}
        batch["choices"] = torch.tensor(counts)
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    def config_options(self) -> dict:
        return {}  # no names: the network's one output scores a choice, of any number

    def losses(self, inputs: dict[str, Tensor], outputs: Any, label_smoothing: float = 0.0) -> Tensor:
        logits, labels = self.keep(inputs, outputs), inputs["labels"]
        losses = cross_entropies(logits, labels)
        if not label_smoothing:
            return losses
        # Not by `cross_entropies`: the target is spread over the choices that a row has, other logits are -inf
        log_probabilities = logits.log_softmax(-1).masked_fill(logits == -torch.inf, 0.0)
        even_losses = (-log_probabilities.sum(-1) / inputs["choices"]).masked_fill(labels == IGNORE_INDEX, 0.0)
        return (1 - label_smoothing) * losses + label_smoothing * even_losses

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> Tensor:
        """Return (B, C) logits, -inf where a row has no such choice."""
        logits = outputs["logits"].float()
        numbers = torch.arange(logits.shape[1], device=logits.device)
        return logits.masked_fill(numbers >= inputs["choices"][:, None], -torch.inf)

    def decode(self, rows: Sequence[ChoiceRow], encoded: Features, kept: Kept) -> list[np.ndarray]:
        """Return (choices,) logits of each row."""
        return [np.asarray(logits[: len(row.choices)]) for row, logits in zip(rows, kept, strict=True)]

    def added_columns(self, rows: Sequence[ChoiceRow], predictions: list[np.ndarray]) -> list[dict[str, Any]]:
        scores_of_rows = map(softmax, predictions)
        return [{"choice": int(scores.argmax()), "score": float(scores.max())} for scores in scores_of_rows]

    def texts_of_row(self, rows: Sequence[ChoiceRow], number: int) -> list[str]:
        row = rows[number]
        return [row.context, row.question, "\n".join(row.choices)]  # the demo splits the lines again

    def picture(self, texts: Mapping[str, str], rows: Sequence[ChoiceRow], predictions: list[np.ndarray]) -> str:
        """Return a bar for each choice."""
        names = [f"{number}: {choice}" for number, choice in enumerate(rows[0].choices)]
        scores = softmax(predictions[0]).tolist()
        return bars(dict(zip(names, scores, strict=True)), [names[predictions[0].argmax()]])

    def metric_names(self) -> tuple[str, ...]:
        return ("accuracy", "loss")

    def metric_inputs(self, rows: Sequence[ChoiceRow], predictions: list[np.ndarray]) -> dict[str, Any]:
        """Return the numbers of the predicted and of the right choices, for the rows that have a label."""
        predicted, right = [], []
        for row, logits in zip(rows, predictions, strict=True):
            if row.label is not None:
                predicted.append(int(logits.argmax()))
                right.append(row.label)
        return {"predictions": predicted, "references": right}

    def restore(self, config: Any) -> None:
        self.labels = ()  # the stock configuration has names of classes, which choices are not


def encode_choices(
    rows: Sequence[ChoiceRow], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset:
    """Return [CLS] context [SEP] question and choice [SEP] for each choice of each row.

    The context is cut, at its end; a choice only if it is longer than an input. At length 8, letters are tokens:

        context abcd, choice xy   → [CLS] a b c [SEP] x y [SEP]
        context abcd, choice t…z  → [CLS] [SEP] t u v w x [SEP], y and z are cut

    Returns:
        Features with the columns `input_ids` and `token_type_ids` (C lists each), `length` (of the longest choice),
        and `labels` unless no row has one.
    """
    texts = [row.texts() for row in rows]  # of a row: the context, and (C,) question and choice
    contexts = token_ids([context for context, _ in texts], tokenizer)
    choices = iter(token_ids([choice for _, several in texts for choice in several], tokenizer))
    template = InputTemplate(tokenizer)
    capacity = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)

    columns: dict[str, list] = {"input_ids": [], "token_type_ids": [], "length": []}
    for row, context in zip(rows, contexts, strict=True):
        inputs = []
        for _ in row.choices:
            choice = next(choices)
            inputs.append(template.join(context[: max(0, capacity - len(choice))], choice[:capacity]))
        columns["input_ids"].append([np.array(each.input_ids, np.int32) for each in inputs])
        columns["token_type_ids"].append([np.array(each.token_type_ids, np.int8) for each in inputs])
        columns["length"].append(max(len(each.input_ids) for each in inputs))
    if any(row.label is not None for row in rows):
        columns["labels"] = [IGNORE_INDEX if row.label is None else row.label for row in rows]
    return datasets.Dataset.from_dict(columns)
