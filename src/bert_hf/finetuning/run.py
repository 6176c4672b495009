"""The path of every fine-tuning run: network, defaults, identity, training, metrics of each part, card, report."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedModel

from bert_hf.config.files import write_durably
from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.config.parser import parse
from bert_hf.config.precision import resolve_precision
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.console import logger, shorten_list
from bert_hf.data.text.input_files import check_disjoint
from bert_hf.data.text.tokenization import load_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.head import TRAINED_ON
from bert_hf.finetuning.metrics.classification import LOWER_IS_BETTER
from bert_hf.finetuning.tasks.task import Task
from bert_hf.finetuning.trainer import (
    FineTuner,
    check_further_metrics,
    load_task_model,
    resolve_defaults,
    selection_metric,
)
from bert_hf.models.loading import config_of_checkpoint
from bert_hf.training.command import command_line, next_command
from bert_hf.training.identity import selection_identity, weights_checksum
from bert_hf.training.log_lines import trained_line
from bert_hf.training.optimization.optimizers import check_schedule, steps_identity
from bert_hf.training.publishing.card import Card, held_out_description, hub_id
from bert_hf.training.run import (
    Run,
    check_run,
    describe_machine,
    evaluated_checkpoint,
    evaluation_run,
    identity_in,
    recorded_precision,
    start_run,
    use_trained_options,
)

_INPUT_LENGTH = "sentence_bert_config.json"
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


# ---- start


def parse_finetuning(task_class: type[Task], argv: list[str] | None) -> tuple:
    """Return the parsed and checked options of a recipe, (task_args, args)."""
    check, dry_run = functools.partial(check_finetuning, task_class), functools.partial(read_inputs, task_class)
    return parse((task_class.arguments, FineTuningArguments), argv, check=check, dry_run=dry_run)


def check_finetuning(task_class: type[Task], task_args: TaskArguments, args: FineTuningArguments) -> Iterator[str]:
    """Check the options, yielding lines for `--check`; without training, set the checkpoint and take its options."""
    if not args.do_train:
        checkpoint = evaluated_checkpoint(args, task_args.model_name_or_path)
        task_args.model_name_or_path = checkpoint
        use_trained_options(task_args, getattr(config_of_checkpoint(checkpoint), TRAINED_ON, None))
    if task_args.model_name_or_path is None:
        raise InputError("no checkpoint", where="--model_name_or_path", remedy="give a pre-trained BERT")
    metrics = (*task_class.make_head(task_args, None).metric_names(), "loss")
    yield from check_run(args, () if task_args.metric_name else metrics)  # further ones are known once loaded

    # No test row is trained on, nor chooses the weights
    for option in ("train_file", "validation_file"):
        check_disjoint(**{option: getattr(task_args, option), "test_file": task_args.test_file})
    yield f"data: {shorten_list(task_args.train_file or [task_class.source(task_args)])}"


def read_inputs(task_class: type[Task], task_args: TaskArguments, args: FineTuningArguments) -> Iterator[str]:
    """Yield lines on rows, checkpoint and head for `--check`, read as the run does at its start."""
    tokenizer = load_tokenizer(**task_args.tokenizer_options())
    task = task_class(task_args, tokenizer)
    yield from (f"{part}: {task.head.describe_rows(rows)}" for part, rows in task.parts.items())
    config = load_task_model(task, args.seed)[0].config
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}, {len(tokenizer):,} tokens"
    yield task.describe_head()


def start_finetuning(task: Task, args: FineTuningArguments, model: PreTrainedModel, about: str) -> Run:
    """Return the run in the output folder, after `args` got their defaults (learning rate, epochs, precision, metric).

    The line `about` the weights is logged before a training; without one, the checkpoint is checked, and gives the
    thresholds.
    """
    task_args = task.task_args
    resolve_precision(args, model.config.hidden_size, recorded_precision(args))
    selection = resolve_defaults(args, task, model.config.hidden_size)
    check_schedule(args)  # again, now that the learning rate is resolved
    if not args.do_train:
        check_trained(task)
        task.restore(config_of_checkpoint(str(task_args.model_name_or_path)))
        return evaluation_run(args)

    check_further_metrics(task, model, args)  # before the folder is this run's
    run = start_run(args, identity_of(task, args, model), task_args)
    if not run.finished:
        length = f"{args.max_steps:,} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        rate = f"learning rate {args.learning_rate:g}, {length}"
        logger.info(f"{task.describe()}\n{about}\n{rate}; {selection}; {describe_machine(args)}")
    return run


def check_trained(task: Task) -> None:
    """Check that a checkpoint can be evaluated: its head was trained, on these classes, and on none of the rows."""
    where = task.task_args.model_name_or_path
    missing = f"it has no {', '.join(task.random_weights)}" if task.random_weights else ""
    if reason := task.new_head or missing:  # `new_head`: why the checkpoint's own head does not suit
        remedy = "give a checkpoint that was fine-tuned on such rows, or use bert-hf evaluate"
        raise InputError(f"cannot be evaluated on these rows: {reason}", where=where, remedy=remedy)

    identity = identity_in(Path(str(where)))
    if task.split_off and identity is not None and identity.get("data") != task.fingerprint()["data"]:
        what = f"{' and '.join(task.split_off)} rows would be split off rows that it may have been trained on"
        raise InputError(what, where="--train_file", remedy="pass the data of its training, or use bert-hf evaluate")


def identity_of(task: Task, args: FineTuningArguments, model: PreTrainedModel) -> dict:
    """Return the settings that distinguish a fine-tuning run from others (see `identity.py`)."""
    task_args, config = task.task_args, model.config
    return {
        "weights": None if task_args.from_scratch else weights_checksum(str(task_args.model_name_or_path)),
        "from_scratch": task_args.from_scratch,
        "model": [getattr(config, name) for name in _SHAPE],
        **task.fingerprint(),
        "vocabulary": tokenizer_checksum(task.tokenizer)[:16],
        "max_seq_length": task_args.max_seq_length,
        "seed": args.seed,
        "data_seed": args.data_seed,
        **steps_identity(args),
        "label_smoothing": args.label_smoothing_factor or None,
        "neftune_noise": args.neftune_noise_alpha,
        "order": args.train_sampling_strategy,
        **selection_identity(args),
    }


# ---- train


def train_and_finish(trainer: FineTuner, run: Run) -> None:
    """Train (or resume), evaluate every part, save and push the run, and print its metrics.

    Without training, only metrics, error analysis and predictions are saved, no model and no card.
    """
    task, args = trainer.task, trainer.args
    trained = trainer.train(resume_from_checkpoint=run.checkpoint) if args.do_train else None
    if trained is None:
        trainer.validate(None)  # a training does so at its end

    # Metrics: validation (the weights that are kept), its further parts, test
    metrics = {"eval": trainer.validation_metrics, "test": {}}
    for name in _further_parts_to_predict(trainer):
        group = "test" if name.startswith("test") else "eval"
        metrics[group] |= trainer.predict_part(name, name.replace("validation", "eval"))
    part = "test" if "test_loss" in metrics["test"] else "validation"  # the one that is reported

    # Predictions, error analysis and baselines: by the first rank
    baselines: dict[str, float] = {}
    if args.process_index == 0:
        with run.writing(public=(*task.public_files, _INPUT_LENGTH)) as folder:
            if task.task_args.write_predictions:
                tests = [name for name in trainer.kept if name.startswith("test")]
                for name in tests or ["validation"]:
                    task.write_predictions(folder, name, trainer.kept[name])
            if trained is not None and task.head.pipeline_tag == "text-classification":
                write_input_length(folder, task.task_args.max_seq_length)
            task.findings = task.analyse(folder, part, trainer.kept)
            if args.do_predict:
                baselines = task.baseline_metrics()
                metric = selection_metric(args).removeprefix("eval_")
                task.findings += better_baseline_lines(metric, metrics["test"].get(f"test_{metric}"), baselines)

    metrics = {name: values for name, values in metrics.items() if values}  # no "test" without labelled test rows
    if trained is None:
        with run.writing(public=True):
            for name, values in metrics.items():
                trainer.save_metrics(name, values, combined=False)
    else:
        trained.metrics["train_samples"] = len(task.parts["train"])  # as in transformers' examples
        run.write_examples(task.examples(part))
        card = card_of(task, args, tested=part == "test")
        run.finish(trainer, trained.metrics, card=card, metrics=metrics, baselines=baselines)
    if args.process_index == 0:
        group = "test" if part == "test" else "eval"
        report = task.report(part, metrics[group], baselines, trainer.kept[part])
        lines = [report, selected_step_line(trainer)]
        if trained is not None:
            lines += [trained_line(trainer.state.global_step, trained.metrics), f"model: {args.output_dir}"]
            lines.append(f"next: {next_command('demo', str(args.output_dir))}")
        print("\n".join(line for line in lines if line), flush=True)


def write_input_length(folder: Path, length: int) -> None:
    """Write the length of inputs to where text-embeddings-inference reads it."""
    write_durably(folder / _INPUT_LENGTH, json.dumps({"max_seq_length": length, "do_lower_case": False}) + "\n")


def _further_parts_to_predict(trainer: FineTuner) -> list[str]:
    """Return the other parts to predict: labelled (or all: --write_predictions), test rows only with --do_predict."""
    task, args = trainer.task, trainer.args
    parts = [part for part in task.parts if part not in ("train", "validation")]
    if not args.do_predict:
        parts = [part for part in parts if not part.startswith("test")]
    return [part for part in parts if task.task_args.write_predictions or task.is_labelled(part)]


def selected_step_line(trainer: FineTuner) -> str:
    """Return a line on the step that the weights are from; "" where no evaluation chose them."""
    state = trainer.state
    if not trainer.args.load_best_model_at_end or state.best_global_step is None:
        return ""
    name = selection_metric(trainer.args).removeprefix("eval_")
    return f"kept: the weights of step {state.best_global_step:,} of {state.global_step:,}, by validation {name}"


# ---- model card


def better_baseline_lines(metric: str, value: float | None, baselines: dict[str, float]) -> list[str]:
    """Return a sentence if a linear baseline is better than the model, whose metric is `value`; else none."""
    sign = -1 if metric.endswith(LOWER_IS_BETTER) else 1  # the larger of two signed values is the better one
    names = {f"baseline_{kind}_{metric}": kind for kind in ("words", "characters")}
    signed_values = [(sign * baselines[name], kind) for name, kind in names.items() if name in baselines]
    if value is None or not signed_values or max(signed_values)[0] <= sign * value:
        return []
    best, kind = max(signed_values)
    linear = "ridge regression" if f"baseline_mean_{metric}" in baselines else "linear SVM"
    return [f"A {linear} on {kind} is better on the same rows: {metric} {sign * best:.3f}, this model {value:.3f}"]


def card_of(task: Task, args: FineTuningArguments, *, tested: bool) -> Card:
    """Return the model card, without its metrics (of test rows if `tested`). It quotes none of the user's rows."""
    task_args: TaskArguments = task.task_args
    return Card(
        pipeline_tag=task.head.pipeline_tag,
        command=command_line(),
        machine=describe_machine(args),
        dataset=None if task_args.train_file else hub_id(task.source(task_args)),
        source=task_args.dataset_source,
        dataset_license=task_args.dataset_license,
        model_license=task_args.model_license,
        language=task_args.language,
        base_model=None if task_args.from_scratch else hub_id(str(task_args.model_name_or_path)),
        held_out=_describe_held_out(task_args, args, tested),
        stock=task.head.stock,
        usage=task.usage,
        limits=task.limits(),
        corpus={part: f"{len(rows):,} rows" for part, rows in task.parts.items()},
    )


def _describe_held_out(task_args: TaskArguments, args: FineTuningArguments, tested: bool) -> str:
    """Return a phrase on the rows of the card's metrics: the test rows if `tested`, else the validation rows."""
    if tested:
        return held_out_description(task_args.test_file, "--test_file", "rows held out of the same data")

    rows = held_out_description(task_args.validation_file, "--validation_file", "validation rows of the same data")
    return f"{rows}, which also chose the weights" if args.load_best_model_at_end else rows
