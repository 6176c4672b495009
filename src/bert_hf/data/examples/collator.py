"""Makes batches: [CLS] A [SEP] B [SEP], truncated, masked and padded; `pad_inputs` pads other ids."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bert_hf.data.examples.masking import choose_tokens, choose_words, replace_tokens
from bert_hf.data.examples.samplers import MASK, generator
from bert_hf.data.examples.sentence_pairs import truncate
from bert_hf.data.text.tokenization import InputTemplate, id_count, word_start_mask
from bert_hf.errors import InputError
from bert_hf.models.functional import IGNORE_INDEX
from bert_hf.models.unpadded_batch import pack_layout


class DataCollatorForPreTraining:
    """Make a batch for `BertForPreTraining`, ours or stock, of rows: [CLS] A [SEP] B [SEP], masked 80/10/10, padded.

        >>> examples = PreTrainingExamples("runs/corpus", max_seq_length=512)
        >>> collator = DataCollatorForPreTraining(load_tokenizer("runs/corpus/tokenizer"))
        >>> batch = collator([examples[0], examples[1]])

    A row is a mapping of one of these kinds; other keys are ignored.

    - A row of `PreTrainingExamples`: every draw is keyed by the row's `seed` and `number`, and independent of the rest
      of the batch, of worker, rank and resume.
    - `segment_a`, `segment_b` (token ids without special tokens; B may be empty) and `next_sentence_label`, without
      `seed` and `number`.
    - `input_ids` with their special tokens, as a tokenizer makes them; `token_type_ids`, `attention_mask` and
      `next_sentence_label` are optional. A row with `labels` is already masked, and is only padded.

    Rows without `seed` and `number` draw from torch's global generator: a resumed run, or one with another batch size
    or number of workers, has other masks, and so has each evaluation (give it rows with `labels`). For a dataset with
    columns that `forward` does not take, a stock `Trainer` needs `remove_unused_columns=False`; `PreTrainer` sets it.

    Args:
        mlm_probability: share of the tokens that are predicted (section 3.1: 0.15).
        whole_word_mask: predict all tokens of a word or none.
        nsp: send `next_sentence_label`, which each row must then have.
        max_seq_length: truncation length of segment rows without their own `max_seq_length`. By default the
            tokenizer's `model_max_length`.

    Returns (when called):
        input_ids, token_type_ids, attention_mask, labels: (B, L) int64, labels −100 where nothing is predicted;
        next_sentence_label: (B,); masked_positions: (M,) and token_positions: (T,), the masked and the real tokens'
        indices into the flattened B·L, ascending; layout: what else a GPU needs to leave out padding (`pack_layout`).
        (Stock models ignore the last three.)
    """

    needs_all_columns = True  # for `PreTrainer`: it then removes no columns of a dataset

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        mlm_probability: float = 0.15,
        whole_word_mask: bool = False,
        nsp: bool | str = True,
        max_seq_length: int | None = None,
    ):
        self.tokenizer = tokenizer
        self.mlm_probability = mlm_probability
        self.whole_word_mask = whole_word_mask
        self.nsp = nsp
        self.max_seq_length = max_seq_length or tokenizer.model_max_length

        # Looked up once: looked up for every example, they were an eighth of the loader's time.
        self._template = InputTemplate(tokenizer)
        self._special_counts = list(map(tokenizer.num_special_tokens_to_add, (False, True)))  # usually 2 and 3
        self._mask_id = cast(int, tokenizer.mask_token_id)
        self._starts_word = word_start_mask(tokenizer) if whole_word_mask else None  # (V,) bool
        self._is_special = np.zeros(id_count(tokenizer), dtype=bool)
        self._is_special[list(tokenizer.all_special_ids)] = True
        self._random_ids = np.flatnonzero(~self._is_special)  # for the 10 % that become a random token

    def example(self, feature: Mapping) -> dict[str, np.ndarray]:
        """Return a row's input_ids, token_type_ids, labels, (l,) int64 each: joined and masked, not yet padded."""
        if "segment_a" in feature:
            rng = _generator_of(feature)
            ids, token_types = self._join_segments(feature, rng)
        elif "input_ids" in feature:
            ids, token_types, labels = _remove_padding(feature)
            if labels is not None:
                return {"input_ids": ids, "token_type_ids": token_types, "labels": labels}
            rng = _generator_of(feature)
        else:
            problem = f"a row has neither segment_a nor input_ids, but {', '.join(map(repr, feature)) or 'nothing'}"
            remedy = "pass remove_unused_columns=False if Trainer removed them"
            raise InputError(problem, where="DataCollatorForPreTraining", remedy=remedy)

        share = feature.get("mlm_probability") or self.mlm_probability  # held-out rows have their own, a fixed one
        masked, labels = self._mask_tokens(ids, share, rng)
        return {"input_ids": masked, "token_type_ids": token_types, "labels": labels}

    def _join_segments(self, feature: Mapping, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and token types, (l,) each, of [CLS] A [SEP] B [SEP] (or the tokenizer's template), truncated."""
        a, b = (np.asarray(feature[name], dtype=np.int64) for name in ("segment_a", "segment_b"))
        has_b = len(b) > 0
        max_tokens = feature.get("max_seq_length", self.max_seq_length) - self._special_counts[has_b]
        a, b = truncate(a, b, max_tokens, rng)
        joined = self._template.join(a.tolist(), b.tolist() if has_b else None)
        return np.array(joined.input_ids, np.int64), np.array(joined.token_type_ids, np.int64)

    def _mask_tokens(self, ids: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return ids after masking and labels, (l,) each: the original ids of the chosen tokens, −100 elsewhere."""
        maskable = ~self._is_special[ids]
        if self._starts_word is not None:
            chosen = choose_words(maskable, self._starts_word[ids], share, rng)
        else:
            chosen = choose_tokens(maskable, share, rng)

        labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
        labels[chosen] = ids[chosen]
        return replace_tokens(ids, chosen, self._mask_id, self._random_ids, rng), labels

    def __call__(self, features: list[Mapping]) -> dict[str, torch.Tensor]:
        examples = [self.example(feature) for feature in features]
        fills = {"input_ids": cast(int, self.tokenizer.pad_token_id), "token_type_ids": 0, "labels": IGNORE_INDEX}
        batch = {name: pad_rows([each[name] for each in examples], fill) for name, fill in fills.items()}

        batch["attention_mask"] = pad_rows([np.ones_like(each["input_ids"]) for each in examples], 0)
        batch["masked_positions"] = (batch["labels"].flatten() != IGNORE_INDEX).nonzero().squeeze(1)
        batch["token_positions"] = batch["attention_mask"].flatten().nonzero().squeeze(1)
        batch["layout"] = pack_layout(batch["attention_mask"], batch["masked_positions"], batch["token_positions"])

        if self.nsp:
            batch["next_sentence_label"] = torch.tensor([_next_sentence_label(feature) for feature in features])
        return batch


def pad_rows(rows: Sequence, fill: int) -> torch.Tensor:
    """Return sequences of ints as (B, L) int64, padded on the right with `fill` to the longest."""
    padded = np.full((len(rows), max(map(len, rows))), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)


def pad_inputs(
    ids: Sequence, pad_id: int, device: torch.device, segments: Sequence | None = None
) -> dict[str, torch.Tensor]:
    """Return `input_ids`, `attention_mask` and, with `segments`, `token_type_ids`, padded to (B, L), on `device`."""
    inputs = {"input_ids": pad_rows(ids, pad_id), "attention_mask": pad_rows([[1] * len(row) for row in ids], 0)}
    if segments is not None:
        inputs["token_type_ids"] = pad_rows(segments, 0)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _generator_of(feature: Mapping) -> np.random.Generator:
    """Return the generator of a row's draws: keyed by its `seed` and `number`, else seeded by a draw of torch's."""
    if "seed" in feature and "number" in feature:
        return generator(feature["seed"], MASK, *feature["number"])
    return np.random.default_rng(int(torch.randint(2**63 - 1, ())))


def _remove_padding(feature: Mapping) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return (input_ids, token_type_ids, labels or None) of a row with `input_ids`, without its padding."""
    ids = np.asarray(feature["input_ids"], dtype=np.int64)
    real = np.asarray(feature.get("attention_mask", np.ones(len(ids)))).astype(bool)
    token_types = np.asarray(feature.get("token_type_ids", np.zeros(len(ids))), dtype=np.int64)
    labels = feature.get("labels")
    if labels is not None:
        labels = np.asarray(labels, dtype=np.int64)[real]
    return ids[real], token_types[real], labels


def _next_sentence_label(feature: Mapping) -> int:
    """Return a row's label, which `nsp` requires; a row without it is an InputError."""
    if "next_sentence_label" not in feature:
        remedy = "pass nsp=False to train the masked language model alone"
        raise InputError("a row has no next_sentence_label", where="DataCollatorForPreTraining", remedy=remedy)
    return int(feature["next_sentence_label"])
