"""Loads the probed network by stock transformers, or makes one of its shape with random weights; makes batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.config.hardware import keep_freed_memory
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError
from bert_hf.models.loading import load_network, open_checkpoint

TOKENS_OF_A_BATCH = 8192  # padding included

# Shapes in this file: B rows of a batch, L tokens of the longest.


@dataclass
class Subject:
    """The probed checkpoint: its folder, its shape and its tokenizer.

    Attributes:
        name: as the user named it.
        missing: names of the parameters that the checkpoint lacks (a pooler, the heads); filled by the first `load`.
    """

    name: str
    folder: Path
    config: BertConfig
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    seed: int
    missing: tuple[str, ...] = ()

    def load(self, draw: int | None = None) -> BertForPreTraining:
        """Stock `BertForPreTraining` in fp32, ready to be evaluated.

        Args:
            draw: None loads the checkpoint; a number draws random weights, another number others.
        """
        set_seed(self.seed + 1000 * (draw or 0))
        model: Any
        if draw is None:
            heads = ("cls.", "bert.pooler.")
            model, missing = load_network(BertForPreTraining, self.folder, self.name, heads, dtype=torch.float32)
            self.missing = tuple(missing)
        else:
            model = BertForPreTraining(self.config).float()
        return model.to(self.device).eval()

    def load_classifier(self, classes: int, draw: int, random: bool, reset: tuple[str, ...] = ()) -> PreTrainedModel:
        """Stock `AutoModelForSequenceClassification` in fp32.

        Args:
            draw: the seed of its new layer, or of all weights.
            random: all weights are drawn.
            reset: beginnings of the names of parameters that are drawn, too (see `check_reset`).
        """
        if reset and not random:
            return self._load_reset(classes, draw, reset)

        set_seed(self.seed + 1000 * draw + 1)
        config = BertConfig.from_dict({**self.config.to_dict(), "num_labels": classes})
        options = {"config": config, "dtype": torch.float32}
        if random:
            model = AutoModelForSequenceClassification.from_config(**options)
        else:
            heads = ("classifier.", "bert.pooler.")
            model, _ = load_network(AutoModelForSequenceClassification, self.folder, self.name, heads, **options)
        return model.to(self.device)

    def _load_reset(self, classes: int, draw: int, reset: tuple[str, ...]) -> PreTrainedModel:
        """The checkpoint's classifier with the named parameters from the one with random weights."""
        weights = self.load_classifier(classes, draw, random=False).state_dict()
        classifier = self.load_classifier(classes, draw, random=True)
        kept = {name: weight for name, weight in weights.items() if not name.startswith(reset)}
        classifier.load_state_dict(kept, strict=False)
        return classifier

    def lacks(self, beginning: str) -> bool:
        """Whether the checkpoint lacks parameters whose names begin so (which were drawn at random)."""
        return any(name.startswith(beginning) for name in self.missing)


def open_subject(probe_args: ProbeArguments) -> Subject:
    """Finds and checks checkpoint and tokenizer; sets threads.

    Raises:
        InputError: nothing can be loaded from there, or tokenizer, length, shape and options do not fit.
    """
    where = str(probe_args.model_name_or_path)
    folder, config, device = open_checkpoint(where, probe_args.max_seq_length)
    check_reset(config, probe_args.tune_reset)
    tokenizer = load_tokenizer(probe_args.tokenizer_name or where)
    check_tokenizer(tokenizer, config.vocab_size)
    if device.type == "cpu":
        keep_freed_memory()
    return Subject(where, folder, config, tokenizer, device, probe_args.seed)


def check_reset(config: BertConfig, beginnings: Sequence[str] | None) -> None:
    """Refuses beginnings with which no parameter's name begins, before anything is computed.

    Raises:
        InputError: with the first such beginning.
    """
    with torch.device("meta"):
        names = AutoModelForSequenceClassification.from_config(config).state_dict()
    for beginning in beginnings or ():
        if not any(name.startswith(beginning) for name in names):
            what = f"no parameter's name begins with {beginning!r}"
            raise InputError(what, where="--tune_reset", remedy="give e.g. bert.encoder.layer.1.")


# ---- batches


def batches_by_length(lengths: Sequence[int], tokens: int = TOKENS_OF_A_BATCH) -> Iterator[np.ndarray]:
    """Row numbers in batches of about equal length, of at most `tokens` tokens with padding (or of one row)."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and (end + 1 - begin) * lengths[order[end]] <= tokens:
            end += 1
        yield order[begin:end]
        begin = end


def model_inputs(rows: Sequence[dict], subject: Subject) -> dict[str, torch.Tensor]:
    """`input_ids`, `token_type_ids` and `attention_mask` (B, L) of rows that hold the first two."""
    ids, segments = [row["input_ids"] for row in rows], [row["token_type_ids"] for row in rows]
    return pad_inputs(ids, cast(int, subject.tokenizer.pad_token_id), subject.device, segments)
