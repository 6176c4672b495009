"""A BiLSTM over the hidden states of a frozen BERT: the feature-based approach (Devlin et al. 2019, section 5.3).

"These contextual embeddings are used as input to a randomly initialized two-layer 768-dimensional BiLSTM before the
classification layer." The size is read as that of each direction, as for `torch.nn.LSTM(hidden_size=768)`: the
classifier sees 2 × 768 numbers. No CRF. The table 7 of the paper compares six choices of hidden states (`FEATURES`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import BertConfig, BertModel, BertPreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import TokenClassifierOutput

from bert_hf.config.finetuning_arguments import FEATURES
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.tagging.entities import OUTSIDE
from bert_hf.finetuning.tagging.windows import SPECIAL_TOKENS, Windows, WordPieces, make_windows, tokenize_words
from bert_hf.models.loading import find_checkpoint

# B sentences, W words, K hidden states a word, H their size, C labels
LSTM_LAYERS = 2


def hidden_state_numbers(features: str, layers: int) -> tuple[int, ...]:
    """The hidden states that a row of table 7 takes, of a BERT with so many layers: 0 is the embeddings' output.

    Raises:
        InputError: the last four layers of a BERT that has fewer.
    """
    if features.endswith("last_4") and layers < 4:
        remedy = "choose embeddings, second_to_last, last or weighted_all"
        raise InputError(f"the model has {layers} layers", where=f"--feature_based {features}", remedy=remedy)

    numbers = {
        "embeddings": (0,),
        "second_to_last": (layers - 1,),
        "last": (layers,),
        "weighted_last_4": tuple(range(layers - 3, layers + 1)),
        "concat_last_4": tuple(range(layers - 3, layers + 1)),
        "weighted_all": tuple(range(1, layers + 1)),
    }
    return numbers[features]


class BiLstmTagger(BertPreTrainedModel):
    """Classifies words by a two-layer BiLSTM over hidden states of a BERT, which is part of the model and frozen.

    The configuration is the BERT's, with an entry `tagger`: `features` (one of `FEATURES`), `lstm_hidden_size` (of
    each direction) and `max_seq_length` (of the windows in which BERT reads the words).

    `weighted_…` learns one scalar a layer; the softmax of the scalars weights the hidden states.
    """

    main_input_name = "features"
    bert: BertModel

    def __init__(self, config: BertConfig):
        super().__init__(config)
        kind, size = config.tagger["features"], config.tagger["lstm_hidden_size"]
        self.layers = hidden_state_numbers(kind, config.num_hidden_layers)
        names: Any = config.id2label
        self.label_names = [names[number] for number in range(len(names))]
        self.bert = BertModel(config, add_pooling_layer=False)

        self.layer_scalars = nn.Parameter(torch.zeros(len(self.layers))) if kind.startswith("weighted") else None
        states = len(self.layers) if kind.startswith("concat") else 1
        rate = config.classifier_dropout if config.classifier_dropout is not None else config.hidden_dropout_prob
        self.dropout = nn.Dropout(rate)
        self.lstm = nn.LSTM(
            states * config.hidden_size, size, LSTM_LAYERS, batch_first=True, dropout=rate, bidirectional=True
        )
        # Not `classifier`: stock AutoModelForTokenClassification would take it for one on BERT's own states
        self.tag_classifier = nn.Linear(2 * size, len(self.label_names))
        self.post_init()
        self.bert.requires_grad_(False)

    def train(self, mode: bool = True) -> "BiLstmTagger":
        """As usual, but the frozen BERT never drops anything."""
        super().train(mode)
        self.bert.eval()
        return self

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


def make_tagger(bert: BertModel, features: str, lstm_hidden_size: int, max_seq_length: int) -> BiLstmTagger:
    """A tagger with new weights on a BERT, whose configuration names the labels.

    Raises:
        InputError: see `hidden_state_numbers`.
    """
    config = BertConfig.from_dict(bert.config.to_dict())
    config.tagger = {
        "features": features,
        "lstm_hidden_size": lstm_hidden_size,
        "max_seq_length": max_seq_length,
    }
    tagger = BiLstmTagger(config)
    tagger.bert.load_state_dict({k: v for k, v in bert.state_dict().items() if not k.startswith("pooler.")})
    return tagger


# ---- features


@torch.no_grad()
def word_features(
    bert: BertModel,
    pieces: WordPieces,
    windows: Windows,
    layers: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int = 32,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """(words, their features (words, K, H)), a batch of windows at a time: hidden states of each word's first piece.

    Windows of about one length share a batch. Words without pieces have no features.
    """
    words = np.flatnonzero(windows.window_of_word >= 0)
    words_of_window = np.split(words, np.searchsorted(windows.window_of_word[words], np.arange(1, len(windows))))
    positions = windows.position_of_word(pieces.starts)
    begins, ends = pieces.starts[windows.start], pieces.starts[windows.end]
    order = np.argsort(begins - ends, kind="stable")  # the longest first
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, cast(int, tokenizer.pad_token_id)

    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        inputs = [[cls, *pieces.ids[begins[window] : ends[window]], sep] for window in batch]
        outputs = bert(**pad_inputs(inputs, pad, bert.device), output_hidden_states=True)
        found = np.concatenate([words_of_window[window] for window in batch])
        rows = np.repeat(np.arange(len(batch)), [len(words_of_window[window]) for window in batch])
        states = [outputs.hidden_states[layer][rows, positions[found]] for layer in layers]
        yield found, torch.stack(states, 1).float()


# ---- use


class Tagger:
    """Labels the words of sentences: `load_tagger(folder)([["Anna", "lives", "in", "London"]])`."""

    def __init__(self, model: BiLstmTagger, tokenizer: PreTrainedTokenizerBase):
        self.model = model.eval()
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(
        self, sentences: Sequence[Sequence[str]], documents: Sequence[int] | None = None, batch_size: int = 32
    ) -> list[list[str]]:
        """A label for each word of each sentence; `O` for a word that the tokenizer turns into nothing.

        Args:
            documents: the number of each sentence's document, for a model that was trained with document context.
        """
        longest = self.model.config.tagger["max_seq_length"] - SPECIAL_TOKENS
        pieces = tokenize_words(sentences, self.tokenizer, longest)
        windows = make_windows(pieces, longest, documents)
        features = torch.zeros(len(pieces.empty), len(self.model.layers), self.model.config.hidden_size)
        for words, found in word_features(
            self.model.bert, pieces, windows, self.model.layers, self.tokenizer, batch_size
        ):
            features[words] = found.cpu()

        tagged = []
        for begin, end in zip(pieces.sentences[:-1], pieces.sentences[1:], strict=True):
            inside = begin + np.flatnonzero(~pieces.empty[begin:end])
            tags = np.full(end - begin, OUTSIDE, dtype=object)
            if len(inside):
                inputs = features[inside][None].to(self.model.device)
                logits = self.model(inputs, torch.tensor([len(inside)])).logits[0]
                tags[inside - begin] = [self.model.label_names[number] for number in logits.argmax(-1)]
            tagged.append(tags.tolist())
        return tagged


def load_tagger(where: str | Path) -> Tagger:
    """The tagger that `finetune_token_classification.py --feature_based …` wrote into a folder, or pushed to the Hub.

    Raises:
        InputError: nothing can be loaded from there, or it is another model.
    """
    folder = find_checkpoint(where)
    config = BertConfig.from_pretrained(folder)
    described = getattr(config, "tagger", None)
    if not isinstance(described, dict) or described.get("features") not in FEATURES:
        what, remedy = "config.json describes no tagger", "give the output folder of a run with --feature_based"
        raise InputError(what, where=where, remedy=remedy)

    options: Any = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    options["key_mapping"] = {r"^classifier\.": "tag_classifier."}  # its name up to version 0.2.0
    loading: Any = BiLstmTagger.from_pretrained(folder, config=config, **options)
    model, loaded = loading
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(f"it lacks {', '.join(missing[:3])}", where=where, remedy="give a whole folder of a run")
    return Tagger(model, load_tokenizer(where))
