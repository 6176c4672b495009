"""BERT, embeddings → encoder → both pre-training heads, in one file (Devlin et al. 2019, section 3).

Module names and tensor shapes are those of `transformers.models.bert`, so that a saved checkpoint *is* a stock BERT.
What differs is inside: the vocabulary projection runs on the masked positions only, and given these, nothing is
computed that no loss depends on, padding least of all; either loss works alone, and fresh weights are drawn as in the
2018 code.

Shapes: B batch · L length · H hidden size · A heads · D head size (H = A·D) · F feed-forward size · V vocabulary ·
M masked tokens in the batch · T real tokens in the batch, without padding · Q tokens that the heads read (Q = B + M).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from bert_hf.models.functional import (
    IGNORED,
    Dropout,
    plain_cross_entropy,
    project,
    projected_cross_entropy,
    token_losses,
)
from bert_hf.models.unpadded_attention import UnpaddedBatch, unpad_batch, unpadded_attention


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of `token_losses` over the labels that count; 0, and not NaN, where none does."""
    return token_losses(logits, labels).sum() / (labels != IGNORED).sum().clamp(min=1)


class BertEmbeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised (figure 2)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    @torch.no_grad()
    def set_sinusoidal_positions(self, std: float) -> None:
        """Sets the position embeddings to sinusoids (Vaswani et al. 2017, section 3.5), from which they are trained.

        A relative position is then a rotation that one attention head can learn for all positions at once; of random
        embeddings it has to learn each pair of positions by itself.

        Args:
            std: standard deviation of the other embeddings. The sinusoids get three times that, so that positions
                weigh more than words at first (measured: docs/recipes.md).
        """
        table = self.position_embeddings.weight  # (P, H)
        positions, size = table.shape

        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(positions)[:, None] * frequencies  # (P, H / 2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (P, H), root mean square √½
        table.copy_(waves[:, :size] * math.sqrt(2) * 3 * std)

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
    ) -> Tensor:
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, L, H)
        length, device = words.shape[1], words.device
        if position_ids is None:
            position_ids = torch.arange(length, device=device).unsqueeze(0)  # (1, L)
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=device)
        return self._sum(words, self.token_type_embeddings(token_type_ids), self.position_embeddings(position_ids))

    def _sum(self, words: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        return self.dropout(self.LayerNorm(words + segments + positions))

    def forward_unpadded(self, input_ids: Tensor, token_type_ids: Tensor | None, rows: UnpaddedBatch) -> Tensor:
        """(T, H): the real tokens of (B, L) alone."""
        words, positions = input_ids.flatten()[rows.tokens], rows.tokens % input_ids.shape[1]
        segments = (
            torch.zeros_like(words)
            if token_type_ids is None
            else token_type_ids.expand(input_ids.shape).flatten()[rows.tokens]
        )
        embedded = (
            self.word_embeddings(words),
            self.token_type_embeddings(segments),
            self.position_embeddings(positions),
        )
        return self._sum(*embedded)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Attention as written in Vaswani et al. 2017, with its weights; the other backends are transformers' own."""
    scores = query @ key.transpose(2, 3) * scaling  # (B, A, L, L)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights  # (B, L, A, D)


class BertSelfAttention(nn.Module):
    """Multi-head attention of every token to every token, through transformers' attention interface."""

    is_causal = False  # read by the sdpa and flash backends
    fast_path = True

    def __init__(self, config: BertConfig):
        super().__init__()
        if config.hidden_size % config.num_attention_heads:
            heads = config.num_attention_heads
            raise ValueError(f"hidden_size {config.hidden_size} is no multiple of num_attention_heads {heads}")
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, **kwargs) -> tuple[Tensor, Tensor | None]:
        heads = (*hidden.shape[:-1], -1, self.head_size)
        layers = (self.query, self.key, self.value)
        projected = project(hidden, *layers) if self.fast_path else [layer(hidden) for layer in layers]
        query, key, value = (x.view(heads).transpose(1, 2) for x in projected)  # (B, A, L, D)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        context, weights = attend(
            self, query, key, value, attention_mask, dropout=self._dropout, scaling=self.head_size**-0.5, **kwargs
        )
        return context.reshape(hidden.shape), weights  # (B, L, H)

    def forward_unpadded(self, hidden: Tensor, rows: UnpaddedBatch, read: Tensor | None) -> Tensor:
        """(T, H) → (T, H); with `read` (Q, H), the reads alone, only their attention: (Q, H)."""
        if read is None:
            projected = project(hidden, self.query, self.key, self.value)
        else:
            projected = self.query(read), *project(hidden, self.key, self.value)
        query, key, value = (x.unflatten(-1, (-1, self.head_size)) for x in projected)  # (T, A, D)
        context = unpadded_attention(
            query, key, value, rows, reads_only=read is not None, dropout=self._dropout, scaling=self.head_size**-0.5
        )
        return context.flatten(1)

    @property
    def _dropout(self) -> float:
        return self.config.attention_probs_dropout_prob if self.training else 0.0


