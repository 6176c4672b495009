"""How many rows per second a finished classifier predicts: ours and the stock pipeline, in one process.

python benchmarks/prediction_throughput.py                                    # the messages that come with the project
python benchmarks/prediction_throughput.py --test_file SMSSpamCollection.tsv

One stock classifier of random weights on both sides. Stock: `pipeline("text-classification", batch_size=32)`, which
pads each batch of neighbouring rows to its longest text. Ours: `bert_hf.predict` of the folder, loading included.
Sides take turns; figures are rows per CPU second, medians of `--pairs` turns after one that does not count. Prints a
table, the largest difference between scores, then a JSON line.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification

import bert_hf
from bert_hf.config.hardware import cpu_threads
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.data.text.input_files import expand_paths
from bert_hf.data.text.tables import choose_column, read_rows
from bert_hf.data.text.tokenization import save_tokenizer, train_tokenizer
from bert_hf.errors import one_line_errors

MESSAGES = Path(bert_hf.__file__).parent / "finetuning/messages/spam.tsv"
STOCK, OURS = "stock pipeline", "ours"


@dataclass
class PredictionThroughputArguments:
    test_file: list[str] | None = option(None, "Rows with a text column. Default: the messages of the project.")
    config_name: str = option("configs/model/mini.json", "Model JSON.")
    batch_size: int = option(32, "Rows in a batch of the pipeline.")
    max_rows: int = option(3_000, "Rows, at most.")
    pairs: int = option(3, "Turns of each side.")


def make_model(folder: str, texts: list[str], config_name: str) -> None:
    """Saves a classifier with random weights that gives different scores, and a tokenizer."""
    tokenizer = train_tokenizer(texts, vocab_size=8192)
    config = BertConfig.from_json_file(config_name)
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    tokenizer.model_max_length = 128  # as a fine-tuned folder records it
    save_tokenizer(tokenizer, folder)


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((PredictionThroughputArguments,), argv)
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(cpu_threads())
    rows = [row for path in expand_paths(options.test_file or [str(MESSAGES)]) for row in read_rows(path)]
    column = choose_column(rows[0])
    texts = [str(row.values[column]) for row in rows[: options.max_rows]]

    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, [str(row.values[column]) for row in rows], options.config_name)
        pipeline = transformers.pipeline("text-classification", folder, batch_size=options.batch_size)
        sides = {
            STOCK: lambda own: pipeline(own, truncation=True),
            OURS: lambda own: bert_hf.predict(folder, own),
        }
        rates: dict[str, list[float]] = {side: [] for side in sides}
        found = {}
        for turn in range(options.pairs + 1):
            for side, predict in sides.items():
                begin = time.process_time()
                found[side] = predict(texts)
                if turn:
                    rates[side].append(len(texts) / (time.process_time() - begin))

    difference = max(abs(a["score"] - b["score"]) for a, b in zip(found[STOCK], found[OURS], strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(rates[OURS], rates[STOCK], strict=True))
    print(f"{options.config_name}, {len(texts):,} rows, {torch.get_num_threads()} threads")
    result = {side: round(statistics.median(own), 1) for side, own in rates.items()}
    for side, rate in result.items():
        print(f"{side:16}{rate:10,.0f} rows per CPU second")
    print(f"{'ratio':16}{ratio:10.2f}; largest difference between scores {difference:.1e}")
    print(json.dumps({**vars(options), **result, "ratio": round(ratio, 2), "difference": difference}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
