"""The encoder of a stock model without the padding of its batches, for fine-tuning and prediction.

Shapes: B batch · L length · H hidden size · T real tokens of the batch.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import BertForMultipleChoice, BertForSequenceClassification, PreTrainedModel
from transformers import BertModel as StockBertModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from bert_hf.models.modeling_bert import BertModel
from bert_hf.models.unpadded_batch import pack_layout

_USE_ONLY_CLS = (BertForSequenceClassification, BertForMultipleChoice)  # stock classes whose head reads only [CLS]


class UnpaddedBertModel(BertModel):
    """An encoder that computes only the real tokens, with the parameters of a stock encoder in whose place it is put.

    Texts of different lengths may share a batch at no cost, so the rows of a fine-tuning keep their random order.
    With `cls_only` the last layer computes only [CLS], and `last_hidden_state` has its states (B, 1, H).
    """

    def __init__(self, stock: StockBertModel, cls_only: bool):
        with torch.device("meta"):  # no memory: the parameters are replaced by those of `stock`
            super().__init__(stock.config)
        if stock.pooler is None:
            self.pooler = None
        for name, parameter in stock.named_parameters():  # assigned parameters take this from those they replace
            self.get_parameter(name).requires_grad_(parameter.requires_grad)
        self.load_state_dict(stock.state_dict(keep_vars=True), assign=True)
        self.train(stock.training)
        self.cls_only = cls_only

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_positions: Tensor | None = None,
        layout: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        """Return the outputs of `BertModel.forward`, with zeros at padding where padding is not computed.

        On a GPU padding is left out only if `token_positions` and `layout` are given: `with_layout` computes them.
        """
        tokens = token_positions
        on_cpu = self.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_cpu and attention_mask is not None and attention_mask.dim() == 2:
            tokens = attention_mask.flatten().nonzero().squeeze(1)  # (T,)

        # The tokens whose outputs are used besides [CLS], in place of the masked tokens of pre-training
        selected = tokens[:0] if tokens is not None and self.cls_only else tokens
        padded_only = {"position_ids": position_ids, "inputs_embeds": inputs_embeds, **kwargs}
        padded_only.pop("return_dict", None)  # needs no padded batch
        batch = self.unpad(input_ids, attention_mask, selected, tokens, padded_only, layout)
        if batch is None or tokens is None or input_ids is None:
            return super().forward(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)

        states, first = self.forward_unpadded(input_ids, token_type_ids, batch)  # (T, H) or (0, H), (B, 1, H)
        pooled = self.pooler(first) if self.pooler is not None else None
        if self.cls_only:
            return BaseModelOutputWithPooling(last_hidden_state=first, pooler_output=pooled)

        padded = states.new_zeros(input_ids.numel(), states.shape[1]).index_copy(0, tokens, states)
        return BaseModelOutputWithPooling(padded.unflatten(0, input_ids.shape), pooled)


def with_layout(model: nn.Module, inputs: dict) -> dict:
    """Return inputs with `token_positions` and `layout`, for an `UnpaddedBertModel` on a GPU; others as they are."""
    encoder = getattr(model, "bert", None)
    mask = inputs.get("attention_mask")
    if not isinstance(encoder, UnpaddedBertModel) or encoder.device.type == "cpu" or mask is None or mask.dim() < 2:
        return inputs
    mask = mask.flatten(0, -2)  # (B, choices, L) → (B · choices, L)
    if not mask[:, 0].all():  # padding on the left
        return inputs

    tokens = mask.flatten().nonzero().squeeze(1)
    used = tokens[:0] if encoder.cls_only else tokens  # besides [CLS]
    layout = pack_layout(mask, used, tokens)
    return {**inputs, "token_positions": tokens, "layout": layout}


@contextlib.contextmanager
def without_padding(model: nn.Module) -> Iterator[None]:
    """Context manager: let an unmodified stock model compute without padding, with an `UnpaddedBertModel` in it."""
    stock = getattr(model, "bert", None)
    if not isinstance(model, PreTrainedModel) or type(stock) is not StockBertModel or not _is_unmodified(stock):
        yield
        return

    cls_only = type(model) in _USE_ONLY_CLS and "forward" not in vars(model)  # its `forward` is stock
    model.bert = UnpaddedBertModel(stock, cls_only=cls_only)
    try:
        yield
    finally:
        model.bert = stock.train(model.training)


def _is_unmodified(stock: StockBertModel) -> bool:
    """Return True if all layers are stock, without hooks, and their dropout is as configured."""
    layers = list(stock.modules())
    probabilities = {layer.p for layer in layers if isinstance(layer, nn.Dropout)}
    return (
        all(type(layer).__module__.startswith(("torch.nn.", "transformers.")) for layer in layers)
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
        and probabilities <= {stock.config.hidden_dropout_prob, stock.config.attention_probs_dropout_prob}
    )
