"""Bad input: every recipe answers with one line that names the place, exit code 2, and leaves nothing behind.

A case names files and flags; the test asserts what the line names, not its wording. Paths are relative to the folder
in which a case runs; `good/` in it holds good inputs.
"""

import contextlib
import gzip
import io
import json
import lzma
import os
import re
import shlex
from functools import lru_cache

import pytest
import torch
from helpers.recipe_runs import recipe
from transformers import BertConfig

from bert_hf import BertForPreTraining
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tokenization import load_tokenizer, save_tokenizer

main_of = lru_cache(recipe)

SHAPE = {
    "model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, ".", *(f"##{letter}" for letter in LETTERS)]
DOCUMENTS = [
    "\n".join(f"Document {d} says that item {d} follows item {s}." for s in range(2 + d % 5)) for d in range(20)
]
TEXT = "\n\n".join(DOCUMENTS)
WORDS = "red blue green black white grey brown pink gold lime teal navy rust plum sand jade".split()
ROWS = "".join(
    f"ham\tsee the {a} and {b} {c} one\nspam\twin a {b} or {c} {a} prize\n"
    for a, b, c in zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[7:] + WORDS[:7], strict=True)
)

PRETRAIN = "--config_name good/model.json --tokenizer_name good/vocab.txt --max_seq_length 32 --max_steps 2"
TUNE = "--model_name_or_path good/bert --max_seq_length 32 --max_steps 2"
FOLDER, PIPE = object(), object()  # in place of the content of a file


def with_text(flags: str = "") -> str:
    return f"{PRETRAIN} --train_file good/text.txt {flags}"


def with_rows(flags: str = "") -> str:
    return f"{TUNE} --train_file good/rows.tsv {flags}"