class BertResidual(nn.Module):
    """Project, drop out, add what went around, normalise: the end of both halves of a layer (post-LN)."""

    def __init__(self, config: BertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, around: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden), around))


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertResidual(config, config.hidden_size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, **kwargs) -> Tensor:
        context, _ = self.self(hidden, attention_mask, **kwargs)
        return self.output(context, hidden)

    def forward_unpadded(self, hidden: Tensor, rows: UnpaddedBatch, last: bool) -> Tensor:
        read = hidden.index_select(0, rows.reads) if last else None  # (Q, H)
        context = self.self.forward_unpadded(hidden, rows, read)
        return self.output(context, read if last else hidden)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.activation(self.dense(hidden))  # (B, L, F)


class BertLayer(GradientCheckpointingLayer):
    """One Transformer block: attention, then feed-forward."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None,
        rows: UnpaddedBatch | None = None,
        last: bool = False,
        **kwargs,
    ) -> Tensor:
        """Given `rows`: (T, H) → (T, H), and in the last layer (T, H) → (Q, H); else (B, L, H) → (B, L, H)."""
        if rows is not None:
            attended = self.attention.forward_unpadded(hidden, rows, last)
        else:
            attended = self.attention(hidden, attention_mask, **kwargs)
        return self.output(self.intermediate(attended), attended)


class BertEncoder(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, **kwargs) -> Tensor:
        for layer in self.layer:
            hidden = layer(hidden, attention_mask, **kwargs)
        return hidden

    def forward_unpadded(self, hidden: Tensor, rows: UnpaddedBatch) -> Tensor:
        """(T, H) → (Q, H). After the last attention a token's way is its own, so only the reads go it."""
        for layer in self.layer:
            hidden = layer(hidden, None, rows=rows, last=layer is self.layer[-1])
        return hidden


class BertPooler(nn.Module):
    """The vector C of the paper: [CLS] through a tanh layer (2018 code)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.dense(hidden[:, 0]))  # (B, H)


class BertPredictionHeadTransform(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden)))


class BertLMPredictionHead(nn.Module):
    """Transform, then the word embeddings as output weights, and a bias of its own for each token."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden))  # (…, V)


class BertPreTrainingHeads(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictions(hidden), self.seq_relationship(pooled)


class BertPreTrainedModel(PreTrainedModel):
    """What loading, saving and the attention backends need to know of BERT.

    Args:
        initializer: `truncated_normal` draws fresh weights as the 2018 code does (sigma `initializer_range`, cut at
            two sigma); `normal` draws them as stock transformers does.
    """

    config: BertConfig
    config_class = BertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    # Stock heads swallow `num_items_in_batch` without using it, and Trainer then forgets to divide by accumulation
    # steps and ranks (transformers#47688). False: under a stock Trainer, our loss is a mean that it divides itself.
    accepts_loss_kwargs = False
    # What FSDP wraps where its file names no layer. Stock lists BertEmbeddings too, whose word embeddings are tied to
    # the decoder outside of it: FSDP2 refuses to wrap it alone.
    _no_split_modules = ["BertLayer"]  # noqa: RUF012 - read by accelerate as a plain list
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": BertLayer, "attentions": BertSelfAttention}  # noqa: RUF012

    def __init__(self, config: BertConfig, initializer: str = "truncated_normal"):
        if config.is_decoder or config.add_cross_attention:
            raise ValueError("this BERT is an encoder: is_decoder and add_cross_attention must be false")
        super().__init__(config)
        self.initializer = initializer

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        sigma = self.config.initializer_range
        if self.initializer == "truncated_normal" and isinstance(module, nn.Linear | nn.Embedding):
            init.trunc_normal_(module.weight, std=sigma, a=-2 * sigma, b=2 * sigma)
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)


class BertModel(BertPreTrainedModel):
    """The encoder with its pooler. Takes and returns what `transformers.BertModel` does."""

    def __init__(self, config: BertConfig, initializer: str = "truncated_normal"):
        super().__init__(config, initializer)
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        hidden = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)  # (B, L, H)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        hidden = self.encoder(hidden, mask, **kwargs)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=self.pooler(hidden))

    def forward_unpadded(
        self, input_ids: Tensor, token_type_ids: Tensor | None, rows: UnpaddedBatch
    ) -> tuple[Tensor, Tensor]:
        """What the heads read, and nothing else: hidden states of the masked tokens (M, H), pooler output (B, H)."""
        hidden = self.encoder.forward_unpadded(
            self.embeddings.forward_unpadded(input_ids, token_type_ids, rows), rows
        )  # (Q, H)
        first = hidden.index_select(0, rows.first).unsqueeze(1)  # (B, 1, H)
        return hidden.index_select(0, rows.masked), self.pooler(first)


@dataclass
class PreTrainingLosses(ModelOutput):
    """Losses in nats, fp32, 0 where the label is ignored, and whether the likeliest answer is the right one."""

    mlm_losses: Tensor | None = None  # (M,)
    mlm_correct: Tensor | None = None  # (M,) bool
    nsp_losses: Tensor | None = None  # (B,)
    nsp_correct: Tensor | None = None  # (B,) bool


