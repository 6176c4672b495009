"""What surrounds every run: start (output folder, resume, seed) and finish (evaluate, save, card, push)."""

import hashlib
import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from bert_hf import checkpointing, hub
from bert_hf.arguments import ClassificationArguments, ExampleArguments, ModelArguments
from bert_hf.collator import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.errors import InputError
from bert_hf.kernels import IGNORED
from bert_hf.modeling import BertForPreTraining
from bert_hf.remote import RemoteShelf
from bert_hf.sampling import Phase, two_phases
from bert_hf.store import Corpus
from bert_hf.tokenization import check_tokenizer

RECORD = "run.json"  # says that a folder is a run of ours, which one, and whether it ended
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_WRITTEN = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "README.md",
    "train_results.json",
    "eval_results.json",
    "test_results.json",
    "all_results.json",
    "trainer_state.json",
    "loss.png",
    "log_history.csv",
    "run.json",
]


@dataclass
class Start:
    """How a run begins: at a checkpoint, from the beginning (None), or not at all (`finished`)."""

    checkpoint: str | None
    finished: bool


def start(args: TrainingArguments, identity: dict) -> Start:
    """Looks at the output folder: a new run, one to go on with, a finished one, or another run's.

    Args:
        identity: what makes two runs the same one: model shape, tokenizer, data, seed, global batch, optimizer,
            schedule. Flat, JSON values.

    Raises:
        InputError: the folder holds another run (the keys that differ are named) or something that is not a run.
    """
    logging.set_verbosity_warning()
    identity = json.loads(json.dumps(identity))
    result: list = [None]
    if args.process_index == 0:
        try:
            result = [_look(Path(args.output_dir), args, identity)]
        except InputError as error:
            result = [error]
    if args.world_size > 1:
        broadcast_object_list(result)
    if isinstance(result[0], InputError):
        raise result[0]
    set_seed(args.seed)
    return result[0]


def _look(folder: Path, args: TrainingArguments, identity: dict) -> Start:
    record = _read_record(folder)
    if getattr(args, "overwrite_output_dir", False) and folder.exists() and any(folder.iterdir()):
        _remove_ours(folder, record)
        write_record(folder, identity, finished=False)
        return Start(None, False)
    if record is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "the output folder holds something that no run of ours wrote",
                where=folder,
                remedy="give another --output_dir",
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, identity, finished=False)
        return Start(args.resume_from_checkpoint and _named(args.resume_from_checkpoint), False)
    if differing := [key for key in identity if record["identity"].get(key) != identity[key]]:
        key = differing[0]
        was, now = record["identity"].get(key), identity[key]
        raise InputError(
            f"the output folder holds another run: {', '.join(differing)} differ ({key}: {was} there, {now} here)",
            where=folder,
            remedy="give another --output_dir, or --overwrite_output_dir to lose that run",
        )
    if record["finished"]:
        print(f"{folder} holds this very run, finished. Its figures: {folder / 'all_results.json'}", flush=True)
        return Start(None, True)
    named = args.resume_from_checkpoint
    if named and named not in (True, "true", "True"):
        return Start(_named(named), False)
    newest = checkpointing.newest_good(folder, lambda line: print(line, flush=True))
    if newest is not None:
        print(f"going on from {newest}", flush=True)
    return Start(str(newest) if newest else None, False)


def _named(checkpoint: str) -> str:
    try:
        checkpointing.verify(Path(checkpoint))
    except checkpointing.DamagedCheckpoint as fault:
        raise InputError(f"damaged: {fault}", where=checkpoint, remedy="name another checkpoint") from None
    return checkpoint


