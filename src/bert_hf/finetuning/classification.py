"""Builds the parts of a classification run: its network, its identity, its model card, its table of test figures."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, set_seed

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.config.precision import precision_name
from bert_hf.data.input_files import first_line
from bert_hf.errors import InputError
from bert_hf.models.loading import find_checkpoint, load_network
from bert_hf.training import hub
from bert_hf.training.optimization import optimizer_name
from bert_hf.training.run_fingerprint import settings

# In the order of the lists of earlier records (see `run_fingerprint`): a new entry comes last.
_OPTIMIZER = ("learning_rate", "weight_decay", "adam_epsilon", "optim", "bf16", "fp16")
_OPTIMIZER += ("adam_beta1", "adam_beta2", "max_grad_norm", "optim_args")
_SCHEDULE = ("max_steps", "num_train_epochs", "warmup_steps", "lr_scheduler_type", "lr_scheduler_kwargs")


def make_classifier(asked: ClassificationArguments, names: tuple[str, ...], seed: int) -> PreTrainedModel:
    """Stock `AutoModelForSequenceClassification` on a checkpoint (or, from scratch, on its shape alone).

    Raises:
        InputError: nothing can be loaded from there, or texts may be longer than the position table.
    """
    set_seed(seed)
    where = str(asked.model_name_or_path)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    try:
        folder = find_checkpoint(where, weights=not asked.from_scratch)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, num_labels=len(names), **labels)
        if asked.from_scratch:
            model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
            print("random weights: only the checkpoint's shape and vocabulary are used", flush=True)
        else:
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            heads = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
            options = {"config": config, "dtype": torch.float32}
            model, new = load_network(AutoModelForSequenceClassification, folder, where, heads, **options)
            print(f"newly initialized: {', '.join(new)}", flush=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        what = f"no model can be loaded: {first_line(error)}"
        raise InputError(what, where=where, remedy="check the path or id") from None

    longest = getattr(config, "max_position_embeddings", asked.max_seq_length)
    if asked.max_seq_length > longest:
        what = f"--max_seq_length {asked.max_seq_length} is beyond the model's {longest} positions"
        raise InputError(what, where=where, remedy="lower it")

    # The stock loss is a mean that ignores `num_items_in_batch`: Trainer itself must divide it (transformers#47688).
    model.accepts_loss_kwargs = False
    return model


def classification_identity(args, asked: ClassificationArguments, config, parts: dict, names) -> dict:
    """The settings that distinguish this fine-tuning run from others (see `run_fingerprint`)."""
    rows = json.dumps([[rows.joined(), rows.labels] for rows in parts.values()]).encode()
    return {
        "checkpoint": asked.model_name_or_path,
        "from_scratch": asked.from_scratch,
        "model": [config.num_hidden_layers, config.hidden_size, config.vocab_size],
        "data": hashlib.sha256(rows).hexdigest()[:16],
        "labels": list(names),
        "max_seq_length": asked.max_seq_length,
        "seed": args.seed,
        "data_seed": args.data_seed,
        "global_batch": _global_batch(args),
        "optimizer": {**settings(args, _OPTIMIZER), "optimizer_name": optimizer_name(args)},
        "precision": precision_name(args),
        "schedule": settings(args, _SCHEDULE),
        "label_smoothing": args.label_smoothing_factor or None,
        "neftune_noise": args.neftune_noise_alpha,
        "order": args.train_sampling_strategy,
    }


def _global_batch(args) -> int:
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def classification_card(args, asked: ClassificationArguments, names, parts: dict, machine, command) -> hub.Card:
    """The model card of a classifier, without its figures."""
    base = str(asked.model_name_or_path)
    order = args.train_sampling_strategy
    if order == "group_by_length":
        order = "texts of about one length share a batch"

    return hub.Card(
        title=Path(args.output_dir).name,
        pipeline_tag="text-classification",
        command=command,
        machine=machine,
        source=asked.dataset_source or asked.dataset_name,
        license=asked.dataset_license,
        language=asked.language,
        base_model=None if asked.from_scratch or Path(base).exists() else base,
        held_out=hub.held_out_text(asked.test_file, "--test_file", "rows held out of the same data"),
        example=parts["test"].texts[0][:80].replace('"', "'"),
        corpus={part: f"{len(rows):,} rows" for part, rows in parts.items()},
        training={
            "checkpoint": "none: random weights" if asked.from_scratch else base,
            "labels": ", ".join(names),
            "epochs": args.num_train_epochs,
            "batch": _global_batch(args),
            "learning rate": args.learning_rate,
            "warm-up": args.warmup_steps,
            "order": order,
            "seed": args.seed,
        },
    )


def report_test(figures: dict, baseline: dict) -> str:
    """A table of the test figures of the model and of the baseline."""
    names = {"accuracy": "accuracy", "f1": "F1", "matthews_correlation": "Matthews correlation"}
    lines = ["test".ljust(22) + "this model".rjust(12) + "TF-IDF + SVM".rjust(14)]
    for name, text in names.items():
        lines.append(text.ljust(22) + f"{figures['test_' + name]:12.4f}{baseline['baseline_' + name]:14.4f}")
    return "\n".join(lines)
