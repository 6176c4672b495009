"""Loads a checkpoint into a stock class with one new layer; some of its layers can be initialized again."""

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel, set_seed

from bert_hf.errors import InputError, first_line
from bert_hf.finetuning.task import DownstreamTask
from bert_hf.models.loading import check_positions, find_checkpoint, load_network


def load_task_model(task: DownstreamTask, seed: int) -> tuple[PreTrainedModel, str]:
    """The task's stock class on a checkpoint (or, from scratch, on its shape alone), and a line on its new weights.

    Raises:
        InputError: nothing can be loaded from there, inputs may be longer than the position table, or more layers are
            to be initialized again than there are.
    """
    task_args = task.task_args
    where = str(task_args.model_name_or_path)
    set_seed(seed)
    try:
        folder = find_checkpoint(where, weights=not task_args.from_scratch)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **task.config_options())
        if task_args.from_scratch:
            model = task.auto_class.from_config(config, dtype=torch.float32)
            line = "random weights: only the checkpoint's shape and vocabulary are used"
        else:
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            options = {"config": config, "dtype": torch.float32}
            model, new = load_network(task.auto_class, folder, where, task.new_layers, **options)
            line = f"newly initialized: {', '.join(new)}"
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        what = f"no model can be loaded: {first_line(error)}"
        raise InputError(what, where=where, remedy="check the path or id") from None

    longest = getattr(config, "max_position_embeddings", task_args.max_seq_length)
    check_positions(task_args.max_seq_length, longest, where)
    task.positions = longest
    return model, line
