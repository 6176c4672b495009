"""The path that every fine-tuning run takes: defaults, identity, training, metrics of each part, card and report."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

from bert_hf.config.finetuning_arguments import (
    FineTuningArguments,
    TaskArguments,
    resolve_by_rows,
    resolve_by_width,
)
from bert_hf.config.precision import precision_name
from bert_hf.console import logger
from bert_hf.data.text.tokenization import tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.finetuning.task import DownstreamTask
from bert_hf.finetuning.trainer import FineTuner, Predictions
from bert_hf.training import run
from bert_hf.training.command_line import command_line
from bert_hf.training.log_lines import use_log_lines
from bert_hf.training.optimization.optimizers import global_batch_size, optimizer_identity
from bert_hf.training.optimization.schedules import check_schedule, schedule_identity
from bert_hf.training.output_folder import RunStart, folder_of
from bert_hf.training.publishing.card import Card, held_out_text
from bert_hf.training.run_fingerprint import kept_weights, settings, weights_checksum

FEW_ROWS = 200  # below so many validation rows a metric that counts rows is too coarse to choose weights by

_SHARED = ("reinit_layers", "reinit_pooler", "layerwise_lr_decay", "early_stopping_patience")


# ---- start


def start_finetuning(task: DownstreamTask, args: FineTuningArguments, model: PreTrainedModel, about: str) -> RunStart:
    """Chooses what was not given (rate, epochs, precision, the metric that decides), and inspects the output folder.

    Args:
        about: a line on the model's weights, logged before training.

    Raises:
        InputError: the folder holds another run.
    """
    task_args = task.task_args
    run.choose_precision(args, model.config.hidden_size)
    resolve_by_width(args, model.config.hidden_size)
    schedule_options: Any = args.lr_scheduler_kwargs  # parsed by TrainingArguments
    check_schedule(args, schedule_options)  # now with its rate
    resolve_by_rows(args, task.inputs_per_epoch(), task_args.min_steps)
    _refuse_without_effect(args, task)
    line = choose_best_metric(args, task)

    run_start = run.start_run(args, identity_of(task, args, model), task_args)
    if not run_start.finished:
        length = f"{args.max_steps:,} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        rate = f"learning rate {args.learning_rate:g}, {length}"
        rows = ", ".join(f"{len(rows):,} {part}" for part, rows in task.parts.items())
        logger.info(f"{task.describe()}\n{rows} rows; {about}\n{rate}; {line}; {run.describe_machine(args)}")
    return run_start


def _refuse_without_effect(args: FineTuningArguments, task: DownstreamTask) -> None:
    """Refuses options that do nothing in this run."""
    refuse_stop_without_evaluation(args, task.task_args)
    if args.label_smoothing_factor and not task.smooths_labels:
        what = "the loss of this task has no smoothed form"
        raise InputError(what, where="--label_smoothing_factor", remedy="leave it out")


def refuse_stop_without_evaluation(args, task_args: TaskArguments) -> None:
    """Refuses --early_stopping_patience where the run is not evaluated while it trains."""
    if task_args.early_stopping_patience is not None and args.eval_strategy == "no":
        what, where = "the run is not evaluated while it trains", "--early_stopping_patience"
        raise InputError(what, where=where, remedy="give --eval_strategy epoch, or leave it out")


def choose_best_metric(args: FineTuningArguments, task: DownstreamTask) -> str:
    """Sets the metric that decides which weights are kept, where --metric_for_best_model is not given.

    With few validation rows many evaluations have an equal metric, and the first of them is far from the best model;
    the loss distinguishes them. (A tie of larger parts goes to the lower loss: `FineTuner`.)
    """
    rows = len(task.parts["validation"])
    if not args.load_best_model_at_end:
        return "the last weights are kept"
    if not args.best_metric_is_given:
        args.metric_for_best_model = "loss" if rows < FEW_ROWS else task.metric_names(task.task_args)[0]
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    if metric not in (known := (*task.metrics_of_rows(), "loss")):
        remedy = f"one of: {', '.join(dict.fromkeys(known))}"
        raise InputError(f"no metric {metric!r}", where="--metric_for_best_model", remedy=remedy)
    args.greater_is_better = not metric.endswith("loss")
    return f"the best {metric} on {rows:,} validation rows decides"


def order_of(args: FineTuningArguments) -> str:
    """The order of the rows, as run.json and the card name it.

    "group_by_length" itself, in a record, is the order of an earlier version (`run_fingerprint.RETIRED_VALUES`).
    """
    if args.train_sampling_strategy == "group_by_length":
        return "inputs of about one length share a batch; batches in random order"
    return args.train_sampling_strategy


def identity_of(task: DownstreamTask, args: FineTuningArguments, model: PreTrainedModel) -> dict:
    """The settings that distinguish a fine-tuning run from others (see `run_fingerprint`)."""
    task_args, config = task.task_args, model.config
    checkpoint = str(task_args.model_name_or_path)
    return {
        "checkpoint": checkpoint,
        "weights": None if task_args.from_scratch else weights_checksum(checkpoint),
        "from_scratch": task_args.from_scratch,
        "model": [config.num_hidden_layers, config.hidden_size, config.vocab_size],
        **task.fingerprint(),
        "vocabulary": tokenizer_checksum(task.tokenizer)[:16],
        "max_seq_length": task_args.max_seq_length,
        "seed": args.seed,
        "data_seed": args.data_seed,
        "global_batch": global_batch_size(args),
        "optimizer": optimizer_identity(args),
        "precision": precision_name(args),
        "schedule": schedule_identity(args),
        "label_smoothing": args.label_smoothing_factor or None,
        "neftune_noise": args.neftune_noise_alpha,
        "order": order_of(args),
        "fine_tuning": settings(task_args, _SHARED),
        **kept_weights(args, ends_early=task_args.early_stopping_patience is not None),
    }


# ---- train


class EarlyStop(TrainerCallback):
    """Ends the run after `patience` evaluations without a better one; it counts them in the log, and has no state."""

    def __init__(self, patience: int):
        self.patience = patience

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """Called before Trainer compares the metric with the best one, so all evaluations are compared here."""
        metric = f"eval_{str(args.metric_for_best_model or 'loss').removeprefix('eval_')}"
        sign = 1 if args.greater_is_better else -1
        by_step = {log["step"]: (sign * log[metric], -log["eval_loss"]) for log in state.log_history if metric in log}

        evaluations = [by_step[step] for step in sorted(by_step)]
        best = evaluations.index(max(evaluations))
        if len(evaluations) - 1 - best >= self.patience:
            control.should_training_stop = True


def make_trainer(task: DownstreamTask, args: FineTuningArguments, model: PreTrainedModel, collator) -> FineTuner:
    """The trainer of a run that `start_finetuning` has started."""
    patience = task.task_args.early_stopping_patience
    callbacks: list[TrainerCallback] = [] if patience is None else [EarlyStop(patience)]
    facts = {"identity": identity_of(task, args, model)}
    trainer = FineTuner(model, args, collator, task, task.tokenizer, callbacks, facts)
    use_log_lines(trainer)
    return trainer


def train_and_finish(trainer: FineTuner, run_start: RunStart) -> None:
    """Trains (or resumes), evaluates every part, saves and pushes the run, and prints its metrics."""
    task, args = trainer.task, trainer.args
    trained = trainer.train(resume_from_checkpoint=run_start.checkpoint)

    # Metrics: validation (the weights that are kept), its further parts, test
    metrics = {"eval": trainer.evaluate(), "test": {}}
    for name, value in task.chosen_options().items():
        setattr(trainer.network.config, name, value)
    predicted = _predict_other_parts(trainer)
    for part, found in predicted.items():
        metrics["test" if part.startswith("test") else "eval"] |= found.metrics

    if task.task_args.write_predictions and args.process_index == 0:
        tests = {part: found.values for part, found in predicted.items() if part.startswith("test")}
        for part, values in (tests or {"validation": trainer.kept["validation"]}).items():
            task.write_predictions(folder_of(args), part, values)

    has_metrics = "test" in predicted and "test_loss" in predicted["test"].metrics
    baselines = task.baselines() if args.process_index == 0 and task.task_args.evaluate_test else {}
    run.finish(
        trainer,
        trained.metrics,
        identity=trainer.facts["identity"],
        card=card_of(task, args, tested=has_metrics),
        push_to=run_start.push_to,
        metrics={name: values for name, values in metrics.items() if values},
        baselines=baselines,
    )
    if args.process_index == 0:
        together = {**metrics["eval"], **metrics["test"]}
        judged = predicted["test"].values if has_metrics else trainer.kept["validation"]
        lines = [task.report(together, baselines, judged), kept_and_last(trainer), f"model: {args.output_dir}"]
        print("\n".join(line for line in lines if line), flush=True)


def _predict_other_parts(trainer: FineTuner) -> dict[str, Predictions]:
    """Predictions and metrics of all parts but `train` and `validation`, of those that are asked for."""
    task_args = trainer.task.task_args
    found = {}
    for part in trainer.task.parts:
        is_test = part.startswith("test")
        if part in ("train", "validation") or (is_test and not task_args.evaluate_test):
            continue
        labelled = "labels" in trainer.task.encoded(part).column_names
        if labelled or task_args.write_predictions:
            found[part] = trainer.predict_part(part, part.replace("validation", "eval"))
    return found


def kept_and_last(trainer: FineTuner) -> str:
    """The validation metric of the weights that are kept, and that of the last ones; "" where they are the same."""
    args, state = trainer.args, trainer.state
    if not args.load_best_model_at_end or state.best_global_step is None:
        return ""
    name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    first = f"eval_{trainer.task.metric_names(trainer.task.task_args)[0]}"

    logs = [log for log in state.log_history if name in log and "eval_runtime" in log]
    last = max((log["step"] for log in logs), default=0)
    if last == state.best_global_step:
        return f"kept: the last weights, of step {last:,}"
    shown = dict.fromkeys(["eval_loss", name, first])
    metrics = {}
    for step in (state.best_global_step, last):
        log = next(log for log in logs if log["step"] == step)
        metrics[step] = ", ".join(f"{key.removeprefix('eval_')} {log[key]:.4f}" for key in shown if key in log)
    kept = state.best_global_step
    return f"validation: kept step {kept:,} ({metrics[kept]}); last step {last:,} ({metrics[last]})"


# ---- model card


def card_of(task: DownstreamTask, args: FineTuningArguments, *, tested: bool) -> Card:
    """The model card, without its metrics. It quotes none of the user's rows.

    Args:
        tested: there are metrics of the test rows.
    """
    task_args: TaskArguments = task.task_args
    base = str(task_args.model_name_or_path)

    return Card(
        title=Path(args.output_dir or "").name,
        pipeline_tag=task.pipeline_tag,
        command=command_line(),
        machine=run.describe_machine(args),
        source=task_args.dataset_source or task_args.dataset_name,
        license=task_args.dataset_license,
        language=task_args.language,
        base_model=None if task_args.from_scratch or Path(base).exists() else base,
        held_out=_held_out(task_args, args, tested),
        example="",
        introduction=task.introduction,
        stock=task.stock,
        usage=task.usage,
        limits=task.limits(),
        corpus={part: f"{len(rows):,} rows" for part, rows in task.parts.items()},
        training={
            "checkpoint": "none: random weights" if task_args.from_scratch else base,
            **task.settings(),
            **({"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}),
            "batch": global_batch_size(args),
            "learning rate": args.learning_rate,
            "warm-up": args.warmup_steps,
            "order": order_of(args),
            "longest input": task_args.max_seq_length,
            "seed": args.seed,
        },
    )


def _held_out(task_args: TaskArguments, args: FineTuningArguments, tested: bool) -> str:
    """Describes the data of the metrics: the test rows, or the validation rows where there are no test metrics."""
    if tested:
        return held_out_text(task_args.test_file, "--test_file", "rows held out of the same data")

    rows = held_out_text(task_args.validation_file, "--validation_file", "validation rows of the same data")
    return f"{rows}, which also chose the weights" if args.load_best_model_at_end else rows
