"""Labels of words by a BiLSTM on the hidden states of a frozen BERT (Devlin et al. 2019, section 5.3, table 7).

"These contextual embeddings are used as input to a randomly initialized two-layer 768-dimensional BiLSTM before the
classification layer." The size is read as the size of each direction, as for `torch.nn.LSTM(hidden_size=768)`. No CRF.

The hidden states of all words are computed once and stay in memory.
"""

from collections.abc import Mapping
from typing import Any, cast

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from transformers import AutoModel, BertConfig, BertModel, BertPreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput

from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.errors import InputError
from bert_hf.finetuning.features.word_windows import WordPieces, WordWindows
from bert_hf.finetuning.heads.head import Kept
from bert_hf.finetuning.heads.token_classification import EncodedSentences, TokenClassificationHead
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.rows.tagged_sentences import TaggedSentences
from bert_hf.models.inference import run_by_length

# B sentences, W words, K hidden states per word, H their size, C labels
LSTM_LAYERS = 2
LSTM_HIDDEN_SIZE = 768  # the paper's
LEARNING_RATE, EPOCHS = 1e-3, 10.0  # of a BiLSTM with new weights: the paper names none
_BATCH = 64  # windows that BERT reads at once


def hidden_state_numbers(feature_based: str, layers: int) -> tuple[int, ...]:
    """Return which hidden states a value of --feature_based uses: 0 is the embeddings' output, n layer n's."""
    if feature_based.endswith("last_4") and layers < 4:
        remedy = "choose embeddings, second_to_last, last or weighted_all"
        raise InputError(f"the model has {layers} layers", where=f"--feature_based {feature_based}", remedy=remedy)

    last_four = tuple(range(layers - 3, layers + 1))
    numbers = {
        "embeddings": (0,),
        "second_to_last": (layers - 1,),
        "last": (layers,),
        "weighted_last_4": last_four,
        "concat_last_4": last_four,
        "weighted_all": tuple(range(1, layers + 1)),
    }
    return numbers[feature_based]


class BiLstmTagger(BertPreTrainedModel):
    """Classifies words by a two-layer BiLSTM over hidden states of a BERT, which is part of the model and frozen.

    The configuration is the BERT's, with an entry `tagger`: `features` (as --feature_based), `lstm_hidden_size` (of
    each direction) and `max_seq_length` (of the windows in which BERT reads the words).

    `weighted_…` learns one scalar per layer; the softmax of the scalars weights the hidden states.
    """

    main_input_name = "features"
    bert: BertModel

    def __init__(self, config: BertConfig):
        super().__init__(config)
        features, lstm_size = config.tagger["features"], config.tagger["lstm_hidden_size"]
        self.layers = hidden_state_numbers(features, config.num_hidden_layers)
        self.bert = BertModel(config, add_pooling_layer=False)

        self.layer_scalars = nn.Parameter(torch.zeros(len(self.layers))) if features.startswith("weighted") else None
        input_size = config.hidden_size * (len(self.layers) if features.startswith("concat") else 1)
        rate = config.classifier_dropout if config.classifier_dropout is not None else config.hidden_dropout_prob
        self.dropout = nn.Dropout(rate)
        self.lstm = nn.LSTM(input_size, lstm_size, LSTM_LAYERS, batch_first=True, dropout=rate, bidirectional=True)
        # Not `classifier`: stock AutoModelForTokenClassification would take it for one on BERT's own states
        self.tag_classifier = nn.Linear(2 * lstm_size, cast(int, config.num_labels))
        self.post_init()
        self.bert.requires_grad_(False)

    def forward(self, features: Tensor, lengths: Tensor, **kwargs: Any) -> TokenClassifierOutput:
        """Return the logits (B, W, C) of each word.

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
    """Return a tagger: a copy of a BERT, whose configuration names the labels, and a BiLSTM with new weights."""
    config = BertConfig.from_dict(bert.config.to_dict())
    config.tagger = {"features": features, "lstm_hidden_size": LSTM_HIDDEN_SIZE, "max_seq_length": max_seq_length}
    tagger = BiLstmTagger(config)
    weights = bert.state_dict().items()
    tagger.bert.load_state_dict({name: weight for name, weight in weights if not name.startswith("pooler.")})
    return tagger


@torch.no_grad()
def word_features(
    tagger: BiLstmTagger, tokenizer: PreTrainedTokenizerBase, pieces: WordPieces, windows: WordWindows
) -> Tensor:
    """Return (words, K, H) hidden states of each word's first piece; zeros for a word without pieces."""
    bert: Any = tagger.bert.eval()
    template = InputTemplate(tokenizer)
    ids = windows.inputs(pieces, template)
    pad = cast(int, tokenizer.pad_token_id)

    words = np.flatnonzero(windows.window_of_word >= 0)  # those with pieces, each of which is read in one window
    window_ends = np.searchsorted(windows.window_of_word[words], np.arange(1, len(ids)))  # indices of `words`
    words_of_window = np.split(words, window_ends)
    positions = windows.position_of_word(pieces, template)
    features = torch.zeros(len(positions), len(tagger.layers), tagger.config.hidden_size)

    def fill_in(batch: list[int]) -> list[None]:
        """Write the states of these windows' words into `features`: a batch has windows of similar length."""
        outputs = bert(**pad_inputs([ids[window] for window in batch], pad, bert.device), output_hidden_states=True)
        batch_words = np.concatenate([words_of_window[window] for window in batch])
        row_of_word = np.repeat(np.arange(len(batch)), [len(words_of_window[window]) for window in batch])
        states = [outputs.hidden_states[layer][row_of_word, positions[batch_words]] for layer in tagger.layers]
        features[batch_words] = torch.stack(states, 1).float().cpu()
        return [None] * len(batch)  # `run_by_length` needs a result for each window

    run_by_length(list(map(len, ids)), fill_in, rows=_BATCH)
    return features


