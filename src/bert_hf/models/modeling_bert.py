"""The whole BERT network: embeddings, encoder and both pre-training heads (Devlin et al. 2019, section 3).

Modules and tensors have the names and shapes of `transformers.models.bert`: a saved checkpoint *is* a stock BERT.
Three things differ. Given the masked positions, only what a loss depends on is computed: no padding, no vocabulary
projection of other tokens, and after the last attention only [CLS] and the masked tokens. Either loss works without
the other. Weights are initialized as in the 2018 code.

Shapes: B batch · L length · H hidden size · A heads · D head size (H = A·D) · F feed-forward size · V vocabulary ·
P positions · M masked tokens of the batch · T real tokens of the batch, without padding · Q tokens that the heads use,
[CLS] and the masked ones (Q = B + M).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import BertConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput, eager_attention_forward
from transformers.utils.generic import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from bert_hf.models.functional import (
    IGNORE_INDEX,
    DropoutAdd,
    fast_linear,
    losses_and_correct,
    multiplies_in_bf16,
    project,
    projected_cross_entropy,
    token_losses,
)
from bert_hf.models.unpadded_attention import unpadded_attention
from bert_hf.models.unpadded_batch import UnpaddedBatch, add_filler_sequence, unpack_layout, unpad_batch


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of logits (N, classes) over the labels (N,) that count; 0 if all are ignored."""
    return token_losses(logits, labels).sum() / (labels != IGNORE_INDEX).sum().clamp(min=1)


class BertEmbeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised (figure 2)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = DropoutAdd(config.hidden_dropout_prob)

    @torch.no_grad()
    def set_sinusoidal_positions(self, std: float) -> None:
        """Initialize the position embeddings with sinusoids (Vaswani et al. 2017, section 3.5); they stay trainable.

        A relative position is then a rotation, which an attention head learns for all positions at once; with random
        embeddings it has to learn every pair of positions separately.
        The sinusoids get three times `std`, the standard deviation of the other embeddings, so that positions dominate
        words at first (measured: docs/small_machine.md).
        """
        table = self.position_embeddings.weight  # (P, H)
        positions, size = table.shape

        frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(positions)[:, None] * frequencies  # (P, H / 2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (P, H), or H + 1 if H is odd
        table.copy_(waves[:, :size] * math.sqrt(2) * 3 * std)  # root mean square of the waves: √½

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Embed tokens, (B, L) → (B, L, H), or only the T real tokens, (T,) → (T, H), which need `position_ids`."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds

        if position_ids is None:
            position_ids = torch.arange(words.shape[1], device=words.device).unsqueeze(0)  # (1, L)
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:-1], dtype=torch.long, device=words.device)

        embedded = words + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embedded))


class BertSelfAttention(nn.Module):
    """Multi-head attention of every token to every token, through transformers' attention interface."""

    is_causal = False  # read by the sdpa and flash backends

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, **kwargs) -> tuple[Tensor, Tensor | None]:
        """Return the context (B, L, H), and attention weights: (B, A, L, L) from `eager`, None from `sdpa`."""
        projected = self.query(hidden), self.key(hidden), self.value(hidden)
        query, key, value = (x.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for x in projected)  # (B, A, L, D)

        backend = self.config._attn_implementation or "eager"
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)
        context, weights = attend(
            self, query, key, value, attention_mask, dropout=self._dropout_rate, scaling=self.head_size**-0.5, **kwargs
        )  # (B, L, A, D)
        return context.reshape(hidden.shape), weights  # (B, L, H)

    def forward_unpadded(self, hidden: Tensor, batch: UnpaddedBatch, selected: Tensor | None) -> Tensor:
        """Attend within each sequence, (T, H) → (T, H); with `selected` (Q, H) as the only queries, → (Q, H)."""
        if selected is None:
            projected = project(hidden, self.query, self.key, self.value)
        else:
            projected = self.query(selected), *project(hidden, self.key, self.value)
        query, key, value = (x.unflatten(-1, (-1, self.head_size)) for x in projected)  # (T or Q, A, D)

        context = unpadded_attention(
            query, key, value, batch, selected_queries=selected is not None, dropout=self._dropout_rate
        )
        return context.flatten(1)  # (T or Q, H)

    @property
    def _dropout_rate(self) -> float:
        return self.config.attention_probs_dropout_prob if self.training else 0.0


