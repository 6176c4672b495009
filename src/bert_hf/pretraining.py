"""A pre-training run: its network and steps, what makes it this one, its baselines and its card."""

import os
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import BertConfig, PreTrainedTokenizerBase, TrainerCallback, set_seed

from bert_hf import hub
from bert_hf.arguments import ExampleArguments, ModelArguments
from bert_hf.collator import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.errors import InputError
from bert_hf.kernels import IGNORED
from bert_hf.modeling import BertForPreTraining
from bert_hf.precision import precision_name
from bert_hf.pretrained import find_checkpoint, load_network, read_config_file
from bert_hf.tokenization import check_tokenizer

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def pretraining_identity(args, config, tokenizer_hash: str, data_hash: str, examples: ExampleArguments) -> dict:
    """What makes a pre-training run this one; logging, saving, workers, ranks and hub may change."""
    shape = {key: value for key, value in config.to_dict().items() if isinstance(value, int | float | str | bool)}
    shape = {key: shape[key] for key in sorted(shape) if key not in ("transformers_version", "dtype")}
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    optimizer = [args.learning_rate, args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay]
    optimizer += [args.max_grad_norm, args.adam_bias_correction, str(args.optim)]
    schedule = [args.max_steps, args.num_train_epochs, args.warmup_steps, str(args.lr_scheduler_type)]
    return {
        "model": shape,
        "tokenizer": tokenizer_hash,
        "data": data_hash,
        "seed": args.seed,
        "global_batch": batch,
        "optimizer": optimizer,
        "precision": precision_name(args),
        "schedule": [*schedule, args.decay_from_step_zero],
        "max_hours": args.max_hours,
        "examples": vars(examples),
    }


def make_model(
    network: ModelArguments, shape: ExampleArguments, tokenizer: PreTrainedTokenizerBase, seed: int
) -> BertForPreTraining:
    """The network: fresh from a model JSON with the tokenizer's vocabulary size, or from a checkpoint.

    Raises:
        InputError: neither is there, the checkpoint is no BERT, tokenizer or sequence length do not fit.
    """
    set_seed(seed)
    changed = {} if network.dropout is None else dict.fromkeys(_DROPOUTS, network.dropout)
    where = network.model_name_or_path or network.config_name
    if where is None:
        raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/mini.json")
    try:
        if network.model_name_or_path:
            model, fresh = load_network(
                BertForPreTraining,
                find_checkpoint(where),
                where,
                heads=("cls.", "bert.pooler."),
                dtype=torch.float32,
                attn_implementation=network.attn_implementation,
                initializer=network.initializer,
                **changed,
            )
            if fresh and os.environ.get("RANK", "0") == "0":
                print(f"not in {where}, drawn afresh: {', '.join(fresh)}", flush=True)
        else:
            config = BertConfig.from_json_file(where)
            read_config_file(Path(where))
            config.update({**changed, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id})
            config._attn_implementation = network.attn_implementation
            model = BertForPreTraining(config, network.initializer)
    except (OSError, ValueError, ImportError, RuntimeError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"no BERT can be made of it: {reason}", where=where, remedy="check the path or id") from None
    check_tokenizer(tokenizer, model.config.vocab_size)
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    if longest > model.config.max_position_embeddings:
        raise InputError(
            f"sequence length {longest} is beyond the model's {model.config.max_position_embeddings} positions",
            where=where,
            remedy="lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON",
        )
    return model


def pretraining_card(args, text, shape, model, tokenizer, corpus, machine: str, command: str) -> hub.Card:
    """What the card of a pre-trained model says beside its figures."""
    config = model.config
    per_device, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    batch = per_device * accumulated * args.world_size
    notes = []
    if config.attention_probs_dropout_prob != 0.1 or config.hidden_dropout_prob != 0.1:
        notes.append(f"Dropout {config.hidden_dropout_prob} in place of the paper's 0.1 changes the numbers.")
    if args.bf16 or args.fp16:
        notes.append("Trained under 16-bit autocast, with fp32 weights.")
    return hub.Card(
        title=Path(args.output_dir).name,
        pipeline_tag="fill-mask",
        command=command,
        machine=machine,
        source=text.corpus_source,
        license=text.corpus_license,
        language=text.language,
        corpus={
            "documents": f"{len(corpus):,}",
            "tokens": f"{corpus.tokens:,}",
            "fingerprint": corpus.manifest["fingerprint"][:16],
            "unknown tokens": f"{corpus.manifest['unknown_share']:.4%}",
        },
        training={
            "layers × hidden size, heads": (
                f"{config.num_hidden_layers} × {config.hidden_size}, {config.num_attention_heads}"
            ),
            "vocabulary": f"{len(tokenizer):,} WordPieces",
            "steps": args.max_steps,
            "batch": f"{per_device} × {accumulated} × {args.world_size} = {batch}",
            "sequence length": f"{shape.max_seq_length}, then {shape.long_seq_length}"
            if shape.long_seq_length
            else shape.max_seq_length,
            "learning rate": args.learning_rate,
            "warm-up": args.warmup_steps,
            "masking": f"{shape.mlm_probability:.0%}{', whole words' if shape.whole_word_mask else ''}, 80/10/10",
            "next-sentence prediction": shape.nsp,
            "seed": args.seed,
        },
        notes=notes,
    )


def baselines(examples: PreTrainingExamples, collator: DataCollatorForPreTraining, counts: np.ndarray) -> dict:
    """What knows nothing gets on the held-out examples: unigram frequencies for MLM, the majority class for NSP.

    Args:
        counts: (V,) how often each token stands in the training text (one is added to each).
    """
    probabilities = (counts + 1) / (counts + 1).sum()
    labels, pairs = [], []
    for index in range(len(examples)):
        feature = examples[index]
        row = collator.example(feature)["labels"]
        labels.append(row[row != IGNORED])
        pairs.append(feature["next_sentence_label"])
    result = {"unigram_mlm_loss": float(-np.log(probabilities[np.concatenate(labels)]).mean())}
    if examples.nsp:
        share = float(np.mean(pairs))
        result["majority_nsp_accuracy"], result["nsp_pairs"] = max(share, 1 - share), len(pairs)
    return result


class HeldOutBefore(TrainerCallback):
    """Prints the held-out figures of the untrained model. (Inside `train`, since DeepSpeed evaluates only there.)"""

    def __init__(self, reference: dict):
        self.reference = reference

    def on_evaluate(self, args, state, control, metrics=None, **kwargs) -> None:
        if state.global_step == 0 and state.is_world_process_zero:
            report_heldout("before", metrics, self.reference)


def report_heldout(when: str, figures: dict, reference: dict) -> None:
    """One line of held-out figures beside what knows nothing."""
    text = f"held out, {when}: MLM loss {figures['eval_mlm_loss']:.3f} (unigram {reference['unigram_mlm_loss']:.3f})"
    if "eval_nsp_accuracy" in figures and "nsp_pairs" in reference:
        majority, pairs = reference["majority_nsp_accuracy"], reference["nsp_pairs"]
        error = np.sqrt(majority * (1 - majority) / pairs)
        distance = (figures["eval_nsp_accuracy"] - majority) / error
        text += f", MLM accuracy {figures['eval_mlm_accuracy']:.3f}, NSP accuracy {figures['eval_nsp_accuracy']:.3f} "
        text += f"(majority {majority:.3f}, {distance:+.1f} standard errors on {pairs:,} pairs)"
    print(text, flush=True)