# kind of bad input → (recipe, flags, what the line has to name, files)
TEXTS = {
    "missing text": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt", {}),
    "a glob without a match": ("pretrain", f"{PRETRAIN} --train_file 'a/*.txt'", "a/*.txt", {}),
    "blank text": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt", {"a.txt": " \n\n \n"}),
    "text that is not UTF-8": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt:2:4",
        {"a.txt": b"one\ncaf\xe9\n"}),
    "truncated gzip named .txt": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt",
        {"a.txt": gzip.compress(TEXT.encode())[:-9]}),
    "truncated xz": ("pretrain", f"{PRETRAIN} --train_file a.txt.xz", "a.txt.xz",
        {"a.txt.xz": lzma.compress(TEXT.encode() * 9)[:-40]}),
    "an empty directory": ("pretrain", f"{PRETRAIN} --train_file a", "a", {"a": FOLDER}),
    "a named pipe": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt", {"a.txt": PIPE}),
    "one document": ("pretrain", f"{PRETRAIN} --train_file a.txt", "a.txt", {"a.txt": "One sentence.\nTwo.\n"}),
    "a file trained on and held out": ("pretrain", with_text("--validation_file good/text.txt"), "text.txt", {}),
    "a file of a folder trained on and held out": ("pretrain",
        f"{PRETRAIN} --train_file good --validation_file good/text.txt", "text.txt", {}),
    "no text for a vocabulary": ("train_tokenizer", "--train_file a.txt", "a.txt", {"a.txt": "\n"}),
    "no text for a corpus": ("prepare", "--train_file a.txt --tokenizer_name good/vocab.txt", "a.txt", {}),
    "a shard out of range": ("prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --shard 3/3",
        "--shard", {}),
    "a bad byte, over a vocabulary": ("train_tokenizer", "--train_file a.txt --overwrite_output_dir --output_dir old",
        "a.txt:2", {"a.txt": b"one two\n\xff\n", "old/tokenizer.json": "{}"}),
    "a vocabulary over a model's": ("train_tokenizer",
        "--train_file good/text.txt --overwrite_output_dir --output_dir old", "old",
        {"old/tokenizer.json": "{}", "old/config.json": "{}"}),
    "a wrong tokenizer, over a corpus": ("prepare",
        "--train_file good/text.txt --tokenizer_name v.txt --overwrite_output_dir --output_dir old", "v.txt",
        {"old/recipe.json": "{}", "old/manifest.json": "{}"}),
    "no output folder": ("prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir=",
        "output_dir", {}),
}  # fmt: skip
LABELLED = {
    "missing rows": ("finetune_classification", f"{TUNE} --train_file a.csv", "a.csv", {}),
    "one class": ("finetune_classification", f"{TUNE} --train_file a.csv", "a.csv",
        {"a.csv": "text,label\none,x\ntwo,x\n"}),
    "no checkpoint": ("finetune_classification", "--train_file good/rows.tsv", "--model_name_or_path", {}),
    "a checkpoint that is missing": ("finetune_classification", f"{with_rows()} --model_name_or_path ./nowhere",
        "nowhere", {}),
    "a checkpoint of pickles": ("finetune_classification",
        with_rows("--model_name_or_path m --tokenizer_name good/vocab.txt"), "pickles are not read",
        {"m/config.json": json.dumps(SHAPE), "m/pytorch_model.bin": b"x"}),
    "a word without a tag": ("finetune_token_classification", f"{TUNE} --train_file a.conll", "a.conll:2",
        {"a.conll": "one O\ntwo\n"}),
    "not SQuAD": ("finetune_question_answering", f"{TUNE} --doc_stride 8 --train_file a.json", "a.json",
        {"a.json": '{"data": 5}'}),
    "no right choice": ("finetune_multiple_choice", f"{TUNE} --train_file a.jsonl", "a.jsonl:1",
        {"a.jsonl": '{"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d"}\n'}),
    "a split of one class": ("split", "--train_file a.csv", "a.csv", {"a.csv": "text,label\na b,x\nc d,x\n"}),
    "a probe without data": ("probe", "--model_name_or_path good/bert", "--validation_file", {}),
    "features without texts": ("extract_features", "--model_name_or_path good/bert", "--train_file", {}),
    "a study without models": ("study", "", "--models", {}),
    "predictions that are missing": ("evaluate_squad", "a.json b.json", "a.json", {}),
}  # fmt: skip
OPTIONS = {
    "an unknown flag": ("pretrain", with_text("--max_stepz 3"), "max_steps'?", {}),
    "a length beyond the positions": ("pretrain", with_text("--max_seq_length 128"), "128", {}),
    "an unknown choice": ("pretrain", with_text("--lr_scheduler_type zigzag"), "zigzag", {}),
    "an unknown optimizer": ("pretrain", with_text("--optim adamm"), "adamm", {}),
    "a tracker that is missing": ("pretrain", with_text("--report_to zigzag"), "'bert-hf[wandb]'", {}),
    "an unknown metric": ("pretrain", with_text("--metric_for_best_model mlm_los"), "mlm_los", {}),
    "fp16 on a CPU": ("pretrain", with_text("--fp16 true --bf16 false --use_cpu true"), "--fp16", {}),
    "an option that would drop rows": ("finetune_classification", with_rows("--dataloader_drop_last true"),
        "--dataloader_drop_last", {}),
    "test rows only": ("finetune_classification", f"{TUNE} --do_train false --test_file good/rows.tsv",
        "`bert-hf evaluate`", {}),
    "best weights without evaluation": ("finetune_classification",
        with_rows("--load_best_model_at_end true --eval_strategy no"), "eval", {}),
    "a value of the wrong type in YAML": ("pretrain", with_text("--config run.yaml"), "run.yaml",
        {"run.yaml": "seed: x\n"}),
    "a missing YAML file": ("pretrain", with_text("--config run.yaml"), "run.yaml", {}),
    "no model": ("pretrain", "--train_file good/text.txt --tokenizer_name good/vocab.txt", "--config_name", {}),
    "a model JSON that is broken": ("pretrain", with_text("--config_name m.json"), "m.json", {"m.json": "{"}),
    "a missing tokenizer": ("pretrain", with_text("--tokenizer_name ./v.txt"), "v.txt", {}),
    "another tokenizer than the corpus's": ("pretrain",
        f"{PRETRAIN} --train_file good/corpus --tokenizer_name good/vocab.txt", "good/corpus", {}),
    "a missing checkpoint to resume": ("pretrain", with_text("--resume_from_checkpoint nope"), "nope", {}),
    "a folder that is not ours": ("pretrain", with_text(), "out", {"out/mine.txt": "keep"}),
    "a file in place of the folder": ("pretrain", with_text(), "out", {"out": "keep"}),
    "a negative seed": ("split", "--train_file good/rows.tsv --split_seed -1", "--split_seed", {}),
    "texts of one token": ("extract_features",
        "--model_name_or_path good/bert --train_file good/text.txt --max_seq_length 1", "--max_seq_length", {}),
    "no examples": ("probe",
        "--model_name_or_path good/bert --validation_file good/text.txt --max_eval_samples 0", "max_eval_samples", {}),
    "an unknown device": ("estimate", "--config_name good/model.json --max_steps 9 --max_seq_length 32 --device tpu",
        "tpu", {}),
}  # fmt: skip
CASES = TEXTS | LABELLED | OPTIONS


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Text, rows, a vocabulary, a model JSON, a checkpoint, and a corpus prepared with another vocabulary."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "text.txt").write_text(TEXT)
    (folder / "rows.tsv").write_text(ROWS)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "other.txt").write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    (folder / "model.json").write_text(json.dumps(SHAPE))

    torch.manual_seed(0)
    BertForPreTraining(BertConfig(**SHAPE)).save_pretrained(folder / "bert")
    save_tokenizer(load_tokenizer(folder / "vocab.txt"), folder / "bert")
    prepare([TextFile(str(folder / "text.txt"))], load_tokenizer(folder / "other.txt"), folder / "corpus")
    return folder


@pytest.fixture
def place(good, tmp_path, monkeypatch):
    """An empty working folder with a link to the good inputs; the home is elsewhere."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "good").symlink_to(good)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    return folder


def write(folder, files: dict) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is FOLDER:
            path.mkdir()
        elif content is PIPE:
            os.mkfifo(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder) -> dict:
    """Every path below a folder, with the bytes of the regular files."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize("kind", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(kind, place, capfd):
    name, flags, named, files = CASES[kind]
    write(place, files)
    before = contents(place)
    words = shlex.split(flags)
    if "--output_dir" not in flags and name not in ("estimate", "evaluate_squad"):
        words += ["--output_dir", "out"]

    with contextlib.redirect_stdout(io.StringIO()):
        code = main_of(name)(words)

    error = capfd.readouterr().err
    assert code == 2, error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert named in error, error
    assert "; " in error  # a hint
    assert contents(place) == before


GOOD = {
    "pretrain": with_text(),
    "finetune_classification": with_rows("--validation_file good/rows.tsv"),
    "train_tokenizer": "--train_file good/text.txt",
    "split": "--train_file good/rows.tsv",
}


@pytest.mark.parametrize("name", GOOD)
def test_check_reports_what_is_good_and_writes_nothing(name, place, capsys):
    before = contents(place)
    assert main_of(name)([*shlex.split(GOOD[name]), "--output_dir", "out", "--check", "true"]) == 0
    printed = capsys.readouterr().out.splitlines()
    others = re.compile("same words|no header")  # lines about the rows, from reading them
    assert all(line.startswith("  ") for line in printed if not others.search(line))
    assert contents(place) == before
