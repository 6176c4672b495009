"""Pieces of a micro-batch, compared with literal tensors."""

import torch

from bert_hf.models.micro_batches import split_micro_batch
from bert_hf.models.unpadded_batch import pack_layout


def test_the_worked_example():
    inputs = {
        "input_ids": torch.arange(12).view(3, 4),
        "next_sentence_label": torch.tensor([0, 1, 0]),
        "masked_positions": torch.tensor([11, 2, 5]),  # a collator may give them in any order
    }
    first, second = split_micro_batch(inputs, 2)
    assert first["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first["next_sentence_label"].tolist() == [0, 1]
    assert first["masked_positions"].tolist() == [2, 5]
    assert second["input_ids"].tolist() == [[8, 9, 10, 11]]
    assert second["next_sentence_label"].tolist() == [0]
    assert second["masked_positions"].tolist() == [3]


def test_a_piece_without_masked_tokens():
    inputs = {
        "input_ids": torch.zeros(2, 3),
        "masked_positions": torch.tensor([4]),
        "token_positions": torch.arange(6),
    }
    first, second = split_micro_batch(inputs, 1)
    assert first["masked_positions"].tolist() == []
    assert second["masked_positions"].tolist() == [1]
    assert first["token_positions"].tolist() == second["token_positions"].tolist() == [0, 1, 2]


def test_a_piece_has_the_layout_of_its_rows():
    mask, masked = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), torch.tensor([2, 5])
    tokens = mask.flatten().nonzero().squeeze(1)
    inputs = {"input_ids": mask, "attention_mask": mask, "masked_positions": masked, "token_positions": tokens}
    layout = pack_layout(mask, masked, tokens)
    # Queries, [CLS] and masked among them, ends of tokens, ends of queries
    assert layout.tolist() == [*[0, 2, 3, 4], *[0, 2], *[1, 3], *[0, 3, 7], *[0, 2, 4]]
    _, second = split_micro_batch({**inputs, "layout": layout}, 1)
    assert second["layout"].tolist() == [*[0, 1], *[0], *[1], *[0, 4], *[0, 2]]


def test_no_more_rows_than_asked():
    inputs = {"input_ids": torch.zeros(7, 2)}
    assert [len(piece["input_ids"]) for piece in split_micro_batch(inputs, 3)] == [3, 3, 1]
