"""Token classification by a BiLSTM on the hidden states of a frozen BERT (Devlin et al. 2019, section 5.3, table 7).

"These contextual embeddings are used as input to a randomly initialized two-layer 768-dimensional BiLSTM before the
classification layer." The size is read as that of each direction, as for `torch.nn.LSTM(hidden_size=768)`. No CRF.

The hidden states of all words are computed once and stay in memory.
"""

import itertools
from collections.abc import Sequence
from typing import Any, cast

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from transformers import AutoModel, BertConfig, BertModel, BertPreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.modeling_outputs import TokenClassifierOutput

from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.console import progress
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.errors import InputError
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.tagging.windows import SPECIAL_TOKENS, Windows, WordPieces, make_windows, tokenize_words
from bert_hf.finetuning.words import TokenClassificationTask

# B sentences, W words, K hidden states per word, H their size, C labels
LSTM_LAYERS = 2
LSTM_HIDDEN_SIZE = 768  # the paper's
LEARNING_RATE, EPOCHS = 1e-3, 10.0  # of a BiLSTM with new weights: the paper names none


# ---- network


def hidden_state_numbers(features: str, layers: int) -> tuple[int, ...]:
    """The hidden states of a row of table 7, for a BERT of this many layers: 0 is the output of the embeddings."""
    if features.endswith("last_4") and layers < 4:
        remedy = "choose embeddings, second_to_last, last or weighted_all"
        raise InputError(f"the model has {layers} layers", where=f"--feature_based {features}", remedy=remedy)

    last_four = tuple(range(layers - 3, layers + 1))
    numbers = {
        "embeddings": (0,),
        "second_to_last": (layers - 1,),
        "last": (layers,),
        "weighted_last_4": last_four,
        "concat_last_4": last_four,
        "weighted_all": tuple(range(1, layers + 1)),
    }
    return numbers[features]


class BiLstmTagger(BertPreTrainedModel):
    """Classifies words by a two-layer BiLSTM over hidden states of a BERT, which is part of the model and frozen.

    The configuration is the BERT's, with an entry `tagger`: `features` (one of `FEATURES`), `lstm_hidden_size` (of
    each direction) and `max_seq_length` (of the windows in which BERT reads the words).

    `weighted_…` learns one scalar per layer; the softmax of the scalars weights the hidden states.
    """

    main_input_name = "features"
    bert: BertModel

    def __init__(self, config: BertConfig):
        super().__init__(config)
        kind, size = config.tagger["features"], config.tagger["lstm_hidden_size"]
        self.layers = hidden_state_numbers(kind, config.num_hidden_layers)
        self.bert = BertModel(config, add_pooling_layer=False)

        self.layer_scalars = nn.Parameter(torch.zeros(len(self.layers))) if kind.startswith("weighted") else None
        states = len(self.layers) if kind.startswith("concat") else 1
        rate = config.classifier_dropout if config.classifier_dropout is not None else config.hidden_dropout_prob
        self.dropout = nn.Dropout(rate)
        self.lstm = nn.LSTM(
            states * config.hidden_size, size, LSTM_LAYERS, batch_first=True, dropout=rate, bidirectional=True
        )
        # Not `classifier`: stock AutoModelForTokenClassification would take it for one on BERT's own states
        self.tag_classifier = nn.Linear(2 * size, cast(int, config.num_labels))
        self.post_init()
        self.bert.requires_grad_(False)

    def forward(self, features: Tensor, lengths: Tensor, **kwargs: Any) -> TokenClassifierOutput:
        """Logits (B, W, C) of each word.

        Args:
            features: (B, W, K, H) hidden states of each word's first piece, from `word_features`.
            lengths: (B,) words of each sentence, at least 1.
        """
        if self.layer_scalars is None:
            inputs = features.flatten(2)  # (B, W, K · H)
        else:
            inputs = torch.einsum("bwkh,k->bwh", features, self.layer_scalars.softmax(0))

        packed = pack_padded_sequence(self.dropout(inputs), lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=features.shape[1])
        return TokenClassifierOutput(logits=self.tag_classifier(self.dropout(states)))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LSTM):
            module.reset_parameters()
        else:
            super()._init_weights(module)


def make_tagger(bert: BertModel, features: str, max_seq_length: int) -> BiLstmTagger:
    """A tagger with new weights on a BERT, whose configuration names the labels."""
    config = BertConfig.from_dict(bert.config.to_dict())
    sizes = {"lstm_hidden_size": LSTM_HIDDEN_SIZE, "max_seq_length": max_seq_length}
    config.tagger = {"features": features, **sizes}
    tagger = BiLstmTagger(config)
    tagger.bert.load_state_dict({k: v for k, v in bert.state_dict().items() if not k.startswith("pooler.")})
    return tagger


