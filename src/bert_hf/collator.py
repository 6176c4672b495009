"""Example numbers → one batch: `PreTrainingExamples` looks up pairs, `DataCollatorForPreTraining` masks and pads."""

from typing import Protocol

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from bert_hf.errors import InputError
from bert_hf.masking import choose_tokens, choose_words, replace
from bert_hf.modeling import IGNORED
from bert_hf.pairing import EpochPlan, plan_epoch, truncate
from bert_hf.sampling import MASK, ORDER, PLAN, ExampleNumber, Phase, generator

NSP_SPECIALS, SINGLE_SPECIALS = 3, 2  # [CLS] A [SEP] B [SEP] · [CLS] A [SEP]


class TokenStore(Protocol):
    """What the examples need of a corpus (`bert_hf.corpus.Corpus` is one)."""

    token_offsets: np.ndarray  # (S + 1,) tokens before each sentence
    document_starts: np.ndarray  # (D,) first sentence of each document
    document_ends: np.ndarray  # (D,) end of its sentences, exclusive

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray: ...


class PreTrainingExamples(Dataset):
    """The examples of a corpus, addressed by `ExampleNumber`; a plain index means (phase 0, epoch 0, index).

    Pairs and lengths are drawn anew every epoch from (seed, phase, epoch), so nothing is copied on disk. A held-out
    set is always read at epoch 0: its pairs and masks are fixed.

    Args:
        corpus: the tokenized text.
        phases: sequence lengths of the run (`sampling.two_phases`).
        nsp: next-sentence pairs; False gives single segments.
        limit: addressed by plain index, use only so many examples (held-out sets).

    Raises:
        InputError: pairs asked of a corpus that has no two documents, or no document of two sentences.
    """

    def __init__(
        self,
        corpus: TokenStore,
        phases: tuple[Phase, ...] = (Phase(128, None),),
        *,
        nsp: bool = True,
        short_seq_probability: float = 0.1,
        seed: int = 42,
        limit: int | None = None,
    ):
        self.corpus, self.phases, self.nsp, self.seed = corpus, phases, nsp, seed
        self.short_seq_probability, self.limit = short_seq_probability, limit
        self._plan: tuple[tuple[int, int], EpochPlan] | None = None
        self._order: np.ndarray | None = None
        self._lengths: dict[tuple[int, int], int] = {}
        if nsp:
            self._check_pairs()

    def _check_pairs(self) -> None:
        documents = len(self.corpus.document_starts)
        if documents < 2:
            raise InputError(
                f"next-sentence prediction needs at least 2 documents, and the text has {documents}",
                where="corpus",
                remedy="separate documents by blank lines, or pass --nsp false",
            )
        if not (self.corpus.document_ends - self.corpus.document_starts > 1).any():
            raise InputError(
                "no document has two sentences, so no sentence has a next one",
                where="corpus",
                remedy="give documents of several sentences, or pass --nsp false",
            )

    def plan(self, phase: int, epoch: int) -> EpochPlan:
        """The pairs of one epoch; the last one asked for is kept."""
        if self._plan is None or self._plan[0] != (phase, epoch):
            plan = plan_epoch(
                self.corpus.document_starts,
                self.corpus.document_ends,
                self.corpus.token_offsets,
                self.phases[phase].max_seq_length - (NSP_SPECIALS if self.nsp else SINGLE_SPECIALS),
                self.short_seq_probability,
                self.nsp,
                generator(self.seed, PLAN, phase, epoch),
            )
            self._plan = ((phase, epoch), plan)
        return self._plan[1]

    def epoch_length(self, phase: int, epoch: int) -> int:
        """Number of examples in an epoch of a phase."""
        if (phase, epoch) not in self._lengths:
            self._lengths[phase, epoch] = len(self.plan(phase, epoch))
        return self._lengths[phase, epoch]

    def __len__(self) -> int:
        length = self.epoch_length(0, 0)
        return length if self.limit is None else min(length, self.limit)

    def __getitem__(self, number: ExampleNumber | int) -> dict:
        """The example before truncation and masking.

        Returns:
            segment_a, segment_b: token ids (uint16 or int32), segment_b empty without pairs; next_sentence_label;
            number; seed; max_seq_length: what the collator needs to make the example's own draws.
        """
        if not isinstance(number, tuple):
            if not 0 <= number < len(self):
                raise IndexError(number)
            # In shuffled order, so that a limit takes from all documents.
            if self._order is None:
                self._order = generator(self.seed, ORDER, 0, 0).permutation(self.epoch_length(0, 0))
            number = ExampleNumber(0, 0, int(self._order[number]))
        number = ExampleNumber(*number)
        plan = self.plan(number.phase, number.epoch)
        a_start, a_end, b_start, b_end, label = (int(column[number.index]) for column in plan)
        return {
            "segment_a": self.corpus.ids(a_start, a_end),
            "segment_b": self.corpus.ids(b_start, b_end) if b_end > b_start else np.zeros(0, np.int64),
            "next_sentence_label": label,
            "number": number,
            "seed": self.seed,
            "max_seq_length": self.phases[number.phase].max_seq_length,
        }


