"""Pre-train BERT with masked-LM and next-sentence prediction (Devlin et al. 2019, section 3.1).

bert-hf pretrain --config bert-mini-cpu --train_file 'corpus/*.txt'
bert-hf pretrain --config bert-base-paper --train_file runs/corpus --num_processes 8
bert-hf pretrain --model_name_or_path google-bert/bert-base-uncased --train_file 'corpus/*.txt'

In a clone, on the default corpus: accelerate launch --config_file accelerate_config.yaml recipes/pretrain.py
"""

import sys
from pathlib import Path

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.parser import parse
from bert_hf.data.corpus.requested_corpus import load_or_train_tokenizer, load_train_and_held_out
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.pretraining.examples import held_out_examples, training_examples
from bert_hf.pretraining.model import make_model
from bert_hf.pretraining.report import PreTrainingReport, evaluate_only
from bert_hf.pretraining.start import PRETRAINING_ARGUMENTS, check_held_out, check_pretraining, pretraining_identity
from bert_hf.pretraining.step_budget import StepBudget
from bert_hf.pretraining.trainer import PreTrainer
from bert_hf.training.command import command
from bert_hf.training.run import start_run

DEFAULT = Path(__file__).parents[1] / "configs/pretrain/default.yaml"


@command
def main(argv: list[str] | None = None) -> int:
    options = parse(PRETRAINING_ARGUMENTS, argv, str(DEFAULT), check_pretraining)
    tokenizer_args, corpus_args, model_args, example_args, args = options

    # 1. Tokenizer: the named one, the prepared corpus's, or one trained on the text
    tokenizer_args.tokenizer_name = tokenizer_args.tokenizer_name or model_args.model_name_or_path
    tokenizer = load_or_train_tokenizer(tokenizer_args, corpus_args)

    # 2. Dataset: sentence pairs of the corpus; fixed pairs and masks of the held-out documents
    corpus, held_out = load_train_and_held_out(corpus_args, tokenizer)
    phases = StepBudget(args, example_args, corpus, model_args, tokenizer).resolve()
    examples = training_examples(corpus, phases, example_args, args)
    evaluation = held_out_examples(held_out, example_args)

    # 3. Collator: masks 80/10/10, reproducible for each example
    collator = DataCollatorForPreTraining(tokenizer, **example_args.masking_options())

    # 4. Model: from scratch, or from any BERT checkpoint
    model = make_model(model_args, example_args, tokenizer, seed=args.seed)
    if not args.do_train:
        check_held_out(corpus_args, model_args.model_name_or_path, (corpus, held_out))
        evaluate_only(model, args, collator, evaluation)
        return 0
    identity = pretraining_identity(args, model.config, tokenizer, (corpus, held_out), example_args, model_args)
    run = start_run(args, identity, model_args, tokenizer_args, corpus_args)
    if run.finished:
        return 0

    # 5. Trainer: trains from the beginning or the newest checkpoint, evaluates, saves
    args.eval_on_start = run.checkpoint is None
    facts = {"identity": run.identity}
    trainer = PreTrainer(model, args, collator, examples, evaluation, tokenizer, facts=facts)
    named = tokenizer_args.tokenizer_name is not None and model_args.model_name_or_path is None
    report = PreTrainingReport(trainer, run, corpus_args, example_args, corpus, tokenizer_is_named=named)
    report.start()
    trained = trainer.train(resume_from_checkpoint=run.checkpoint)
    report.save_and_print(trained.metrics, trainer.evaluate())
    return 0


if __name__ == "__main__":
    sys.exit(main())