class BertResidual(nn.Module):
    """Projection, dropout, sum with the residual, LayerNorm: the end of both halves of a layer (post-LN)."""

    def __init__(self, config: BertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = DropoutAdd(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(fast_linear(hidden, self.dense), residual))


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertResidual(config, config.hidden_size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, **kwargs) -> Tensor:
        context, _ = self.self(hidden, attention_mask, **kwargs)
        return self.output(context, hidden)

    def forward_unpadded(self, hidden: Tensor, batch: UnpaddedBatch, last_layer: bool) -> Tensor:
        """Compute the T real tokens, (T, H) → (T, H); in the last layer only those that heads use, (T, H) → (Q, H)."""
        selected = hidden.index_select(0, batch.query_indices) if last_layer else None  # (Q, H)
        context = self.self.forward_unpadded(hidden, batch, selected)
        return self.output(context, hidden if selected is None else selected)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.activation(fast_linear(hidden, self.dense))  # (…, F)


class BertLayer(GradientCheckpointingLayer):
    """One Transformer block: attention, then feed-forward."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidual(config, config.intermediate_size)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None, unpadded: UnpaddedBatch | None, last_layer: bool, **kwargs
    ) -> Tensor:
        """Compute (B, L, H) → (B, L, H), or given `unpadded` (T, H) → (T, H), in the last layer (T, H) → (Q, H)."""
        if unpadded is not None:
            attended = self.attention.forward_unpadded(hidden, unpadded, last_layer)
        else:
            attended = self.attention(hidden, attention_mask, **kwargs)

        return self.output(self.intermediate(attended), attended)


def _run_layer(layer: nn.Module, *inputs, **options) -> Tensor:
    """Call a layer; `compile_layers` compiles this function once for all layers, not each layer."""
    return layer(*inputs, **options)


class BertEncoder(nn.Module):
    compiled_layer: Callable | None = None  # `_run_layer`, compiled: a graph for the last layer, one for the others

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None, unpadded: UnpaddedBatch | None = None, **kwargs
    ) -> Tensor:
        """Compute (B, L, H) → (B, L, H), or given `unpadded` (T, H) → (Q, H): its last layer computes what heads use.

        Example: sequences `[CLS] a b [SEP]` and `[CLS] c [SEP]` with `b` and `c` masked, padded to 4, in two layers.
        T = 7 of the 8 positions are real tokens, and Q = 4 of them are used by a head: both [CLS], `b` and `c`.

            layer 1    (7, H) → (7, H)    7 queries, each attends to the keys of its own sequence
            layer 2    (7, H) → (4, H)    4 queries attend to the same keys; its feed-forward computes 4 rows

        Every later operation works on one token at a time, so the other 3 outputs of layer 2 would not be used.
        """
        # Evaluation, padded batches and recomputed layers are not compiled
        may_be_compiled = self.training and unpadded is not None and not self.layer[0].gradient_checkpointing
        run = self.compiled_layer if may_be_compiled and self.compiled_layer is not None else _run_layer
        for layer in self.layer:
            last = layer is self.layer[-1]
            hidden = run(layer, hidden, attention_mask, unpadded=unpadded, last_layer=last, **kwargs)
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
    """Transform, then a linear layer with the word embeddings as weights and one bias for each token."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # `decoder.bias`, tied: stock saves this name

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden))  # (…, V)


class BertPreTrainingHeads(nn.Module):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictions(hidden), self.seq_relationship(pooled)  # (M, V) or (B, L, V), (B, 2)


