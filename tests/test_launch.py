"""What the commands print through a pipe, however they are launched: their own lines alone, and one error line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.recipe_runs import ROOT, write_inputs

from bert_hf.config.package_files import RECIPES

pytestmark = pytest.mark.slow
MESSAGES = ROOT / "src/bert_hf/finetuning/messages/spam.tsv"
TWO_RANKS = ["--config_file", str(ROOT / "configs/accelerate/cpu_ddp.yaml"), "--main_process_port", "0"]
LAUNCHERS = {
    "python": lambda script, command: [f"{RECIPES / script}.py"],
    "accelerate": lambda script, command: ["-m", "accelerate.commands.launch", *TWO_RANKS, f"{RECIPES / script}.py"],
    "bert-hf": lambda script, command: ["-m", "bert_hf.cli", command, "--num_processes", "2"],
}
OTHERS = ("Warning", "[transformers]", "DeepSpeed", "c10d", "it/s]", "Writing model", "REPORT", "site-packages", "\r")


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess:
    """A command in `folder`, both streams into pipes, where a carriage return stays one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, timeout=900)
    ended.stdout, ended.stderr = ended.stdout.decode(), ended.stderr.decode()
    return ended


def check_own_lines(ended: subprocess.CompletedProcess) -> None:
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line for line in ended.stdout.split("\n") if any(word in line for word in OTHERS)] == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_through_a_pipe(tmp_path, launcher):
    def words(script, command):
        return LAUNCHERS[launcher](script, command)

    # Pre-train
    write_inputs(tmp_path)
    small = ["--max_seq_length", "32", "--per_device_train_batch_size", "4", "--bf16", "false", "--use_cpu"]
    text = ["--train_file", "text.txt", "--vocab_size", "200", "--validation_split_percentage", "20"]
    steps = ["--config_name", "tiny.json", "--max_steps", "4", "--logging_steps", "2", "--cache_dir", "cache"]
    pretrain = [*words("pretrain", "pretrain"), *text, *steps, *small, "--output_dir", "pretrained"]
    pretrained = run(tmp_path, pretrain)
    check_own_lines(pretrained)
    starts = [line.split(":")[0].split(" of ")[0] for line in pretrained.stdout.splitlines()]
    assert [start for start in starts if start.startswith(("held", "step", "trained", "checkpoint", "next"))] == [
        "held out, before", "step 2", "step 4", "held out, after", "trained", "checkpoint", "next"
    ]  # fmt: skip

    # Fine-tune
    tuning = ["--train_file", str(MESSAGES), "--max_steps", "4", "--max_eval_samples", "20", *small]
    classify = [*words("finetune_classification", "classify"), *tuning, "--output_dir", "classified"]
    check_own_lines(run(tmp_path, [*classify, "--model_name_or_path", "pretrained"]))

    # Predict; no ranks
    predict = [f"{RECIPES}/predict.py"] if launcher == "python" else ["-m", "bert_hf.cli", "predict"]
    check_own_lines(run(tmp_path, [*predict, "classified", str(MESSAGES), "--output", "predictions.csv"]))
    assert (tmp_path / "predictions.csv").is_file()

    # An error
    failed = run(tmp_path, [*classify, "--overwrite_output_dir", "--model_name_or_path", "missing"])
    assert failed.stderr.count("error: ") == 1
    if launcher != "accelerate":  # which adds its own report
        assert failed.returncode == 2
        assert failed.stderr.splitlines()[-1].startswith("error: ")
        assert len(failed.stderr.splitlines()) == 1
