"""Opens the network of a fine-tuning: a checkpoint by the stock class of the task's head."""

import torch
from transformers import BertConfig, PreTrainedModel, set_seed

from bert_hf.finetuning.tasks.task import Task
from bert_hf.models.config_file import config_errors
from bert_hf.models.loading import check_positions, find_checkpoint, load_network


def load_task_model(task: Task, seed: int) -> tuple[PreTrainedModel, str]:
    """Return the head's stock class on a checkpoint, or from scratch on its shape, and a line on the new weights."""
    task_args, head = task.task_args, task.head
    network_class = head.start_class or head.auto_class
    where = str(task_args.model_name_or_path)
    set_seed(seed)
    folder = find_checkpoint(where, weights=not task_args.from_scratch)
    with config_errors(where, "check the path or id"):
        config = BertConfig.from_pretrained(folder, **task.config_options())
        if task_args.from_scratch:
            model = network_class.from_config(config, dtype=torch.float32)
            line = "random weights: only the checkpoint's shape and vocabulary are used"
        else:
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            options = {"config": config, "dtype": torch.float32}
            model, new = load_network(network_class, folder, where, head.new_layers, **options)
            line = f"newly initialized: {', '.join(new)}"

    check_positions(task_args.max_seq_length, config.max_position_embeddings, where)
    return model, line
