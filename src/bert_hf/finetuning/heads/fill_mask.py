"""Words for [MASK]: the masked-LM head of a pre-trained model, which is not fine-tuned here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForMaskedLM

from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.features.long_texts import EncodedTexts, encode_texts
from bert_hf.finetuning.heads.head import Head, Kept, Labels
from bert_hf.finetuning.heads.pictures import bars
from bert_hf.finetuning.rows.labelled_texts import Columns, LabelledTexts, file_texts, labelled_rows

_MOST_WORDS = 5  # that the demo shows for a mask
_PADDING = -100  # of the masks of a text that has fewer than others; also that of `Head.decode`


class FillMaskHead(Head):
    """The likeliest word for each [MASK] of a text."""

    name = "fill_mask"
    auto_class = AutoModelForMaskedLM
    text_columns = ("text",)
    architectures = ("ForMaskedLM", "ForPreTraining")
    new_layers = ()
    pipeline_tag = "fill-mask"

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        yield from file_texts(path, encoding, separator=self.given.get("separator"))

    def read(self, rows: Sequence[Row], labels: Labels = "ignored") -> LabelledTexts:
        """Return texts without labels, whatever `labels` says: this head only predicts."""
        return labelled_rows(list(rows), Columns(self.option("text_column")), "ignored")

    def check(self, parts: Mapping[str, LabelledTexts]) -> None:
        """Raise an `InputError`: this head is neither trained nor evaluated on rows."""
        remedy = "`bert-hf pretrain --do_train false` evaluates it"
        raise InputError("not fine-tuned", where="--model_name_or_path", remedy=remedy)

    def encode(self, rows: LabelledTexts) -> EncodedTexts:
        return encode_texts(rows, None, self.tokenizer, self.length)

    def forward(self, network: Any, batch: dict[str, Tensor]) -> Any:
        """Return (masks of the batch, vocabulary) logits: the head reads only the masks."""
        inputs = {name: values for name, values in batch.items() if name != "length"}
        states = network.base_model(**inputs).last_hidden_state
        return network.cls.predictions(states[batch["input_ids"] == self.tokenizer.mask_token_id])

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> tuple[Tensor, ...]:
        """Return (B, masks, W) ids and (B, masks, W) probabilities of the W likeliest words, the likeliest first."""
        counts = (inputs["input_ids"] == self.tokenizer.mask_token_id).sum(1).tolist()  # of masks in each text
        scores, ids = outputs.float().softmax(-1).topk(min(_MOST_WORDS, outputs.shape[-1]))  # (masks of the batch, W)
        padded_ids = pad_sequence(ids.split(counts), batch_first=True, padding_value=_PADDING)
        return padded_ids, pad_sequence(scores.split(counts), batch_first=True, padding_value=_PADDING)

    def decode(self, rows: LabelledTexts, encoded: EncodedTexts, kept: Kept) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each text (masks, W) ids and (masks, W) probabilities."""
        is_mask = kept[0][..., 0] != _PADDING  # (texts, masks), by the ids
        return [(ids[real], scores[real]) for ids, scores, real in zip(*kept, is_mask, strict=True)]

    def added_columns(self, rows: LabelledTexts, predictions: list) -> list[dict[str, Any]]:
        """Return `words`, the likeliest for each mask, and their `scores`."""
        return [
            {"words": self.tokenizer.convert_ids_to_tokens(ids[:, 0].tolist()), "scores": scores[:, 0].tolist()}
            for ids, scores in predictions
        ]

    def picture(self, texts: Mapping[str, str], rows: LabelledTexts, predictions: list) -> str:
        """Return bars of the likeliest words, mask by mask; a hint for a text without a mask."""
        pictures = []
        for ids, scores in zip(*predictions[0], strict=True):
            words = self.tokenizer.convert_ids_to_tokens(ids.tolist())
            pictures.append(bars(dict(zip(words, scores.tolist(), strict=True)), words[:1]))
        return "".join(pictures) or f"Write {self.tokenizer.mask_token} in place of a word."

    def metric_names(self) -> tuple[str, ...]:
        return ("loss",)

    def metric_inputs(self, rows: LabelledTexts, predictions: Any) -> dict[str, Any]:
        return {}  # never used: `check` refuses the rows of an evaluation
