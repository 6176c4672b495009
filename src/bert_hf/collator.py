"""Example numbers → one batch: `PreTrainingExamples` looks up pairs, `DataCollatorForPreTraining` masks and pads."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from bert_hf.errors import InputError
from bert_hf.kernels import IGNORED
from bert_hf.masking import choose_tokens, choose_words, replace
from bert_hf.pairing import EpochPlan, plan_epoch, truncate
from bert_hf.progress import beat, busy
from bert_hf.sampling import MASK, ORDER, PLAN, WINDOWS, ExampleNumber, Phase, generator

NSP_SPECIALS, SINGLE_SPECIALS = 3, 2  # [CLS] A [SEP] B [SEP] · [CLS] A [SEP]


class TokenStore(Protocol):
    """Documents that are open together: what pairs are drawn from (`bert_hf.store.Window` is one)."""

    token_offsets: np.ndarray  # (S + 1,) tokens before each sentence
    document_starts: np.ndarray  # (D,) first sentence of each document
    document_ends: np.ndarray  # (D,) end of its sentences, exclusive

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray: ...


class WindowedCorpus(Protocol):
    """What the examples need of a corpus (`bert_hf.store.Corpus` is one)."""

    def windows(self, rng: np.random.Generator | None = None) -> Sequence:
        """The parts that are opened one after the other, in the order of one epoch (None: in the store's order)."""

    def window(self, part, following=()) -> TokenStore:
        """Opens a part; `following` is the one that will be asked for next."""


class PreTrainingExamples(Dataset):
    """The examples of a corpus, addressed by `ExampleNumber`; a plain index means that example of the first window.

    Pairs and lengths are drawn anew every epoch from (seed, phase, epoch, window), so nothing is copied on disk, and
    memory is that of a window, however large the corpus. A held-out set is always read at epoch 0: its pairs and masks
    are fixed.

    Args:
        corpus: the tokenized text.
        phases: sequence lengths of the run (`sampling.two_phases`).
        nsp: next-sentence pairs; False gives single segments.
        fixed: the windows in the store's order, and none fetched ahead: for what reads the first one only (held-out
            sets, the doctor).
        limit: addressed by plain index, use only so many examples.

    Attributes:
        lengths: {(phase, epoch, window): number of examples, None past the last window}, of what was asked so far. A
            run that goes on is given it, and does not open what it has read already.

    Raises:
        InputError: pairs asked of a corpus that has no two documents, or no document of two sentences.
    """

    def __init__(
        self,
        corpus: WindowedCorpus,
        phases: tuple[Phase, ...] = (Phase(128, None),),
        *,
        nsp: bool = True,
        short_seq_probability: float = 0.1,
        seed: int = 42,
        fixed: bool = False,
        limit: int | None = None,
    ):
        self.corpus, self.phases, self.nsp, self.seed = corpus, phases, nsp, seed
        self.short_seq_probability, self.limit = short_seq_probability, limit
        self.fixed = fixed
        self.lengths: dict[tuple[int, int, int], int | None] = {}
        self._parts: tuple[tuple[int, int], Sequence] | None = None
        self._plans: dict[tuple[int, int, int], tuple[TokenStore, EpochPlan]] = {}
        self._order: np.ndarray | None = None
        if nsp:  # a corpus that gives no pairs is noticed now, by its first part: the run may go on elsewhere
            self._check_pairs(corpus.window(corpus.windows()[0]))

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_plans": {}}  # a worker draws them itself

    def _windows(self, phase: int, epoch: int) -> Sequence:
        if self._parts is None or self._parts[0] != (phase, epoch):
            rng = None if self.fixed else generator(self.seed, WINDOWS, phase, epoch)
            self._parts = (phase, epoch), self.corpus.windows(rng)
        return self._parts[1]

    def _check_pairs(self, store: TokenStore) -> None:
        documents = len(store.document_starts)
        if documents < 2:
            raise InputError(
                f"next-sentence prediction needs at least 2 documents, and the text has {documents}",
                where="corpus",
                remedy="separate documents by blank lines, or pass --nsp false",
            )
        if not (store.document_ends - store.document_starts > 1).any():
            raise InputError(
                "no document has two sentences, so no sentence has a next one",
                where="corpus",
                remedy="give documents of several sentences, or pass --nsp false",
            )

    def plan(self, phase: int, epoch: int, window: int = 0) -> tuple[TokenStore, EpochPlan]:
        """The documents of a window and the pairs drawn from them.

        The last two that were asked for are kept: the sampler asks how long the next window is while examples of this
        one are still to be read.
        """
        key = (phase, epoch, window)
        if key not in self._plans:
            while len(self._plans) > 1:
                del self._plans[next(iter(self._plans))]
            with busy():
                self._plans[key] = self._make_plan(*key)
        return self._plans[key]

    def _make_plan(self, phase: int, epoch: int, window: int) -> tuple[TokenStore, EpochPlan]:
        parts = self._windows(phase, epoch)
        store = self.corpus.window(parts[window], () if self.fixed else self._following(phase, epoch, window))
        if self.nsp:
            self._check_pairs(store)
        specials = NSP_SPECIALS if self.nsp else SINGLE_SPECIALS
        plan = plan_epoch(
            store.document_starts,
            store.document_ends,
            store.token_offsets,
            self.phases[phase].max_seq_length - specials,
            self.short_seq_probability,
            self.nsp,
            generator(self.seed, PLAN, phase, epoch, window),
        )
        return store, plan

    def _following(self, phase: int, epoch: int, window: int) -> Sequence:
        parts = self._windows(phase, epoch)
        return parts[window + 1] if window + 1 < len(parts) else self._windows(phase, epoch + 1)[0]

    def window_length(self, phase: int, epoch: int, window: int) -> int | None:
        """Number of examples in a window of an epoch; None where the epoch has no such window."""
        key = (phase, epoch, window)
        if key not in self.lengths:
            there = window < self.window_count(phase, epoch)
            self.lengths[key] = len(self.plan(*key)[1]) if there else None
        return self.lengths[key]

    def window_count(self, phase: int, epoch: int) -> int:
        """Number of windows in an epoch of a phase."""
        return len(self._windows(phase, epoch))

    def epoch_length(self, phase: int, epoch: int) -> int:
        """Number of examples in an epoch of a phase: all its windows are opened."""
        return sum(self.window_length(phase, epoch, window) for window in range(self.window_count(phase, epoch)))

    def __len__(self) -> int:
        length = self.window_length(0, 0, 0)
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
                self._order = generator(self.seed, ORDER, 0, 0).permutation(self.window_length(0, 0, 0))
            number = ExampleNumber(0, 0, 0, int(self._order[number]))
        beat()
        phase, epoch, window, index = number
        store, plan = self.plan(phase, epoch, window)
        a_start, a_end, b_start, b_end, label = (int(column[index]) for column in plan)
        return {
            "segment_a": store.ids(a_start, a_end),
            "segment_b": store.ids(b_start, b_end) if b_end > b_start else np.zeros(0, np.int64),
            "next_sentence_label": label,
            "number": ExampleNumber(*number),
            "seed": self.seed,
            "max_seq_length": self.phases[phase].max_seq_length,
        }


class DataCollatorForPreTraining:
    """Pairs of segments → a batch for `BertForPreTraining`: [CLS] A [SEP] B [SEP], masked 80/10/10, padded.

    Every draw is keyed by the example's seed and number, so a batch's neighbours, the worker and the rank
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
        next_sentence_label: (B,); masked_positions: (M,) and token_positions: (T,), the masked and the real tokens'
        indices into the flattened B·L, ascending.
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
        # Asked of the tokenizer once: asked for every example they were an eighth of the loader's time.
        self._cls, self._sep, self._mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
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
        specials = NSP_SPECIALS if len(b) else SINGLE_SPECIALS
        a, b = truncate(a, b, feature["max_seq_length"] - specials, rng)
        cls, sep = (self._cls,), (self._sep,)
        ids = np.concatenate([cls, a, sep, b, sep] if len(b) else [cls, a, sep])
        segments = np.zeros(len(ids), dtype=np.int64)
        segments[len(a) + 2 :] = 1
        maskable = ~self._special[ids]
        if self.whole_word_mask:
            chosen = choose_words(maskable, self._continues[ids], self.mlm_probability, rng)
        else:
            chosen = choose_tokens(maskable, self.mlm_probability, rng)
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        labels[chosen] = ids[chosen]
        masked = replace(ids, chosen, self._mask, self._random_ids, rng)
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
        batch["token_positions"] = batch["attention_mask"].flatten().nonzero().squeeze(1)
        if self.nsp:
            batch["next_sentence_label"] = torch.tensor([feature["next_sentence_label"] for feature in features])
        return batch
