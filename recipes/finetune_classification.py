"""Fine-tune a pre-trained BERT to classify texts: one new layer on [CLS] (Devlin et al. 2019, section 4).

accelerate launch --config_file accelerate_config.yaml recipes/finetune_classification.py \
    --config configs/finetune/spam.yaml --model_name_or_path runs/pretrain-default --train_file SMSSpamCollection.tsv
"""

import sys

import numpy as np
from transformers import DataCollatorWithPadding

from bert_hf import preflight
from bert_hf.config.arguments import ClassificationArguments, FineTuningArguments, parse
from bert_hf.data.tokenization import check_tokenizer, load_tokenizer
from bert_hf.finetuning.baselines import baseline_predictions
from bert_hf.finetuning.classification import (
    classification_card,
    classification_identity,
    make_classifier,
    report_test,
)
from bert_hf.finetuning.datasets import tokenized
from bert_hf.finetuning.metrics import ClassificationMetric, compute_from_logits, confusion
from bert_hf.finetuning.splits import load_splits
from bert_hf.training.command_line import command_line, program
from bert_hf.training.output_folder import start
from bert_hf.training.resumable_trainer import ResumableTrainer
from bert_hf.training.run import choose_precision, command, describe_machine, finish, log_rank0, take_push


@command
def main(argv: list[str] | None = None) -> int:
    given = parse((ClassificationArguments, FineTuningArguments), argv, preflight=preflight.classification)
    if given is None:  # --check
        return 0
    asked, args = given

    # 1. Tokenizer: the checkpoint's own
    tokenizer = load_tokenizer(asked.tokenizer_name or asked.model_name_or_path)

    # 2. Dataset: three parts, near-duplicates on one side
    parts, names = load_splits(asked)
    data = {part: tokenized(rows, names, tokenizer, asked.max_seq_length) for part, rows in parts.items()}

    # 3. Collator: each batch is padded to its longest text
    collator = DataCollatorWithPadding(tokenizer)

    # 4. Model: stock transformers, the checkpoint and one new layer
    model = make_classifier(asked, names, seed=args.seed)
    check_tokenizer(tokenizer, model.config.vocab_size)
    choose_precision(args, model.config.hidden_size)
    identity = classification_identity(args, asked, model.config, parts, names)
    begun = start(args, identity)
    if begun.finished:
        return 0

    # 5. Trainer: the best model on the validation rows is kept
    push_to = take_push(args)
    metric = ClassificationMetric(len(names))
    trainer = ResumableTrainer(
        model, args, collator, data["train"], data["validation"], tokenizer,
        compute_metrics=compute_from_logits(metric), facts={"identity": identity},
    )  # fmt: skip
    sizes = ", ".join(f"{len(rows):,} {part}" for part, rows in parts.items())
    log_rank0(args, f"{sizes} rows; labels {', '.join(names)}; {describe_machine(args)}")
    trained = trainer.train(resume_from_checkpoint=begun.checkpoint)
    validated = trainer.evaluate()
    tested = trainer.predict(data["test"], metric_key_prefix="test")
    guesses = baseline_predictions(parts["train"], parts["validation"], parts["test"])
    guessed = metric.compute(predictions=[names.index(g) for g in guesses], references=data["test"]["labels"])
    baseline = {f"baseline_{name}": value for name, value in guessed.items()}
    card = classification_card(args, asked, names, parts, describe_machine(args), command_line())
    finish(
        trainer, trained.metrics, identity=identity, card=card, push_to=push_to,
        metrics={"eval": validated, "test": tested.metrics}, baselines=baseline,
    )  # fmt: skip
    log_rank0(args, report_test(tested.metrics, baseline))
    log_rank0(args, confusion(tested.label_ids, np.argmax(tested.predictions, axis=-1), names))
    log_rank0(args, f"model: {args.output_dir}\nnext: {program('python')} -c \"from transformers import pipeline; "
              f"print(pipeline('text-classification', '{args.output_dir}')('You have won a prize.'))\"")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
