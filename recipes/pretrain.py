"""Pre-train BERT with masked-LM and next-sentence prediction (Devlin et al. 2019, section 3.1).

On what this machine has:  accelerate launch recipes/pretrain.py
On your text:              accelerate launch --config_file accelerate_config.yaml recipes/pretrain.py \
                               --config configs/pretrain/bert-mini-cpu.yaml --train_file 'corpus/*.txt'
"""

import sys
from pathlib import Path

from bert_hf import preflight
from bert_hf.config.arguments import (
    CorpusArguments,
    ExampleArguments,
    ModelArguments,
    PreTrainingArguments,
    TokenizerArguments,
    parse,
)
from bert_hf.data.collator import DataCollatorForPreTraining
from bert_hf.data.dataset import PreTrainingExamples
from bert_hf.data.prepare import split_for, tokenizer_for
from bert_hf.training import command_line, output_folder, run
from bert_hf.training.loss_curve import CurveReader
from bert_hf.training.pretraining import (
    HeldOutBefore,
    baselines,
    held_out_examples,
    hidden_size,
    make_model,
    planned_run,
    pretraining_card,
    pretraining_identity,
    report_corpus,
    report_heldout,
)
from bert_hf.training.step_budget import resolve_steps
from bert_hf.training.trainer import PreTrainer

ROOT = Path(__file__).parents[1]
DEFAULT = ROOT / "configs/pretrain/default.yaml"


@run.command
def main(argv: list[str] | None = None) -> int:
    classes = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
    asked = parse(classes, argv, str(DEFAULT), preflight.pretraining)
    if asked is None:  # --check
        return 0
    tokens, text, network, shape, args = asked

    # 1. Tokenizer: the named one, that of the prepared corpus, or one trained on the text
    tokens.tokenizer_name = tokens.tokenizer_name or network.model_name_or_path
    tokenizer = tokenizer_for(tokens, text)

    # 2. Dataset: sentences, and the pairs drawn from them; fixed pairs and masks for the held-out documents
    corpus, held_out = split_for(text, tokenizer)
    run.choose_precision(args, hidden_size(network))  # before steps are timed, for --max_hours
    phases = resolve_steps(args, shape, corpus, network, tokenizer)
    drawn = {"nsp": shape.nsp, "short_seq_probability": shape.short_seq_probability}
    examples = PreTrainingExamples(corpus, phases, seed=args.data_seed, batch_length=shape.max_seq_length, **drawn)
    evaluation, longer = held_out_examples(held_out, shape, phases, drawn)

    # 3. Collator: masks 80/10/10, keyed by the example
    collator = DataCollatorForPreTraining(
        tokenizer, mlm_probability=shape.mlm_probability, whole_word_mask=shape.whole_word_mask, nsp=shape.nsp
    )

    # 4. Model: from scratch, or from any BERT checkpoint
    model = make_model(network, shape, tokenizer, seed=args.seed)
    identity = pretraining_identity(args, model.config, tokenizer, (corpus, held_out), shape)
    begun = output_folder.start(args, identity)
    if begun.finished:
        return 0

    # 5. Trainer
    push_to = run.take_push(args)
    args.eval_on_start = begun.checkpoint is None
    trainer = PreTrainer(
        model, args, collator, examples, evaluation, tokenizer,
        longer_eval_datasets=longer, facts={"identity": identity},
    )  # fmt: skip
    run.log_rank0(
        args, f"{model.num_parameters():,} parameters, {corpus.tokens:,} tokens, {run.describe_machine(args)}"
    )
    if begun.checkpoint is None and args.process_index == 0:
        planned = planned_run(args, model, shape, from_scratch=network.model_name_or_path is None)
        report_corpus(corpus, evaluation.phases, collator, planned, seed=args.data_seed, **drawn)
    planned_tokens = args.max_steps * trainer.global_batch * shape.max_seq_length
    reference = baselines(evaluation, collator, corpus, planned_tokens)
    trainer.add_callback(HeldOutBefore(reference))
    trainer.add_callback(CurveReader(reference["unigram_mlm_loss"], trainer.global_batch))
    trained = trainer.train(resume_from_checkpoint=begun.checkpoint)
    after = trainer.evaluate()
    card = pretraining_card(
        args, text, shape, model, tokenizer, corpus, run.describe_machine(args), command_line.command_line(DEFAULT)
    )
    run.finish(
        trainer, trained.metrics, identity=identity, card=card, push_to=push_to, metrics={"eval": after},
        baselines=reference,
    )  # fmt: skip
    if args.process_index == 0:
        report_heldout("after", after, reference, longer)
    spam = {"model_name_or_path": args.output_dir, "output_dir": f"{Path(args.output_dir)}-spam"}
    launch = command_line.next_command(ROOT, "finetune_classification", "configs/finetune/spam-messages.yaml", **spam)
    run.log_rank0(args, "\n".join([f"checkpoint: {args.output_dir}", *card.limits, f"next: {launch}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