class FrozenFeaturesHead(TokenClassificationHead):
    """A label for each word, by a BiLSTM on a frozen BERT; a feature is a whole sentence, of whatever length.

    BERT itself reads windows, as in `TokenClassificationHead`; its hidden states are computed once.
    """

    name = "frozen_features"
    auto_class = BiLstmTagger
    start_class = AutoModel
    architectures = ("BiLstmTagger",)
    new_layers = ("pooler.",)
    stock = False
    tagger: BiLstmTagger

    def __init__(self, tokenizer: Any, given: Mapping[str, Any] | None = None, config: Any = None):
        super().__init__(tokenizer, given, config)
        self._states: dict[int, Tensor] = {}  # `word_features` of each call of `encode`, by its number

    def adopt_layers(self, config: Any) -> str:
        return "a BiLSTM is always trained from the beginning"

    def attach(self, network: Any) -> None:
        self.tagger = network

    def encode(self, rows: TaggedSentences) -> EncodedSentences:
        """Compute the hidden states of all words, and return one feature per sentence.

        A feature says where its words are: in `_states[states]`, from `first` on, `length` words.
        """
        pieces, windows = self.pieces_and_windows(rows)
        call = len(self._states)
        self._states[call] = word_features(self.tagger, self.tokenizer, pieces, windows)

        first_words, lengths = pieces.sentences[:-1], np.diff(pieces.sentences)
        columns: dict[str, Any] = {"states": [call] * len(rows), "first": first_words, "length": lengths}
        if rows.tags is not None:
            class_ids = np.where(pieces.is_empty_word, IGNORE_INDEX, self.class_ids(rows))
            columns["labels"] = np.split(class_ids, first_words[1:])
        sentence_of_word = np.repeat(np.arange(len(lengths)), lengths)
        position_of_word = np.arange(len(sentence_of_word)) - np.repeat(first_words, lengths)  # in its sentence
        feature_of_word = np.where(pieces.is_empty_word, -1, sentence_of_word)
        return EncodedSentences(datasets.Dataset.from_dict(columns), feature_of_word, position_of_word)

    def collate(self, features: list[dict]) -> dict[str, Tensor]:
        """Return a padded batch of sentences: `features` (B, W, K, H), `lengths` (B,), `labels` (B, W)."""
        sentences: list[Tensor] = []  # (words, K, H) each
        for feature in features:
            states = self._states[feature["states"]].narrow(0, feature["first"], feature["length"])
            # A sentence without words is given a word of zeros: `pack_padded_sequence` takes no empty sequence
            sentences.append(states if len(states) else states.new_zeros(1, *states.shape[1:]))
        lengths = torch.tensor(list(map(len, sentences)))
        batch = {"features": pad_sequence(sentences, batch_first=True), "lengths": lengths}
        if "labels" in features[0]:
            labels = [torch.tensor(feature["labels"]) for feature in features]
            batch["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX)
        return batch

    def decode(self, rows: TaggedSentences, encoded: EncodedSentences, kept: Kept) -> list[list[str]]:
        """Return a label for each word of each sentence, and forget the hidden states if none is needed again."""
        if not self.is_new:  # a finished model predicts each row once
            self._states.clear()
        return super().decode(rows, encoded, kept)