def _read_record(folder: Path) -> dict | None:
    try:
        record = json.loads((folder / RECORD).read_text())
        return record if isinstance(record.get("identity"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def write_record(folder: Path, identity: dict, finished: bool) -> None:
    record = {"bert_hf": version("bert-hf"), "identity": identity, "finished": finished}
    temporary = folder / f".{RECORD}"
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(folder / RECORD)


def _remove_ours(folder: Path, record: dict | None) -> None:
    if record is None:
        if not folder.is_dir() or any(folder.iterdir()):
            raise InputError(
                f"--overwrite_output_dir removes only runs of ours, and there is no {RECORD}",
                where=folder,
                remedy="remove the folder yourself, or give another --output_dir",
            )
        return
    for checkpoint in [*checkpointing.checkpoints(folder), *folder.glob(checkpointing.TEMPORARY + "*")]:
        shutil.rmtree(checkpoint)
    for name in _WRITTEN:
        (folder / name).unlink(missing_ok=True)


def free_folder(output_dir: str | None, overwrite: bool, ours: tuple[str, ...], resumable: bool = False) -> Path:
    """The folder a recipe without a Trainer may write: new, empty, or (with `overwrite`) one of ours.

    Args:
        ours: globs of the files that such a run writes; the first is one by which its folder is known.
        resumable: a folder of ours may be gone on with.
    """
    if output_dir is None:
        raise InputError("no output folder is named", where="--output_dir", remedy="give one")
    folder = Path(output_dir)
    beside = (".tmp", "lengths.png")  # what another part is writing; the doctor's picture
    if folder.exists() and (not folder.is_dir() or not all(path.name.endswith(beside) for path in folder.iterdir())):
        known = (folder / ours[0]).is_file()
        if known and resumable and not overwrite:
            return folder
        if not (overwrite and known):
            remedy = "give another --output_dir" + (", or --overwrite_output_dir" if known else "")
            raise InputError("the output folder is not empty", where=folder, remedy=remedy)
        for path in [path for pattern in reversed(ours) for path in folder.glob(pattern)]:  # the known one at last
            path.unlink()
    return folder


# ---- pre-training


def pretraining_identity(args, config, tokenizer_hash: str, data_hash: str, examples: ExampleArguments) -> dict:
    """What makes a pre-training run this one; logging, saving, workers, ranks and hub may change."""
    shape = {key: value for key, value in config.to_dict().items() if isinstance(value, int | float | str | bool)}
    shape = {key: shape[key] for key in sorted(shape) if key not in ("transformers_version", "dtype")}
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    optimizer = [args.learning_rate, args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay]
    optimizer += [args.max_grad_norm, args.adam_bias_correction, str(args.optim), args.bf16, args.fp16]
    schedule = [args.max_steps, args.num_train_epochs, args.warmup_steps, str(args.lr_scheduler_type)]
    return {
        "model": shape,
        "tokenizer": tokenizer_hash,
        "data": data_hash,
        "seed": args.seed,
        "global_batch": batch,
        "optimizer": optimizer,
        "schedule": [*schedule, args.decay_from_step_zero],
        "examples": vars(examples),
    }


def resolve_steps(args: TrainingArguments, shape: ExampleArguments, corpus: Corpus) -> tuple[Phase, ...]:
    """Fixes the number of steps (from the epochs, where none is given) and where the long phase begins."""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if args.max_steps <= 0:
        one_length = (Phase(shape.max_seq_length, None),)
        drawn = {"nsp": shape.nsp, "short_seq_probability": shape.short_seq_probability}
        if isinstance(corpus.shelf, RemoteShelf):
            raise InputError(
                "how long an epoch is cannot be known of a corpus that is not here",
                where="--num_train_epochs",
                remedy="give --max_steps",
            )
        epoch = PreTrainingExamples(corpus, one_length, seed=args.seed, **drawn).epoch_length(0, 0)
        args.max_steps = max(1, round(args.num_train_epochs * epoch / batch))
    long_steps = round(args.max_steps * shape.long_seq_fraction)
    return two_phases(shape.max_seq_length, shape.long_seq_length, (args.max_steps - long_steps) * batch)


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
            model, loaded = BertForPreTraining.from_pretrained(
                where,
                dtype=torch.float32,
                attn_implementation=network.attn_implementation,
                output_loading_info=True,
                initializer=network.initializer,
                **changed,
            )
            fresh = sorted(loaded["missing_keys"])
            if fresh and os.environ.get("RANK", "0") == "0":
                print(f"not in {where}, drawn afresh: {', '.join(fresh)}", flush=True)
        else:
            config = BertConfig.from_json_file(where)
            config.update({**changed, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id})
            config._attn_implementation = network.attn_implementation
            model = BertForPreTraining(config, network.initializer)
    except (OSError, ValueError, ImportError, RuntimeError, TypeError) as error:
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


# ---- fine-tuning


def make_classifier(asked: ClassificationArguments, names: tuple[str, ...], seed: int) -> PreTrainedModel:
    """Stock `AutoModelForSequenceClassification` on a checkpoint (or, from scratch, on its shape alone).

    Raises:
        InputError: nothing can be loaded from there, or texts may be longer than the position table.
    """
    set_seed(seed)
    where = asked.model_name_or_path
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    try:
        config = AutoConfig.from_pretrained(where, num_labels=len(names), **labels)
        if asked.from_scratch:
            model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
            print("weights drawn at random: only the checkpoint's shape and vocabulary are used", flush=True)
        else:
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            model, loaded = AutoModelForSequenceClassification.from_pretrained(
                where, config=config, dtype=torch.float32, output_loading_info=True
            )
            print(f"new in the model: {', '.join(sorted(loaded['missing_keys']))}", flush=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"no model can be loaded: {reason}", where=where, remedy="check the path or id") from None
    longest = getattr(config, "max_position_embeddings", asked.max_seq_length)
    if asked.max_seq_length > longest:
        raise InputError(
            f"--max_seq_length {asked.max_seq_length} is beyond the model's {longest} positions",
            where=where,
            remedy="lower it",
        )
    # The stock loss is a mean that ignores `num_items_in_batch`: Trainer itself must divide it (transformers#47688).
    model.accepts_loss_kwargs = False
    return model


def classification_identity(args, asked: ClassificationArguments, config, parts: dict, names) -> dict:
    """What makes a fine-tuning run this one."""
    rows = json.dumps([[rows.texts, rows.labels] for rows in parts.values()]).encode()
    return {
        "checkpoint": asked.model_name_or_path,
        "from_scratch": asked.from_scratch,
        "model": [config.num_hidden_layers, config.hidden_size, config.vocab_size],
        "data": hashlib.sha256(rows).hexdigest()[:16],
        "labels": list(names),
        "max_seq_length": asked.max_seq_length,
        "seed": args.seed,
        "global_batch": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "optimizer": [args.learning_rate, args.weight_decay, args.adam_epsilon, str(args.optim), args.bf16, args.fp16],
        "schedule": [args.max_steps, args.num_train_epochs, args.warmup_steps, str(args.lr_scheduler_type)],
        "order": args.train_sampling_strategy,
    }


def classification_card(args, asked: ClassificationArguments, names, parts: dict, machine, command) -> hub.Card:
    """What the card of a classifier says beside its figures."""
    base = asked.model_name_or_path
    return hub.Card(
        title=Path(args.output_dir).name,
        pipeline_tag="text-classification",
        command=command,
        machine=machine,
        source=asked.dataset_source or asked.dataset_name,
        license=asked.dataset_license,
        language=asked.language,
        base_model=None if asked.from_scratch or Path(base).exists() else base,
        example=parts["test"].texts[0][:80].replace('"', "'"),
        corpus={part: f"{len(rows):,} rows" for part, rows in parts.items()},
        training={
            "checkpoint": "none: random weights" if asked.from_scratch else base,
            "labels": ", ".join(names),
            "epochs": args.num_train_epochs,
            "batch": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "learning rate": args.learning_rate,
            "warm-up": args.warmup_steps,
            "order": "texts of about one length share a batch"
            if args.train_sampling_strategy == "group_by_length"
            else args.train_sampling_strategy,
            "seed": args.seed,
        },
    )


def report_test(figures: dict, baseline: dict) -> str:
    """Test figures beside the baseline's, as text."""
    names = {"accuracy": "accuracy", "f1": "F1", "matthews_correlation": "Matthews correlation"}
    lines = ["test".ljust(22) + "this model".rjust(12) + "TF-IDF + SVM".rjust(14)]
    for name, text in names.items():
        lines.append(text.ljust(22) + f"{figures['test_' + name]:12.4f}{baseline['baseline_' + name]:14.4f}")
    return "\n".join(lines)


# ---- the end of every run


def take_push(args: TrainingArguments) -> str | None:
    """Takes the push out of Trainer's hands, which loses errors and sends too much; returns where it shall go."""
    if args.hub_token is not None:
        raise InputError(
            "a token is not taken as a flag", where="--hub_token", remedy="set HF_TOKEN or `hf auth login`"
        )
    if not args.push_to_hub:
        return None
    args.push_to_hub = False
    return args.hub_model_id or Path(args.output_dir).name


def finish(
    trainer: Trainer,
    train_metrics: dict,
    *,
    identity: dict,
    card: hub.Card,
    push_to: str | None = None,
    metrics: dict[str, dict] | None = None,
    baselines: dict | None = None,
) -> None:
    """Saves model, tokenizer, figures, curves and card, pushes if asked, and marks the run as finished.

    Args:
        metrics: figures by split (`eval`, `test`), saved as `SPLIT_results.json` and in `all_results.json`.
        push_to: repository id on the Hub; None does not push.
    """
    trainer.save_model()
    trainer.save_metrics("train", train_metrics)
    for split, figures in (metrics or {}).items():
        trainer.save_metrics(split, figures)
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    if baselines:
        path = folder / "all_results.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **baselines}, indent=4, sort_keys=True) + "\n")
    hub.write_curves(trainer.state.log_history, folder, baselines or {})
    card.repo_id = push_to
    hub.write_card(folder, card, json.loads((folder / "all_results.json").read_text()))
    if push_to:
        asked = trainer.args
        address = hub.push(folder, push_to, private=asked.hub_private_repo, revision=asked.hub_revision)
        print(f"pushed to {address}", flush=True)
    write_record(folder, json.loads(json.dumps(identity)), finished=True)


def command_line() -> str:
    """The command that was given, for the card."""
    return shlex.join(["accelerate", "launch", *sys.argv])


def say(args: TrainingArguments, text: str) -> None:
    """Prints on rank 0."""
    if args.process_index == 0:
        print(text, flush=True)


def describe_machine(args: TrainingArguments) -> str:
    """Device, threads and precision of a run, in words."""
    device = f"CPU, {torch.get_num_threads()} threads" if args.device.type == "cpu" else str(args.device)
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {'bf16' if args.bf16 else 'fp16' if args.fp16 else 'fp32'}"
