"""Runs all commands in one process: vocabulary, corpus, pre-training, resume, fine-tuning, push.

    HF_ENDPOINT=… HF_TOKEN=… python tests/security_worker.py FOLDER

FOLDER holds `text.txt` and `tiny.json`.
"""

import json
import runpy
import shutil
import sys
from pathlib import Path

from helpers.many_runs import prepare_for_many_runs

ROOT = Path(__file__).parents[1]
SMALL = ["--disable_tqdm", "true", "--bf16", "false", "--use_cpu", "--report_to", "none"]


def recipe(name: str, *words) -> None:
    code = runpy.run_path(str(ROOT / f"recipes/{name}.py"))["main"](list(map(str, words)))
    assert code == 0, (name, code)


def main(place: Path) -> None:
    prepare_for_many_runs()
    text, tokenizer, corpus, run = (place / name for name in ("text.txt", "tokenizer", "corpus", "run"))
    recipe("train_tokenizer", "--train_file", text, "--vocab_size", 200, "--output_dir", tokenizer)
    recipe("prepare", "--train_file", text, "--tokenizer_name", tokenizer, "--num_proc", 2, "--output_dir", corpus)
    pretrain = [
        "--config_name", place / "tiny.json", "--train_file", corpus, "--validation_split_percentage", 20,
        "--max_seq_length", 32, "--max_steps", 4, "--per_device_train_batch_size", 4, "--logging_steps", 2,
        "--save_steps", 2, "--dataloader_num_workers", 1, "--output_dir", run, *SMALL,
    ]  # fmt: skip
    recipe("pretrain", *pretrain)
    record = json.loads((run / "run.json").read_text())  # as if interrupted after two steps
    (run / "run.json").write_text(json.dumps({**record, "finished": False}))
    shutil.rmtree(run / "checkpoint-4")
    recipe("pretrain", *pretrain)
    recipe(
        "finetune_classification", "--config", ROOT / "configs/finetune/spam-messages.yaml",
        "--train_file", ROOT / "src/bert_hf/finetuning/messages/spam.tsv",
        "--model_name_or_path", run, "--num_train_epochs", 1, "--min_steps", 0,
        "--output_dir", place / "spam", "--push_to_hub", "true", "--hub_model_id", "me/spam", *SMALL,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