class DataCollatorForPreTraining:
    """Pairs of segments → a batch for `BertForPreTraining`: [CLS] A [SEP] B [SEP], masked 80/10/10, padded.

    Every draw is keyed by the example's (seed, phase, epoch, index), so a batch's neighbours, the worker and the rank
    make no difference.

        >>> examples = PreTrainingExamples(corpus, nsp=True)
        >>> collator = DataCollatorForPreTraining(tokenizer)
        >>> batch = collator([examples[0], examples[1]])

    Args:
        tokenizer: gives the ids of [CLS], [SEP], [MASK], [PAD] and, for whole words, which tokens continue one.
        mlm_probability: share of the tokens that are predicted (section 3.1: 0.15).
        whole_word_mask: choose whole words.
        nsp: send `next_sentence_label`.
        pad_to_multiple_of: pad to a multiple of so many tokens.

    Returns (when called):
        input_ids, token_type_ids, attention_mask, labels: (B, L) int64, labels −100 where nothing is predicted;
        next_sentence_label: (B,); masked_positions: (M,) indices into the flattened B·L tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        mlm_probability: float = 0.15,
        whole_word_mask: bool = False,
        nsp: bool = True,
        pad_to_multiple_of: int | None = None,
    ):
        self.tokenizer, self.nsp, self.pad_to_multiple_of = tokenizer, nsp, pad_to_multiple_of
        self.mlm_probability, self.whole_word_mask = mlm_probability, whole_word_mask
        vocabulary = tokenizer.get_vocab()
        special = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
        special[list(tokenizer.all_special_ids)] = True
        self._special = special
        self._random_ids = np.flatnonzero(~special)
        self._continues = np.zeros(len(special), dtype=bool)
        self._continues[[index for piece, index in vocabulary.items() if piece.startswith("##")]] = True

    def example(self, feature: dict) -> dict[str, np.ndarray]:
        """One example: input_ids, token_type_ids, labels, each (l,) int64."""
        rng = generator(feature["seed"], MASK, *feature["number"])
        a, b = (np.asarray(feature[name], dtype=np.int64) for name in ("segment_a", "segment_b"))
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        specials = NSP_SPECIALS if len(b) else SINGLE_SPECIALS
        a, b = truncate(a, b, feature["max_seq_length"] - specials, rng)
        ids = np.concatenate([[cls], a, [sep], b, [sep]] if len(b) else [[cls], a, [sep]])
        segments = np.zeros(len(ids), dtype=np.int64)
        segments[len(a) + 2 :] = 1
        maskable = ~self._special[ids]
        if self.whole_word_mask:
            chosen = choose_words(maskable, self._continues[ids], self.mlm_probability, rng)
        else:
            chosen = choose_tokens(maskable, self.mlm_probability, rng)
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        labels[chosen] = ids[chosen]
        masked = replace(ids, chosen, self.tokenizer.mask_token_id, self._random_ids, rng)
        return {"input_ids": masked, "token_type_ids": segments, "labels": labels}

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        examples = [self.example(feature) for feature in features]
        lengths = np.array([len(example["input_ids"]) for example in examples])
        width = int(lengths.max())
        if self.pad_to_multiple_of:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0, "labels": IGNORED}
        batch = {}
        for name, value in padding.items():
            rows = np.full((len(examples), width), value, dtype=np.int64)
            for row, example in zip(rows, examples, strict=True):
                row[: len(example[name])] = example[name]
            batch[name] = torch.from_numpy(rows)
        batch["attention_mask"] = torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64))
        batch["masked_positions"] = (batch["labels"].flatten() != IGNORED).nonzero().squeeze(1)
        if self.nsp:
            batch["next_sentence_label"] = torch.tensor([feature["next_sentence_label"] for feature in features])
        return batch