class BertPreTrainedModel(PreTrainedModel):
    """Base class: settings for loading, saving, sharding and attention backends, and weight initialization."""

    config: BertConfig
    config_class = BertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    # True: padding and outputs that no head uses are left out, and functional.py and unpadded_attention.py compute
    # dropout, projections, attention and vocabulary loss. False: the padded model, by PyTorch's own operations.
    fast_path = True
    _input_embed_layer = "word_embeddings"  # which of the embeddings `get_input_embeddings` returns

    # Stock heads accept `num_items_in_batch` without using it, and Trainer then does not divide by accumulation steps
    # and ranks (transformers#47688). With False, a stock Trainer treats our loss as a mean and divides it.
    accepts_loss_kwargs = False

    # The layers that FSDP wraps by default. Stock lists BertEmbeddings too. Its word embeddings are tied to the
    # decoder outside of it: FSDP2 cannot wrap it separately.
    _no_split_modules = ["BertLayer"]  # noqa: RUF012 - read by accelerate as a plain list

    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": BertLayer, "attentions": BertSelfAttention}  # noqa: RUF012

    def __init__(self, config: BertConfig):
        if config.is_decoder or config.add_cross_attention:
            raise ValueError("this BERT is an encoder: is_decoder and add_cross_attention must be false")
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights as in the 2018 code: from a normal distribution that is cut at two standard deviations."""
        super()._init_weights(module)  # biases and LayerNorms; the matrices that it draws are drawn again

        sigma = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.trunc_normal_(module.weight, std=sigma, a=-2 * sigma, b=2 * sigma)
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)

    def unpad(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        masked_positions: Tensor | None,
        token_positions: Tensor | None,
        padded_only: dict,
        layout: Tensor | None = None,
    ) -> UnpaddedBatch | None:
        """Return the layout of a batch without padding; None if the network has to compute the padded batch.

        `padded_only` are those arguments of `forward` that only the padded batch supports, such as
        `output_attentions`, if they are set. `layout`: from `pack_layout`, if the data loader computed it.
        """
        if input_ids is None or masked_positions is None or not self.fast_path:
            return None
        if any(value is not None and value is not False for value in padded_only.values()):
            return None
        config = self.config
        if config._attn_implementation != "sdpa" or config.output_hidden_states or config.output_attentions:
            return None
        if hasattr(self.get_input_embeddings(), "neftune_noise_alpha"):  # its noise is for (B, L, H)
            return None
        if torch.compiler.is_compiling() and input_ids.device.type == "cpu":
            return None  # the lengths of the sequences would make another graph for every batch
        if layout is not None and token_positions is not None and input_ids.device.type != "cpu":  # a CPU needs groups
            return unpack_layout(layout, input_ids, masked_positions, token_positions)

        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
            token_positions = torch.arange(input_ids.numel(), device=input_ids.device)
        if attention_mask.dim() != 2:  # a mask for each pair of tokens
            return None
        batch = unpad_batch(attention_mask, masked_positions, token_positions)
        if batch is not None and batch.groups is not None and multiplies_in_bf16(next(self.parameters())):
            return add_filler_sequence(batch)  # oneDNN compiles for each new number of tokens
        return batch


class BertModel(BertPreTrainedModel):
    """The encoder with its pooler. Takes and returns what `transformers.BertModel` does."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler: Any = BertPooler(config)  # None in an encoder whose head does not read its output
        self.post_init()

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
        pooled = self.pooler(hidden) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)

    def forward_unpadded(
        self, input_ids: Tensor, token_type_ids: Tensor | None, batch: UnpaddedBatch
    ) -> tuple[Tensor, Tensor]:
        """Compute only the hidden states that heads use: of the masked tokens (M, H) and of each [CLS] (B, 1, H)."""
        tokens = batch.token_indices
        if token_type_ids is not None:
            token_type_ids = token_type_ids.expand(input_ids.shape).flatten()[tokens]  # (T,)
        position_ids = tokens % input_ids.shape[1]  # each token's in its sequence
        hidden = self.embeddings(input_ids.flatten()[tokens], token_type_ids, position_ids)  # (T, H)
        hidden = self.encoder(hidden, None, unpadded=batch)  # (Q, H)

        masked = hidden.index_select(0, batch.masked_queries)  # (M, H)
        return masked, hidden.index_select(0, batch.cls_queries).unsqueeze(1)  # the pooler reads [:, 0]


@dataclass
class PreTrainingLosses(ModelOutput):
    """Losses (nats, fp32, 0 if the label is ignored), and whether the label has the highest logit; None: no labels."""

    mlm_losses: Tensor | None = None  # (M,)
    mlm_correct: Tensor | None = None  # (M,) bool
    nsp_losses: Tensor | None = None  # (B,)
    nsp_correct: Tensor | None = None  # (B,) bool


