"""Pre-training on a corpus of many windows, which is read a window at a time: resumed, it ends with the same bytes."""

import json
from pathlib import Path

import pytest
from helpers.recipe_runs import TINY, cut_off, recipe

from bert_hf import PreTrainer
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.samplers import WINDOWS, generator

SHARDS, STEPS, BATCH, CUT_AT = 12, 28, 4, 16


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus of twelve shards, and a model shape."""
    folder = tmp_path_factory.mktemp("windows")
    for number in range(SHARDS):
        documents = [
            "\n".join(
                f"Topic {number} of {d} says in {s} that thing{d * 7 + s} follows {number + s}." for s in range(7)
            )
            for d in range(4)
        ]
        (folder / f"{number:02d}.txt").write_text("\n\n".join(documents))
    text = ["--train_file", str(folder / "*.txt")]
    assert recipe("train_tokenizer")([*text, "--vocab_size", "150", "--output_dir", str(folder / "tokenizer")]) == 0
    words = [*text, "--tokenizer_name", str(folder / "tokenizer"), "--output_dir", str(folder / "corpus")]
    assert recipe("prepare")(words) == 0
    (folder / "tiny.json").write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_windows(place):
    """Windows of one or two shards."""
    before, corpus_store.WINDOW_TOKENS = (
        corpus_store.WINDOW_TOKENS,
        Corpus(place / "corpus").manifest["tokens"] // SHARDS,
    )
    yield
    corpus_store.WINDOW_TOKENS = before


def pretrain(place, output, *words) -> int:
    return recipe("pretrain")(
        [
            "--config_name", str(place / "tiny.json"), "--train_file", str(place / "corpus"),
            "--cache_dir", str(place / f"cache-{output}"),
            "--validation_split_percentage", "30", "--max_seq_length", "32",
            "--max_steps", str(STEPS), "--per_device_train_batch_size", str(BATCH),
            "--logging_steps", "4", "--save_steps", str(CUT_AT), "--warmup_steps", "2", "--disable_tqdm", "true",
            "--bf16", "false", "--use_cpu", "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def results(run: Path) -> tuple:
    """The bytes of the model, and every figure of the log that is not a time."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    timed = ("runtime", "per_second", "mfu")
    kept = [{name: value for name, value in line.items() if not name.endswith(timed)} for line in history]
    assert sum("loss" in line for line in kept) == STEPS // 4
    return (run / "model.safetensors").read_bytes(), kept


def test_a_run_that_is_resumed_within_a_window_ends_with_the_same_bytes(place):
    assert len(Corpus(place / "corpus").windows(generator(42, WINDOWS, 0, 0))) > 5
    assert pretrain(place, "whole") == 0
    words = ("cut", "--dataloader_num_workers", "2")
    with cut_off(PreTrainer, CUT_AT):
        pretrain(place, *words)
    assert pretrain(place, *words) == 0
    assert results(place / "cut") == results(place / "whole")
