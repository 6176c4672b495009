"""Splits a micro-batch into pieces of fewer rows, so that longer sequences need no more memory than shorter ones."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bert_hf.models.unpadded_batch import pack_layout

_FLAT_INDICES = ("masked_positions", "token_positions")  # indices into the flattened batch (B·L)


def split_micro_batch(inputs: dict, rows: int) -> Iterator[dict]:
    """Yield pieces of at most `rows` rows, each as the collator would have made it.

    Tensors with one entry per row are split by row. Indices into the flattened batch go to the piece that has their
    row, and are counted from the beginning of that piece. Three rows of four tokens in pieces of two rows:

        input_ids         [[a b c d] [e f g h] [i j k l]]  →  [[a b c d] [e f g h]]  and  [[i j k l]]
        masked_positions  [2 5 11]                         →  [2 5]                  and  [11 − 8] = [3]
    """
    batch_size, *_, length = inputs["input_ids"].shape
    starts = range(0, batch_size, rows)

    # Where in the sorted indices each piece ends: all at once, because `tolist` waits for an accelerator. (Another
    # collator's indices may not ascend, as ours do.)
    indices_by_name = {name: inputs[name].sort().values for name in _FLAT_INDICES if name in inputs}
    piece_ends = torch.tensor([*starts[1:], batch_size], device=inputs["input_ids"].device) * length
    bounds_by_name = {}  # 0, then how many indices lie before the end of each piece
    if indices_by_name:
        ends = torch.stack([torch.searchsorted(indices, piece_ends) for indices in indices_by_name.values()])
        bounds_by_name = {name: [0, *row] for name, row in zip(indices_by_name, ends.tolist(), strict=True)}

    for number, start in enumerate(starts):
        piece = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.dim() and len(value) == batch_size:
                piece[name] = value[start : start + rows]
        for name, indices in indices_by_name.items():
            begin, end = bounds_by_name[name][number : number + 2]
            piece[name] = indices[begin:end] - start * length
        if "layout" in inputs:
            piece["layout"] = pack_layout(piece["attention_mask"], *(piece[name] for name in _FLAT_INDICES))
        yield piece
