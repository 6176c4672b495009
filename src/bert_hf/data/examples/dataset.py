"""A torch dataset of pre-training examples: example number → sentence pair (A, B)."""

from collections import UserDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from bert_hf.data.corpus.store import Corpus, Window
from bert_hf.data.corpus.text_corpus import TextCorpus, open_corpus
from bert_hf.data.examples.objectives import OBJECTIVES, plan_epoch
from bert_hf.data.examples.samplers import ORDER, PLAN, WINDOWS, ExampleNumber, Phase, generator
from bert_hf.data.examples.segment_search import DocumentBounds
from bert_hf.data.examples.sentence_pairs import EpochPlan

logger = logging.get_logger(__name__)


class PreTrainingExamples(Dataset):
    """The examples of a corpus, each a dict of `segment_a`, `segment_b`, `next_sentence_label` (see `__getitem__`).

    Pairs and lengths are drawn every epoch from (seed, phase, epoch, window): nothing is copied on disk, and memory
    holds two windows, however large the corpus.

        >>> train, held_out = Corpus("runs/corpus").split(percentage=5)
        >>> examples = PreTrainingExamples(train, max_seq_length=512)
        >>> evaluation = PreTrainingExamples(held_out, max_seq_length=512, fixed=True)

    `PreTrainer` addresses them by `ExampleNumber`. A stock `Trainer` or a plain `DataLoader` uses plain indices: an
    index means that example of the first window (256 million tokens), in the epoch that was last passed to
    `set_epoch`. Trainer calls it on one process, not on several.

    Args:
        corpus: a folder made by `prepare.py`; an open `Corpus`; or texts, which are split into sentences
            and tokenized in memory: a `datasets.Dataset` with a text column, or any iterable of texts.
        phases: sequence lengths of the run (`samplers.phases_of_run`); or, instead of it,
        max_seq_length: one length, [CLS] and both [SEP] included. By default 128.
        tokenizer: for texts, the collator's. With a prepared corpus it is compared with the one that made it.
        text_column: of the rows; by default "text", or the only one of strings.
        language: of the texts, for the sentence splitter (ISO 639); None: a line is a sentence.
        short_seq_probability: share of the documents whose examples get a shorter target length, drawn at random.
        batch_length: sequence length that the micro-batch size is meant for; a micro-batch of longer examples is
            trained in pieces of as many tokens. By default the length of the first phase.
        mlm_probability: share of these examples' tokens that is predicted, instead of the collator's: held-out
            metrics are comparable only at one share.
        nsp: next-sentence pairs; False gives single segments (the keys of `objectives.OBJECTIVES`).
        fixed: always epoch 0, with the windows in their stored order: for held-out sets and the corpus report, which
            read only the first one.
        limit: with plain indices, the maximum number of examples.

    Attributes:
        lengths: {(phase, epoch, window): number of examples, None past the last window}, as far as it is known. A
            checkpoint holds it, so that a resumed run does not open the windows that it has already read.
    """

    def __init__(
        self,
        corpus: Corpus | TextCorpus | str | Path | Iterable,
        phases: tuple[Phase, ...] | None = None,
        *,
        max_seq_length: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        text_column: str | None = None,
        language: str | None = "en",
        nsp: bool | str = True,
        short_seq_probability: float = 0.1,
        seed: int = 42,
        fixed: bool = False,
        limit: int | None = None,
        batch_length: int | None = None,
        mlm_probability: float | None = None,
    ):
        self.corpus = open_corpus(corpus, tokenizer, text_column, language)
        self.phases = phases or (Phase(max_seq_length or 128, None),)
        self.objective = OBJECTIVES[nsp]
        self.seed = seed
        self.batch_length = batch_length or self.phases[0].max_seq_length
        self.mlm_probability = mlm_probability
        self.short_seq_probability = short_seq_probability
        self.limit = limit
        self.fixed = fixed

        self.lengths: dict[tuple[int, int, int], int | None] = {}
        self._last_windows = None  # what `_windows` returned last, after its arguments
        self._plans = {}  # (phase, epoch, window) → its documents and pairs
        # For plain indices. In shared memory: worker processes that outlive an epoch see the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._last_order = None  # epoch, and the numbers of its examples in the order of plain indices

        if self.objective.pairs:
            first_window = self.corpus.window(self.corpus.windows()[0])
            self.objective.check_documents(_bounds(first_window))

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_plans": {}}  # each worker process draws its own

    def _windows(self, phase: int, epoch: int) -> list[tuple[int, ...]]:
        """Return an epoch's windows (groups of shards) in random order; of held-out text (`fixed`) in stored order."""
        last = self._last_windows  # a local name: the sampler's thread may change it
        if last is not None and last[:2] == (phase, epoch):
            return last[2]
        windows = self.corpus.windows(None if self.fixed else generator(self.seed, WINDOWS, phase, epoch))
        self._last_windows = phase, epoch, windows
        return windows

    def plan(self, phase: int, epoch: int, window: int = 0) -> tuple[Window, EpochPlan]:
        """Return a window's documents and the pairs drawn from them. Those of the last two windows are cached."""
        key = (phase, epoch, window)
        planned = self._plans.get(key)  # a local name: the sampler's thread plans windows as well
        if planned is None:
            documents = self.corpus.window(self._windows(phase, epoch)[window])
            max_tokens = self.phases[phase].max_seq_length - self.objective.special_tokens
            rng = generator(self.seed, PLAN, *key)
            pairs = plan_epoch(_bounds(documents), max_tokens, self.short_seq_probability, self.objective, rng)
            for old in list(self._plans)[:-1]:
                self._plans.pop(old, None)
            self._plans[key] = planned = documents, pairs
        return planned

    def window_length(self, phase: int, epoch: int, window: int) -> int | None:
        """Return the number of examples in a window of an epoch; None where the epoch has no such window."""
        key = (phase, epoch, window)
        if key not in self.lengths:
            exists = window < self.window_count(phase, epoch)
            self.lengths[key] = len(self.plan(*key)[1].label) if exists else None
        return self.lengths[key]

    def window_count(self, phase: int, epoch: int) -> int:
        """Return the number of windows in an epoch of a phase."""
        return len(self._windows(phase, epoch))

    def epoch_length(self, phase: int, epoch: int) -> int:
        """Return the number of examples in an epoch of a phase; windows of unknown length are opened and planned."""
        return sum(self.window_length(phase, epoch, window) or 0 for window in range(self.window_count(phase, epoch)))

    def __len__(self) -> int:
        """Return the number of plain indices: the first window's examples in epoch 0, at most `limit`."""
        length = self.window_length(0, 0, 0) or 0
        return length if self.limit is None else min(length, self.limit)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the examples that plain indices mean; of a held-out set (`fixed`) always the first."""
        self._epoch.fill_(0 if self.fixed else epoch)

    def _example_number(self, index: int) -> ExampleNumber:
        """Return the example that a plain index means, in shuffled order, so that a limit takes from all documents.

        Warn once that plain indices reach only part of a corpus with several windows.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        if not self.fixed and self.limit is None and self.window_count(0, 0) > 1:
            logger.warning_once("plain indices reach the first window of the corpus only; PreTrainer reads all of it")

        epoch = int(self._epoch)
        if self._last_order is None or self._last_order[0] != epoch:
            length = self.window_length(0, epoch, 0) or 0
            self._last_order = epoch, generator(self.seed, ORDER, 0, epoch).permutation(length)
        _, order = self._last_order
        return ExampleNumber(0, epoch, 0, int(order[index % len(order)]))  # this epoch may have fewer than epoch 0

    def __getitems__(self, numbers: list) -> list[Mapping]:
        """Return several rows at once, as a `DataLoader` requests them.

        They are mappings, not `dict`s: from a `dict` a stock `Trainer` removes all keys that are not arguments of
        the model's `forward` (`remove_unused_columns`), before the collator sees it.
        """
        return [UserDict(self[number]) for number in numbers]

    def __getitem__(self, number: ExampleNumber | int) -> dict:
        """Return the example before truncation and masking.

        Returns:
            segment_a, segment_b: token ids (uint16 or int32), segment_b empty without pairs;
            next_sentence_label, of pairs; number, seed, max_seq_length, mlm_probability (None: the collator's): from
            these the collator makes the example's random draws.
        """
        if not isinstance(number, tuple):
            number = self._example_number(int(number))

        phase, epoch, window, index = number
        documents, plan = self.plan(phase, epoch, window)
        a_start, a_end, b_start, b_end, label = (int(column[index]) for column in plan)

        return {
            "segment_a": documents.ids(a_start, a_end),
            "segment_b": documents.ids(b_start, b_end),
            **({"next_sentence_label": label} if self.objective.pairs else {}),
            "number": ExampleNumber(*number),
            "seed": self.seed,
            "max_seq_length": self.phases[phase].max_seq_length,
            "mlm_probability": self.mlm_probability,
        }


def _bounds(documents: Window) -> DocumentBounds:
    """Return where documents begin and end, all that is needed to draw pairs: their token ids are not read."""
    return DocumentBounds(documents.document_starts, documents.document_ends, documents.token_offsets)
