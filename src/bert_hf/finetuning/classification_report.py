"""Saves the figures of a fine-tuned classifier, and prints them next to those of a baseline without a network."""

import numpy as np

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.finetuning.baselines import baseline_predictions
from bert_hf.finetuning.classification import classification_card, report_test
from bert_hf.finetuning.metrics import ClassificationMetric, confusion
from bert_hf.training import run
from bert_hf.training.command_line import command_line, program
from bert_hf.training.resumable_trainer import ResumableTrainer


def begin_classification(trainer: ResumableTrainer, parts: dict, names: tuple[str, ...]) -> None:
    """Prints rows, labels and machine of a run that begins."""
    sizes = ", ".join(f"{len(rows):,} {part}" for part, rows in parts.items())
    run.use_log_lines(trainer)
    run.log_rank0(trainer.args, f"{sizes} rows; labels {', '.join(names)}; {run.describe_machine(trainer.args)}")


def finish_classification(
    trainer: ResumableTrainer,
    asked: ClassificationArguments,
    parts: dict,
    names: tuple[str, ...],
    trained: dict,
    validated: dict,
    tested,
    push_to: str | None,
) -> None:
    """Saves the run, pushes it if asked, and prints test figures, confusion matrix and the next command.

    Args:
        parts: the rows of each split. names: of the classes.
        trained, validated: figures. tested: what `trainer.predict` returned for the test rows.
    """
    args = trainer.args
    guesses = [names.index(name) for name in baseline_predictions(parts["train"], parts["validation"], parts["test"])]
    # Labels in the order of the rows; `tested` has them in the order of the batches
    references = [names.index(label) for label in parts["test"].labels]
    figures = ClassificationMetric(len(names)).compute(predictions=guesses, references=references)
    baseline = {f"baseline_{name}": value for name, value in (figures or {}).items()}

    run.finish(
        trainer,
        trained,
        identity=trainer.facts["identity"],
        card=classification_card(args, asked, names, parts, run.describe_machine(args), command_line()),
        push_to=push_to,
        metrics={"eval": validated, "test": tested.metrics},
        baselines=baseline,
    )
    if args.process_index == 0:
        example = f"print(pipeline('text-classification', '{args.output_dir}')('You have won a prize.'))"
        print(
            report_test(tested.metrics, baseline),
            confusion(tested.label_ids, np.argmax(tested.predictions, axis=-1), names),
            f"model: {args.output_dir}",
            f'next: {program("python")} -c "from transformers import pipeline; {example}"',
            sep="\n",
            flush=True,
        )
