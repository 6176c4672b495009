"""Trains one step with the installed package, in an environment that holds nothing else of this project.

python -I .ci/installed_package.py CHECKOUT
"""

import math
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from datasets import Dataset
from transformers import BertConfig, TrainingArguments

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples, train_tokenizer

WORDS = "the small network reads short texts and learns which words were masked in them".split()


def check_contents(checkout: Path) -> None:
    """The package comes from the environment, whole: with its type marker and its data files."""
    package = files("bert_hf")
    assert Path(str(package)).is_relative_to(sys.prefix), package
    assert not [place for place in sys.path if Path(place).is_relative_to(checkout / "src")], sys.path
    assert (package / "py.typed").is_file()

    sources = {path.relative_to(checkout / "src/bert_hf") for path in (checkout / "src/bert_hf").rglob("*")}
    for source in sorted(sources):
        if source.suffix in (".py", ".tsv", ".md"):
            assert (package / str(source)).is_file(), f"missing in the wheel: {source}"


def texts() -> list[str]:
    """40 documents of 6 lines."""
    lines = [" ".join(WORDS[(first + word) % len(WORDS)] for word in range(6)) + "." for first in range(14)]
    return ["\n".join(lines[(document + line) % len(lines)] for line in range(6)) for document in range(40)]


def train_one_step() -> float:
    """The loss of one step, through public names only."""
    corpus = Dataset.from_dict({"text": texts()})
    tokenizer = train_tokenizer(corpus["text"], vocab_size=100)
    examples = PreTrainingExamples(corpus, tokenizer=tokenizer, max_seq_length=32)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **shape))

    args = TrainingArguments("run", max_steps=1, per_device_train_batch_size=4, use_cpu=True, report_to="none")
    trainer = PreTrainer(model, args, DataCollatorForPreTraining(tokenizer), examples, processing_class=tokenizer)
    return trainer.train().training_loss


def main(checkout: Path) -> int:
    check_contents(checkout)
    loss = train_one_step()
    assert math.isfinite(loss), loss
    print(f"bert_hf {version('bert-hf')}: one step from the installed wheel, loss {loss:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