@torch.no_grad()
def word_features(
    tagger: BiLstmTagger,
    tokenizer: PreTrainedTokenizerBase,
    pieces: WordPieces,
    windows: Windows,
    batch_size: int = 64,
) -> Tensor:
    """(words, K, H) hidden states of each word's first piece; zeros for a word without pieces.

    Windows of about one length share a batch.
    """
    bert: Any = tagger.bert.eval()
    words = np.flatnonzero(windows.window_of_word >= 0)
    words_of_window = np.split(words, np.searchsorted(windows.window_of_word[words], np.arange(1, len(windows))))
    positions = windows.position_of_word(pieces.starts)
    ids = windows.inputs(pieces, tokenizer)
    order = np.argsort([-len(own) for own in ids], kind="stable")  # the longest first
    pad = cast(int, tokenizer.pad_token_id)

    features = torch.zeros(len(pieces.empty), len(tagger.layers), tagger.config.hidden_size)
    for first in progress(range(0, len(order), batch_size), "features", "batches"):
        batch = order[first : first + batch_size]
        outputs = bert(**pad_inputs([ids[window] for window in batch], pad, bert.device), output_hidden_states=True)

        batch_words = np.concatenate([words_of_window[window] for window in batch])
        rows = np.repeat(np.arange(len(batch)), [len(words_of_window[window]) for window in batch])
        states = [outputs.hidden_states[layer][rows, positions[batch_words]] for layer in tagger.layers]
        features[batch_words] = torch.stack(states, 1).float().cpu()
    return features


# ---- use


@torch.no_grad()
def word_logits(
    tagger: BiLstmTagger,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None,
) -> np.ndarray:
    """(words, labels) of all sentences; NaN for a word that the tokenizer turns into nothing.

    Args:
        documents: the number of each sentence's document, for a model that was trained with document context.
    """
    longest = tagger.config.tagger["max_seq_length"] - SPECIAL_TOKENS
    pieces = tokenize_words(sentences, tokenizer, longest)
    features = word_features(tagger, tokenizer, pieces, make_windows(pieces, longest, documents))

    logits = np.full((len(pieces.empty), cast(int, tagger.config.num_labels)), np.nan, np.float32)
    for begin, end in itertools.pairwise(pieces.sentences):
        if begin < end:  # an LSTM reads at least one word
            states = features[None, begin:end].to(tagger.device)
            logits[begin:end] = tagger(states, torch.tensor([end - begin])).logits[0].cpu()
    logits[pieces.empty] = np.nan
    return logits


# ---- task


class FeatureTaggingTask(TokenClassificationTask):
    """Sentences of labelled words; a model input is a whole sentence, of whatever length.

    BERT reads the words in the same windows as where it is fine-tuned.
    """

    auto_class = AutoModel
    new_layers = ("pooler.",)
    stock = False

    def __init__(self, task_args: Any, tokenizer):
        super().__init__(task_args, tokenizer)
        self._features: dict[str, Tensor] = {}  # of each part, see `word_features`

    def make_network(self, bert: Any, args: FineTuningArguments) -> tuple[BiLstmTagger, str]:
        """The tagger on a `BertModel`, and a line on its weights; sets rate, epochs and precision if not given."""
        set_seed(args.seed)
        tagger: Any = make_tagger(bert, str(self.task_args.feature_based), self.task_args.max_seq_length)
        self._tagger = tagger.to(args.device)

        args.learning_rate = LEARNING_RATE if args.learning_rate is None else args.learning_rate
        args.num_train_epochs = EPOCHS if args.num_train_epochs is None else args.num_train_epochs
        args.bf16 = False if args.bf16 is None else args.bf16
        args.neftune_noise_alpha = None  # it would disturb embeddings that are not computed again
        trained = sum(weight.numel() for weight in tagger.parameters() if weight.requires_grad)
        return tagger, f"BERT is frozen; newly initialized: BiLSTM and classifier, {trained:,} parameters"

    # ---- sentences

    def encoded(self, part: str) -> datasets.Dataset:
        pieces, windows = self.windows[part]
        if part not in self._features:
            self._features[part] = word_features(self._tagger, self.tokenizer, pieces, windows)

        numbers = np.where(pieces.empty, IGNORE_INDEX, self._label_numbers(part))
        columns = {
            "part": [part] * len(self.parts[part]),
            "first": pieces.sentences[:-1],
            "labels": np.split(numbers, pieces.sentences[1:-1]),
            "length": np.diff(pieces.sentences),
        }
        return datasets.Dataset.from_dict(columns)

    def inputs_per_epoch(self) -> int:
        """The number of training sentences."""
        return len(self.parts["train"])

    def collator(self) -> Any:
        return self._collate

    def _collate(self, rows: list[dict]) -> dict[str, Tensor]:
        """A padded batch of sentences: `features` (B, W, K, H), `lengths` (B,), `labels` (B, W)."""
        labels = [torch.tensor(row["labels"]) for row in rows]
        features = [
            self._features[row["part"]][row["first"] : row["first"] + len(own)]
            for row, own in zip(rows, labels, strict=True)
        ]
        return {
            "features": pad_sequence(features, batch_first=True),
            "lengths": torch.tensor([len(own) for own in labels]),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
        }

    def places(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        pieces, _ = self.windows[part]
        lengths = np.diff(pieces.sentences)
        feature = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(feature)) - np.repeat(pieces.sentences[:-1], lengths)
        return np.where(pieces.empty, -1, feature), position

    # ---- identity, card

    def fingerprint(self) -> dict:
        return {**super().fingerprint(), "tagger": [self.task_args.feature_based, LSTM_HIDDEN_SIZE]}

    def usage(self, model: str) -> str:
        return f"""from bert_hf import predict

predict("{model}", [["Anna", "Smith", "lives", "in", "London", "."]])"""

    def settings(self) -> dict:
        lstm = f"two layers, {LSTM_HIDDEN_SIZE} in each direction"
        return {**super().settings(), "features of the frozen BERT": self.task_args.feature_based, "BiLSTM": lstm}
