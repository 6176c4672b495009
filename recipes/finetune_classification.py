"""Fine-tune a pre-trained BERT to classify texts or pairs of texts: one new layer on [CLS] (Devlin et al. 2019, 4.1).

bert-hf classify --model_name_or_path runs/pretrain-default --train_file messages.csv
bert-hf classify --model_name_or_path google-bert/bert-base-uncased --task mrpc --data_dir glue/MRPC
bert-hf classify --model_name_or_path runs/pretrain --train_file a.csv --test_file b.csv --num_processes 2

In a clone: accelerate launch --config_file accelerate_config.yaml recipes/finetune_classification.py ...
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.finetuning.run import parse_finetuning, start_finetuning, train_and_finish
from bert_hf.finetuning.tasks.classification import ClassificationTask
from bert_hf.finetuning.trainer import FineTuner, load_task_model
from bert_hf.training.command import command


@command
def main(argv: list[str] | None = None) -> int:
    task_args, args = parse_finetuning(ClassificationTask, argv)

    # 1. Tokenizer: the checkpoint's own
    tokenizer = load_tokenizer(**task_args.tokenizer_options())

    # 2. Dataset: three parts; near-duplicates are in the same one
    task = ClassificationTask(task_args, tokenizer)

    # 3. Collator: each batch is padded to its longest text
    collator = task.head.collate

    # 4. Model: stock transformers, the checkpoint and one new layer
    model, about = load_task_model(task, seed=args.seed)
    run = start_finetuning(task, args, model, about)
    if run.finished and args.do_train:
        return 0

    # 5. Trainer: trains, keeps the best weights by the validation rows, evaluates them on the test rows
    trainer = FineTuner(model, args, task=task, data_collator=collator, facts={"identity": run.identity})
    train_and_finish(trainer, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