class BertForPreTraining(BertPreTrainedModel):
    """BERT with the masked-LM and the next-sentence head (section 3.1).

    `state_dict`, `config.json` and the class name are stock, so `transformers.AutoModelFor…` opens what this saves.
    """

    _tied_weights_keys = {  # noqa: RUF012 - transformers' name and shape for it
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    compiled_loss: Callable | None = None  # `projected_cross_entropy`, compiled, for training

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.bert = BertModel(config)
        self.cls = BertPreTrainingHeads(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def compile_layers(self, **options) -> None:
        """Compile training without padding: two graphs for the layers, and one for the loss of the masked tokens.

        Evaluation is not compiled, and nothing if `fast_path` is False. `options` are `torch.compile`'s.
        """
        # Make dropout probabilities constants of the graphs: as inputs they would cause a second compilation
        torch._dynamo.config.specialize_float = True
        self.bert.encoder.compiled_layer = torch.compile(_run_layer, dynamic=True, **options)
        self.compiled_loss = torch.compile(projected_cross_entropy, dynamic=True, **options)

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
        layout: Tensor | None = None,
        losses_only: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues] - as in stock
    ) -> BertForPreTrainingOutput | PreTrainingLosses:
        """Compute the logits of both heads, and a loss if there is a label.

        Args:
            input_ids, token_type_ids, attention_mask: (B, L).
            labels: (B, L), -100 where nothing is predicted.
            next_sentence_label: (B,), 0 = B follows A, 1 = B is from another document; -100 = no pair.
            masked_positions: (M,) indices into the flattened B·L tokens. The vocabulary projection then runs
                only on these, and `prediction_logits` is (M, V), not (B, L, V). With `sdpa` attention, padding is not
                computed either, and after the last attention only these and [CLS] are.
            token_positions, layout: (T,) indices of the real tokens, and the result of `pack_layout` for the batch.
                A GPU would have to wait for the number of tokens: the data loader computes them.
            losses_only: with `masked_positions`, return `PreTrainingLosses` and keep no logits.

        Returns:
            The stock output. `loss` is the mean over the predicted tokens plus the mean over the pairs; with one
            kind of label it is the mean for that one (stock gives None).
        """
        if losses_only and masked_positions is None:
            raise ValueError("losses_only needs masked_positions")

        # Encoder. `unpad` is called in `forward` itself: without a layout, a compiled graph ends there
        padded_only = {"position_ids": position_ids, "inputs_embeds": inputs_embeds, **kwargs}
        unpadded = self.unpad(input_ids, attention_mask, masked_positions, token_positions, padded_only, layout)
        states = {}  # further outputs of the encoder, where they are asked for
        if input_ids is not None and unpadded is not None:
            hidden, first = self.bert.forward_unpadded(input_ids, token_type_ids, unpadded)  # (M, H), (B, 1, H)
            pooled = self.bert.pooler(first)  # (B, H)
        else:
            outputs = self.bert(input_ids, attention_mask, token_type_ids, return_dict=True, **padded_only)
            hidden, pooled = outputs.last_hidden_state, outputs.pooler_output  # (B, L, H), (B, H)
            states = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
            if masked_positions is not None:
                hidden = hidden.flatten(0, 1)[masked_positions]  # (M, H)
        if masked_positions is not None and labels is not None:
            labels = labels.flatten()[masked_positions]  # (M,)
        if losses_only:
            return self._pretraining_losses(hidden, pooled, labels, next_sentence_label)
        return self._stock_output(hidden, pooled, labels, next_sentence_label, states)

    def _stock_output(
        self, hidden: Tensor, pooled: Tensor, labels: Tensor | None, next_sentence_label: Tensor | None, states: dict
    ) -> BertForPreTrainingOutput:
        """Return the logits of both heads and the sum of the mean losses, with the encoder's further outputs."""
        prediction_logits, seq_relationship_logits = self.cls(hidden, pooled)  # (M, V) or (B, L, V), (B, 2)
        losses = []
        if labels is not None:
            losses.append(mean_loss(prediction_logits.flatten(0, -2), labels.flatten()))
        if next_sentence_label is not None:
            losses.append(mean_loss(seq_relationship_logits, next_sentence_label.flatten()))
        loss = sum(losses[1:], losses[0]) if losses else None
        return BertForPreTrainingOutput(loss, prediction_logits, seq_relationship_logits, **states)

    def _pretraining_losses(
        self, hidden: Tensor, pooled: Tensor, labels: Tensor | None, next_sentence_label: Tensor | None
    ) -> PreTrainingLosses:
        """Return the losses of masked tokens, hidden (M, H), labels (M,), and of pairs, pooled (B, H), labels (B,)."""
        losses = PreTrainingLosses()

        if labels is not None:
            head = self.cls.predictions
            states = head.transform(hidden)  # (M, H)
            # For a single masked token torch.compile would make another graph
            if self.compiled_loss is not None and self.training and self.fast_path and len(labels) > 1:
                losses.mlm_losses, losses.mlm_correct = self.compiled_loss(states, head.decoder, labels)
            elif self.fast_path:
                losses.mlm_losses, losses.mlm_correct = projected_cross_entropy(states, head.decoder, labels)
            else:  # by PyTorch's own operations
                losses.mlm_losses, losses.mlm_correct = losses_and_correct(head.decoder(states), labels)

        if next_sentence_label is not None:
            logits = self.cls.seq_relationship(pooled)  # (B, 2)
            losses.nsp_losses, losses.nsp_correct = losses_and_correct(logits, next_sentence_label.flatten())

        return losses
