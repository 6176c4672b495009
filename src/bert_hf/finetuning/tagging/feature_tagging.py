"""Token classification by a BiLSTM on the hidden states of a frozen BERT, which are computed once (`tagger.py`)."""

import math
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, set_seed

from bert_hf.config.finetuning_arguments import FineTuningArguments
from bert_hf.console import logger
from bert_hf.data.text.encoding import offsets_of
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.tagging.feature_store import FeatureStore, store_key
from bert_hf.finetuning.tagging.tagger import BiLstmTagger, make_tagger, word_features
from bert_hf.finetuning.words import TokenClassificationTask
from bert_hf.training.output_folder import folder_of

LSTM_HIDDEN_SIZE = 768  # the paper's
LEARNING_RATE, EPOCHS = 1e-3, 10.0  # of a BiLSTM with new weights: the paper names none


class FeatureCollator:
    """Makes padded batches of sentences: `features` (B, W, K, H), `lengths` (B,), `labels` (B, W)."""

    def __init__(self, store: FeatureStore):
        self.store = store

    def __call__(self, rows: list[dict]) -> dict[str, Tensor]:
        """Each row has the number of its first word in the store (`first`), and `labels`."""
        lengths = [len(row["labels"]) for row in rows]
        found = [self.store.read(row["first"], length) for row, length in zip(rows, lengths, strict=True)]
        features = torch.zeros(len(rows), max(lengths), *found[0].shape[1:])
        labels = torch.full((len(rows), max(lengths)), IGNORE_INDEX)
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            features[number, :length] = torch.from_numpy(found[number].copy())
            labels[number, :length] = torch.tensor(row["labels"])
        return {"features": features, "lengths": torch.tensor(lengths), "labels": labels}


class FeatureTaggingTask(TokenClassificationTask):
    """Sentences of labelled words; a model input is a whole sentence, of whatever length.

    BERT reads the words in the same windows as where it is fine-tuned.
    """

    auto_class = AutoModel
    new_layers = ("pooler.",)
    introduction = (
        "A BiLSTM on the hidden states of a frozen BERT. Stock transformers cannot use it: its classes would load the "
        "BERT alone. bert_hf loads it:"
    )
    stock = False
    context_limit = "Give the tagger the number of each sentence's document (`documents`)."

    def __init__(self, task_args: Any, tokenizer):
        super().__init__(task_args, tokenizer)
        self.lstm_hidden_size = LSTM_HIDDEN_SIZE
        self.store = FeatureStore()
        self._run: tuple[BiLstmTagger, FineTuningArguments] | None = None
        self._first_words: dict[str, int] = {}  # of each part in the store

    # ---- network and features

    def make_network(self, bert: Any, args: FineTuningArguments) -> tuple[BiLstmTagger, str]:
        """The tagger on a `BertModel`, and a line on its weights; sets rate, epochs and precision if not given.

        Raises:
            InputError: the BERT has fewer layers than are asked for.
        """
        task_args = self.task_args
        assert task_args.feature_based is not None
        set_seed(args.seed)
        tagger = make_tagger(bert, task_args.feature_based, self.lstm_hidden_size, task_args.max_seq_length)
        self._run = tagger, args

        args.learning_rate = LEARNING_RATE if args.learning_rate is None else args.learning_rate
        args.num_train_epochs = EPOCHS if args.num_train_epochs is None else args.num_train_epochs
        args.bf16 = False if args.bf16 is None else args.bf16
        trained = sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad)
        return tagger, f"BERT is frozen; newly initialized: BiLSTM and classifier, {trained:,} parameters"

    def remove_features(self) -> None:
        """Removes the features that this run, or an earlier one, left in the output folder."""
        assert self._run is not None  # `make_network` was called
        self.store.remove(folder_of(self._run[1]))

    def _compute_features(self) -> None:
        """Makes the store of all parts in the output folder, or finds there the one of an interrupted run."""
        assert self._run is not None  # `make_network` was called
        tagger, args = self._run
        network: Any = tagger.bert
        network.to(args.device).eval()
        words = 0
        described: list[Any] = [tagger.layers]
        for part in self.parts:
            pieces, windows = self.windows(part)
            self._first_words[part] = words
            words += int((~pieces.empty).sum())
            described += [pieces.ids, pieces.starts, windows.start, windows.end, windows.window_of_word]

        # Rank 0 computes them, and the others wait for it
        shape = (words, len(tagger.layers), tagger.config.hidden_size)
        key = store_key(tagger.bert, *described)
        with args.main_process_first(local=False, desc="features"):
            batches = self._batches(tagger, args.per_device_eval_batch_size)
            made = self.store.make(folder_of(args), key, shape, batches)
        size = f"{shape[0]:,} words × {shape[1]} × {shape[2]}, {4 * math.prod(shape) / 1e9:.2f} GB"
        line = f"features {'computed' if made else 'found'}: {size} in {self.store.path}, removed at the end"
        logger.info(line)

    def _batches(self, tagger: BiLstmTagger, batch_size: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        for part in self.parts:
            pieces, windows = self.windows(part)
            row_of_word = self._first_words[part] + np.cumsum(~pieces.empty) - 1
            found = word_features(tagger.bert, pieces, windows, tagger.layers, self.tokenizer, batch_size)
            for words, features in found:
                yield row_of_word[words], features

    # ---- sentences

    def encoded(self, part: str) -> datasets.Dataset:
        if self.store.path is None:
            self._compute_features()
        pieces, _ = self.windows(part)
        counts = self._words_of_sentences(part)
        labels = np.split(self._label_numbers(part)[~pieces.empty], np.cumsum(counts)[:-1])
        first = self._first_words[part] + np.cumsum(counts) - counts
        kept = np.flatnonzero(counts)
        columns = {"first": first[kept], "labels": [labels[sentence] for sentence in kept], "length": counts[kept]}
        return datasets.Dataset.from_dict(columns)

    def inputs_per_epoch(self) -> int:
        """The number of training sentences that have pieces."""
        return int((self._words_of_sentences("train") > 0).sum())

    def collator(self) -> Any:
        return FeatureCollator(self.store)

    def places(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        pieces, _ = self.windows(part)
        counts = self._words_of_sentences(part)
        inside = ~pieces.empty

        feature = np.repeat(np.cumsum(counts > 0) - 1, np.diff(pieces.sentences))
        before = np.repeat(np.cumsum(counts) - counts, np.diff(pieces.sentences))
        position = np.cumsum(inside) - 1 - before
        return np.where(inside, feature, -1), np.where(inside, position, -1)

    def _words_of_sentences(self, part: str) -> np.ndarray:
        """(sentences,) words that have pieces."""
        pieces, _ = self.windows(part)
        before = offsets_of(~pieces.empty)
        return np.diff(before[pieces.sentences])

    # ---- identity, card

    def fingerprint(self) -> dict:
        tagger = [self.task_args.feature_based, self.lstm_hidden_size]
        return {**super().fingerprint(), "tagger": tagger}

    def usage(self, model: str) -> str:
        return f"""from bert_hf import load_tagger

tagger = load_tagger("{model}")
tagger([["Anna", "Smith", "lives", "in", "London", "."]])"""

    def settings(self) -> dict:
        lstm = f"two layers, {self.lstm_hidden_size} in each direction"
        return {**super().settings(), "features of the frozen BERT": self.task_args.feature_based, "BiLSTM": lstm}
