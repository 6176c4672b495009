"""Batches with rows of different lengths."""

import torch


def ragged_batch(config, rows=6, length=24):
    torch.manual_seed(2)
    ids = torch.randint(5, config.vocab_size, (rows, length))
    mask = (torch.arange(length) < torch.tensor([24, 9, 24, 17, 9, 24])[:rows, None]).long()
    labels = torch.where((torch.rand(rows, length) < 0.2) & mask.bool(), ids, -100)
    labels[:, 0] = -100
    return {
        "input_ids": ids, "attention_mask": mask, "token_type_ids": (torch.arange(length) > 5).long().expand(rows, -1),
        "labels": labels, "next_sentence_label": torch.arange(rows) % 2,
        "masked_positions": (labels.flatten() != -100).nonzero().squeeze(1),
        "token_positions": mask.flatten().nonzero().squeeze(1),
    }  # fmt: skip