class BertForPreTraining(BertPreTrainedModel):
    """BERT with the masked-LM and the next-sentence head (section 3.1).

    `state_dict`, `config.json` and the class name are stock, so `transformers.AutoModelFor…` opens what this saves.
    `fast_path` tells how a batch with `masked_positions` is computed; see `set_fast_path`.
    """

    fast_path = True

    _tied_weights_keys = {  # noqa: RUF012 - transformers' name and shape for it
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: BertConfig, initializer: str = "truncated_normal"):
        super().__init__(config, initializer)
        self.bert = BertModel(config, initializer)
        self.cls = BertPreTrainingHeads(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.cls.predictions.decoder = value
        self.cls.predictions.bias = value.bias

    def set_fast_path(self, on: bool) -> None:
        """Chooses how the same numbers are computed; nothing of it is saved.

        On: padding and what no head reads are left out, and dropout, the projections and the vocabulary loss are the
        ones of `kernels.py`. Off: the padded model, by PyTorch's own operations.
        """
        for module in self.modules():
            if hasattr(module, "fast_path"):
                module.fast_path = on

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        masked_positions: Tensor | None = None,
        token_positions: Tensor | None = None,
        losses_only: bool = False,
        **kwargs,
    ) -> BertForPreTrainingOutput | PreTrainingLosses:
        """Logits of both heads, and a loss where there is a label.

        Args:
            input_ids, token_type_ids, attention_mask: (B, L).
            labels: (B, L), -100 where nothing is predicted.
            next_sentence_label: (B,), 0 = B follows A, 1 = B is from another document; -100 = no pair.
            masked_positions: (M,) indices into the flattened B·L tokens. The vocabulary projection then runs on
                these alone, and `prediction_logits` is (M, V) instead of (B, L, V). With `sdpa` attention padding is
                not computed either, nor in the last layer anything but these and [CLS].
            token_positions: (T,) indices of the real tokens, ascending; spares a GPU the search for them.
            losses_only: with `masked_positions`, return `PreTrainingLosses` and keep no logits.

        Returns:
            The stock output. `loss` is the mean over the predicted tokens plus the mean over the pairs; with one
            kind of label it is that one's mean alone (stock gives None).
        """
        inputs = {"position_ids": position_ids, "inputs_embeds": inputs_embeds, **kwargs}
        rows = None
        if masked_positions is not None and all(value is None or value is False for value in inputs.values()):
            rows = self._rows(input_ids, attention_mask, masked_positions, token_positions)
        if rows is not None:
            hidden, pooled = self.bert.forward_unpadded(input_ids, token_type_ids, rows)  # (M, H), (B, H)
            outputs = BaseModelOutputWithPooling()
        else:
            outputs = self.bert(input_ids, attention_mask, token_type_ids, return_dict=True, **inputs)
            hidden, pooled = outputs.last_hidden_state, outputs.pooler_output  # (B, L, H), (B, H)
            if masked_positions is not None:
                hidden = hidden.flatten(0, 1)[masked_positions]  # (M, H)
        if losses_only and masked_positions is None:
            raise ValueError("losses_only needs masked_positions")
        if masked_positions is not None and labels is not None:
            labels = labels.flatten()[masked_positions]  # (M,)
        if losses_only:
            return self._losses(hidden, pooled, labels, next_sentence_label)
        prediction_logits, seq_relationship_logits = self.cls(hidden, pooled)
        losses = []
        if labels is not None:
            losses.append(mean_loss(prediction_logits.flatten(0, -2), labels.flatten()))
        if next_sentence_label is not None:
            losses.append(mean_loss(seq_relationship_logits, next_sentence_label.flatten()))
        return BertForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            prediction_logits=prediction_logits,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _rows(self, input_ids, attention_mask, masked_positions, token_positions) -> UnpaddedBatch | None:
        """How to run the batch without padding; None where it has to be run as it is."""
        asked = self.config.output_hidden_states or self.config.output_attentions
        if not self.fast_path or self.config._attn_implementation != "sdpa" or input_ids is None or asked:
            return None
        if hasattr(self.bert.embeddings.word_embeddings, "neftune_noise_alpha"):  # made for (B, L, H)
            return None
        if torch.compiler.is_compiling() and input_ids.device.type == "cpu":
            return None  # the lengths of the rows would be another graph for every batch
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
            token_positions = torch.arange(input_ids.numel(), device=input_ids.device)
        if attention_mask.dim() != 2:
            return None
        return unpad_batch(attention_mask, masked_positions, token_positions)

    def _losses(self, hidden: Tensor, pooled: Tensor, labels: Tensor | None, next_label: Tensor | None):
        losses = PreTrainingLosses()
        if labels is not None:
            head = self.cls.predictions
            cross_entropy = projected_cross_entropy if self.fast_path else plain_cross_entropy
            losses.mlm_losses, losses.mlm_correct = cross_entropy(head.transform(hidden), head.decoder, labels)
        if next_label is not None:
            logits, next_label = self.cls.seq_relationship(pooled), next_label.flatten()
            losses.nsp_losses, losses.nsp_correct = token_losses(logits, next_label), logits.argmax(-1) == next_label
        return losses
