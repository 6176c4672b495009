"""Fine-tune a pre-trained BERT to classify texts: one new layer on [CLS] (Devlin et al. 2019, section 4).

accelerate launch --config_file accelerate_config.yaml recipes/finetune_classification.py \
    --config configs/finetune/spam.yaml --model_name_or_path runs/pretrain-default --train_file SMSSpamCollection.tsv
"""

import sys

from transformers import DataCollatorWithPadding

from bert_hf.data.tokenization import check_tokenizer, load_tokenizer
from bert_hf.finetuning.classification import classification_identity, make_classifier
from bert_hf.finetuning.classification_report import begin_classification, finish_classification
from bert_hf.finetuning.datasets import tokenized
from bert_hf.finetuning.metrics import ClassificationMetric, compute_from_logits
from bert_hf.finetuning.splits import load_splits
from bert_hf.preflight import parse_classification
from bert_hf.training.resumable_trainer import ResumableTrainer
from bert_hf.training.run import choose_precision, command, start_run


@command
def main(argv: list[str] | None = None) -> int:
    options = parse_classification(argv)
    if options is None:  # --check
        return 0
    asked, args = options

    # 1. Tokenizer: the checkpoint's own
    tokenizer = load_tokenizer(asked.tokenizer_name or asked.model_name_or_path)

    # 2. Dataset: three splits; near-duplicates are in the same one
    parts, names = load_splits(asked)
    data = {part: tokenized(rows, names, tokenizer, asked.max_seq_length) for part, rows in parts.items()}

    # 3. Collator: each batch is padded to its longest text
    collator = DataCollatorWithPadding(tokenizer)

    # 4. Model: stock transformers, the checkpoint and one new layer
    model = make_classifier(asked, names, seed=args.seed)
    check_tokenizer(tokenizer, model.config.vocab_size)
    choose_precision(args, model.config.hidden_size)
    identity = classification_identity(args, asked, model.config, parts, names)
    begun = start_run(args, identity)
    if begun.finished:
        return 0

    # 5. Trainer: trains, keeps the best model on the validation rows, evaluates it on the test rows
    trainer = ResumableTrainer(
        model, args, collator, data["train"], data["validation"], tokenizer,
        compute_metrics=compute_from_logits(ClassificationMetric(len(names))), facts={"identity": identity},
    )  # fmt: skip
    begin_classification(trainer, parts, names)
    trained = trainer.train(resume_from_checkpoint=begun.checkpoint)
    validated = trainer.evaluate()
    test_data = data["test"]
    tested = trainer.predict(test_data, metric_key_prefix="test")  # pyright: ignore[reportArgumentType] - as in train
    finish_classification(trainer, asked, parts, names, trained.metrics, validated, tested, begun.push_to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
