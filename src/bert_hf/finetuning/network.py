"""Opens the network of a fine-tuning: a checkpoint by the stock class of the task's head."""

import torch
from transformers import BertConfig, PreTrainedModel, set_seed

from bert_hf.finetuning.tasks.task import Task
from bert_hf.models.loading import check_positions, config_errors, find_checkpoint, load_network


def load_task_model(task: Task, seed: int) -> tuple[PreTrainedModel, str]:
    """Return the head's stock class on a checkpoint, or from scratch on its shape, and a line on the head's weights.

    The checkpoint's own head is trained further where it is of the same kind and classes (`task.new_head`).
    """
    task_args, head = task.task_args, task.head
    network_class = head.start_class or head.auto_class
    where = str(task_args.model_name_or_path)
    set_seed(seed)
    folder = find_checkpoint(where, weights=not task_args.from_scratch)
    with config_errors(where, "correct config.json, or give a complete BERT checkpoint"):
        config = BertConfig.from_pretrained(folder, **head.config_options())
        if task_args.from_scratch:
            model = network_class.from_config(config, dtype=torch.float32)
            line = "random weights: only the checkpoint's shape and vocabulary are used"
        else:
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            options = {"config": config, "dtype": torch.float32}
            model, new = load_network(network_class, folder, where, head.new_layers, **options)
            replaced = _replace_head(model, new) if task.new_head else []
            line = f"newly initialized: {', '.join(sorted([*new, *replaced]))}"
            if replaced or (task.new_head and head.suits(config.to_dict())):
                line += f"; {task.new_head}"
            elif not new:
                line = task.describe_head()

    check_positions(task_args.max_seq_length, config.max_position_embeddings, where)
    return model, line


def _replace_head(model: PreTrainedModel, new: list[str]) -> list[str]:
    """Draw the layers outside the encoder again that a checkpoint had; return the names of their weights."""
    if model.base_model is model:  # the encoder, without a head
        return []
    body = f"{model.base_model_prefix}."
    names = [name for name, _ in model.named_parameters() if not name.startswith(body) and name not in new]
    with torch.no_grad():
        for name in names:
            weight = model.get_parameter(name)
            weight.zero_() if weight.ndim == 1 else weight.normal_(0, model.config.initializer_range)
    return names
