"""The probed network: loaded by stock transformers, or the same shape with random weights; batches by length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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

from bert_hf.config.hardware import cpu_threads, keep_freed_memory
from bert_hf.data.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError
from bert_hf.models.loading import find_checkpoint, load_network
from bert_hf.probe.arguments import ProbeArguments

TOKENS_OF_A_BATCH = 8192  # padding included

# Shapes in this file: B rows of a batch, L tokens of the longest.


@dataclass
class Subject:
    """What is probed: a checkpoint's folder, its shape and its tokenizer.

    Attributes:
        name: as the user named it.
        fresh: names of the parameters that the checkpoint lacks (a pooler, the heads); filled by the first `load`.
    """

    name: str
    folder: Path
    config: BertConfig
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    seed: int
    fresh: tuple[str, ...] = ()

    def load(self, draw: int | None = None) -> BertForPreTraining:
        """Stock `BertForPreTraining` in fp32, ready to be evaluated.

        Args:
            draw: None loads the checkpoint; a number draws random weights, another number others.
        """
        set_seed(self.seed + 1000 * (draw or 0))
        if draw is None:
            heads = ("cls.", "bert.pooler.")
            model, fresh = load_network(BertForPreTraining, self.folder, self.name, heads, dtype=torch.float32)
            self.fresh = tuple(fresh)
        else:
            model = BertForPreTraining(self.config).float()
        return model.to(self.device).eval()

    def load_classifier(self, classes: int, draw: int, random: bool, reset: tuple[str, ...] = ()) -> PreTrainedModel:
        """Stock `AutoModelForSequenceClassification` in fp32, its new layer (or everything) drawn by `draw`.

        Args:
            reset: parameters whose names begin so are drawn, too.

        Raises:
            InputError: no parameter's name begins so.
        """
        if reset and not random:
            model, drawn = (self.load_classifier(classes, draw, one).state_dict() for one in (False, True))
            for beginning in reset:
                if not any(name.startswith(beginning) for name in model):
                    what, remedy = f"no parameter's name begins with {beginning!r}", "give e.g. bert.encoder.layer.1."
                    raise InputError(what, where="--tune_reset", remedy=remedy)
            chosen = {name: (drawn if name.startswith(reset) else model)[name] for name in model}
            classifier = self.load_classifier(classes, draw, random=True)
            classifier.load_state_dict(chosen)
            return classifier
        set_seed(self.seed + 1000 * draw + 1)
        config = BertConfig.from_dict({**self.config.to_dict(), "num_labels": classes})
        if random:
            model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        else:
            heads = ("classifier.", "bert.pooler.")
            model, _ = load_network(
                AutoModelForSequenceClassification, self.folder, self.name, heads, config=config, dtype=torch.float32
            )
        return model.to(self.device)

    def lacks(self, beginning: str) -> bool:
        """Whether parameters whose names begin so are not in the checkpoint (and were drawn at random)."""
        return any(name.startswith(beginning) for name in self.fresh)


def open_subject(asked: ProbeArguments) -> Subject:
    """Finds and checks checkpoint and tokenizer; sets threads.

    Raises:
        InputError: nothing can be loaded from there, or tokenizer, length and shape do not fit.
    """
    where = asked.model_name_or_path
    folder = find_checkpoint(where)
    config = BertConfig.from_pretrained(folder)
    tokenizer = load_tokenizer(asked.tokenizer_name or where)
    check_tokenizer(tokenizer, config.vocab_size)
    if asked.max_seq_length > config.max_position_embeddings:
        what = (
            f"--max_seq_length {asked.max_seq_length} is beyond the model's {config.max_position_embeddings} positions"
        )
        raise InputError(what, where=where, remedy="lower it")
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(cpu_threads())
        keep_freed_memory()
    return Subject(where, folder, config, tokenizer, device, asked.seed)


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


def padded(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> torch.Tensor:
    """(B, L) int64, filled up on the right."""
    width = max(len(row) for row in rows)
    result = np.full((len(rows), width), fill, dtype=np.int64)
    for place, row in zip(result, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(result).to(device)


def model_inputs(rows: Sequence[dict], subject: Subject) -> dict[str, torch.Tensor]:
    """`input_ids`, `token_type_ids` and `attention_mask` (B, L) of rows that hold the first two."""
    ids = padded([row["input_ids"] for row in rows], subject.tokenizer.pad_token_id, subject.device)
    segments = padded([row["token_type_ids"] for row in rows], 0, subject.device)
    real = padded([[1] * len(row["input_ids"]) for row in rows], 0, subject.device)
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": real}
