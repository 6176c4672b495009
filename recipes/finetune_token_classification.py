"""Fine-tune a pre-trained BERT to label words, e.g. to find named entities (Devlin et al. 2019, section 5.3).

bert-hf tag --model_name_or_path runs/pretrain-default --train_file train.conll --validation_file dev.conll
bert-hf tag --model_name_or_path google-bert/bert-base-cased --config ner --train_file train.txt
bert-hf tag --model_name_or_path google-bert/bert-base-cased --train_file rows.jsonl --num_processes 2

In a clone: accelerate launch --config_file accelerate_config.yaml recipes/finetune_token_classification.py ...
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.finetuning.run import parse_finetuning, start_finetuning, train_and_finish
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask
from bert_hf.finetuning.trainer import FineTuner, load_task_model
from bert_hf.training.command import command


@command
def main(argv: list[str] | None = None) -> int:
    task_args, args = parse_finetuning(TokenClassificationTask, argv)

    # 1. Tokenizer: the checkpoint's own
    tokenizer = load_tokenizer(**task_args.tokenizer_options())

    # 2. Dataset: sentences of labelled words
    task = TokenClassificationTask(task_args, tokenizer)

    # 3. Collator: each batch is padded to its longest window
    collator = task.head.collate

    # 4. Model: stock transformers, the checkpoint and one new layer
    model, about = load_task_model(task, seed=args.seed)
    if task_args.feature_based:  # the checkpoint is frozen, a BiLSTM on its hidden states is trained
        model, about = task.make_frozen_network(model, args)
    run = start_finetuning(task, args, model, about)

    # 5. Trainer: trains, keeps the best weights by the validation sentences, evaluates them on the test sentences
    if not (run.finished and args.do_train):
        trainer = FineTuner(model, args, task=task, data_collator=collator, facts={"identity": run.identity})
        train_and_finish(trainer, run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
