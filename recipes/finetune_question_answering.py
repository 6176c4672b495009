"""Fine-tune a pre-trained BERT to find answers in a context: start and end of a span (Devlin et al. 2019, 4.2, 4.3).

bert-hf answer --model_name_or_path runs/pretrain-default --train_file train-v1.1.json
bert-hf answer --config squad --model_name_or_path google-bert/bert-base-uncased --dataset_name rajpurkar/squad
bert-hf answer --model_name_or_path runs/pretrain --train_file train.json --test_file test.json --num_processes 2

In a clone: accelerate launch --config_file accelerate_config.yaml recipes/finetune_question_answering.py ...
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.finetuning.run import parse_finetuning, start_finetuning, train_and_finish
from bert_hf.finetuning.tasks.question_answering import QuestionAnsweringTask
from bert_hf.finetuning.trainer import FineTuner, load_task_model
from bert_hf.training.command import command


@command
def main(argv: list[str] | None = None) -> int:
    task_args, args = parse_finetuning(QuestionAnsweringTask, argv)

    # 1. Tokenizer: the checkpoint's own
    tokenizer = load_tokenizer(**task_args.tokenizer_options())

    # 2. Dataset: questions on contexts; a long context becomes several windows
    task = QuestionAnsweringTask(task_args, tokenizer)

    # 3. Collator: each batch is padded to its longest window
    collator = task.head.collate

    # 4. Model: stock transformers, the checkpoint and one new layer
    model, about = load_task_model(task, seed=args.seed)
    run = start_finetuning(task, args, model, about)
    if run.finished and args.do_train:
        return 0

    # 5. Trainer: trains, keeps the best weights by the validation questions, writes the predictions
    trainer = FineTuner(model, args, task=task, data_collator=collator, facts={"identity": run.identity})
    train_and_finish(trainer, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
