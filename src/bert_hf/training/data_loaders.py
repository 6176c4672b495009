"""Keeps the order and random numbers of data loaders independent of the global generator, for exact resume."""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_hf.data.examples.samplers import LengthGroups


def with_own_order(sampler: Sampler | None, args: TrainingArguments) -> Sampler | None:
    """Replaces the stock sampler by length, which draws its order from the global generator."""
    if type(sampler) is not LengthGroupedSampler:
        return sampler
    seed = args.seed if args.data_seed is None else args.data_seed
    return LengthGroups(sampler.batch_size * args.world_size, sampler.lengths, seed)


def with_own_generator(loader: DataLoader, seed: int) -> DataLoader:
    """Gives a loader a generator of its own.

    A loader draws a seed whenever an iterator is asked for. From the global generator, an evaluation would change
    everything drawn after it; and on resume, Trainer restores that generator *before* it asks for the iterator.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader whose generator is used
    inner.generator = torch.Generator().manual_seed(seed)
    return loader


@contextlib.contextmanager
def same_order_on_all_ranks(seed: int, ranks: int) -> Iterator[None]:
    """Inside, the global generator is the same on all ranks; the order of a shuffled dataset is drawn from it.

    Without it, a second `train` would find the ranks' generators in different states.
    """
    if ranks == 1:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
