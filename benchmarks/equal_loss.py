"""Do the fast paths learn the same? Loss curves of ours and of the stock network over the same batches.

python benchmarks/equal_loss.py                                  # the embedded default corpus
python benchmarks/equal_loss.py --train_file runs/corpus

Four runs of `--steps` steps from the same weights: the stock network and ours, with dropout 0 and with the model's
0.1, all in `PreTrainer`, whose loss is the same for both. Without it the curves must lie on top of each other: what
differs is the order in which sums are rounded. With it, the draws differ, and the curves may differ by what another
seed makes (the fifth run: ours, another seed of dropout). Prints the mean loss of every tenth of the run, the largest
distance of a single step, then a JSON line. Three minutes on 2 cores.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass

import torch
import transformers
from transformers import BertConfig, TrainerCallback

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples
from bert_hf.config.arguments import CorpusArguments, TokenizerArguments
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus, load_or_train_tokenizer
from bert_hf.data.examples.samplers import Phase
from bert_hf.errors import one_line_errors


@dataclass
class CurveArguments:
    config_name: str = option("configs/model/tiny.json", "Model JSON.")
    max_seq_length: int = option(128, "Tokens in a row.")
    batch_size: int = option(32, "Rows in a batch.")
    steps: int = option(200, "Steps of each run.")
    bf16: bool = option(False, "bf16 autocast in all runs.")


class Losses(TrainerCallback):
    def __init__(self):
        self.curve = []

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "loss" in logs:
            self.curve.append(logs["loss"])


def run(
    options: CurveArguments, config: BertConfig, examples, collator, ours: bool, dropout: float, seed: int
) -> list:
    """The loss of every step."""
    config = BertConfig.from_dict({**config.to_dict(), "architectures": None})
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    weights = BertForPreTraining(config).state_dict()
    model = (BertForPreTraining if ours else transformers.BertForPreTraining)(config)
    model.load_state_dict(weights)
    losses = Losses()
    with tempfile.TemporaryDirectory() as folder:
        args = PreTrainingArguments(
            output_dir=folder, max_steps=options.steps, per_device_train_batch_size=options.batch_size,
            bf16=options.bf16, learning_rate=1e-3, warmup_steps=0.1, logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True, seed=seed,
        )  # fmt: skip
        trainer = PreTrainer(model, args, collator, examples, callbacks=[losses])
        trainer.remove_callback(transformers.PrinterCallback)
        torch.manual_seed(seed)
        trainer.train()
    return losses.curve


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    tokens, text, options = parse((TokenizerArguments, CorpusArguments, CurveArguments), argv)
    transformers.utils.logging.set_verbosity_error()
    tokenizer = load_or_train_tokenizer(tokens, text)
    examples = PreTrainingExamples(
        load_or_prepare_corpus(text, tokenizer, text.train_file), (Phase(options.max_seq_length, None),)
    )
    collator = DataCollatorForPreTraining(tokenizer)
    config = BertConfig.from_json_file(options.config_name)
    config.vocab_size, paper = len(tokenizer), config.hidden_dropout_prob
    runs = {"stock, dropout 0": (False, 0.0, 1), "ours, dropout 0": (True, 0.0, 1)}
    runs |= {f"stock, dropout {paper}": (False, paper, 1), f"ours, dropout {paper}": (True, paper, 1)}
    runs[f"ours, dropout {paper}, another seed"] = (True, paper, 2)
    curves = {name: run(options, config, examples, collator, *settings) for name, settings in runs.items()}
    tenth = max(1, options.steps // 10)
    ends = range(tenth, options.steps + 1, tenth)
    print(
        f"{options.config_name}, {options.batch_size} × {options.max_seq_length}, {'bf16' if options.bf16 else 'fp32'}"
    )
    print(f"{'mean loss up to step':32}" + "".join(f"{end:>9}" for end in ends))
    for name, curve in curves.items():
        print(f"{name:32}" + "".join(f"{statistics.fmean(curve[end - tenth : end]):9.4f}" for end in ends))
    names = list(runs)
    distances = {}
    for one, other in ((0, 1), (2, 3), (3, 4)):
        apart = [abs(a - b) for a, b in zip(curves[names[one]], curves[names[other]], strict=True)]
        what, largest, mean = f"{names[one]} – {names[other]}", max(apart), statistics.fmean(apart)
        distances[what] = {"largest": largest, "mean": mean}
        print(f"{what}: a step differs by {largest:.1e} at most, {mean:.1e} on average")
    print(json.dumps({**vars(options), "distances": distances, "curves": curves}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
