"""One run in every layout: the same losses, gradient norms and weights as in one process, also after a kill.

python benchmarks/layouts.py [WORK]

Tiny, 20 steps of 8 sequences, clipping, dropout 0, fp32, AdamW and Muon, on CPU ranks. Each layout is run once from
beginning to end, and once killed by SIGKILL after step 5 and started again by the same command. Prints a table, then a
JSON line; ends with 1 where a bound is missed. Half an hour on two cores; the same command goes on in WORK.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

import psutil
import torch
import transformers
from safetensors.torch import load_file

from bert_hf.data.text.tokenization import save_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[1]
LAYOUTS = {  # machine, ranks, sequences of a batch, accumulation steps
    "1 × 8": ("accelerate_config", 1, 8, 1),
    "1 × 2, 4 accumulated": ("accelerate_config", 1, 2, 4),
    "2 × 4, DDP": ("configs/accelerate/cpu_ddp", 2, 4, 1),
    "4 × 2, DDP": ("configs/accelerate/cpu_ddp", 4, 2, 1),
    "2 × 4, FSDP2": ("configs/accelerate/cpu_fsdp2", 2, 4, 1),
    "2 × 4, ZeRO 1": ("configs/accelerate/cpu_zero1", 2, 4, 1),
    "2 × 4, ZeRO 2": ("configs/accelerate/cpu_zero2", 2, 4, 1),
    "2 × 4, ZeRO 3": ("configs/accelerate/cpu_zero3", 2, 4, 1),
}
BOUNDS = {"losses": 1e-6, "norms": 1e-5, "update": 1e-5}
OPTIONS = {
    "validation_split_percentage": 5, "max_eval_samples": 32, "max_seq_length": 64, "short_seq_probability": 0.5,
    "dropout": 0, "max_steps": 20, "learning_rate": 1e-3, "warmup_steps": 4, "max_grad_norm": 0.5, "bf16": "false",
    "logging_steps": 1, "save_steps": 5, "save_total_limit": 0, "disable_tqdm": "true",
}  # fmt: skip


def write_inputs(work: Path) -> None:
    """Text, a vocabulary, and the weights that every run begins with."""
    texts = list(topics.values())
    (work / "text.txt").write_text("\n\n".join(text.replace("\n\n", "\n") for text in texts))
    tokenizer = train_tokenizer(texts, vocab_size=1000)
    torch.manual_seed(0)
    config = transformers.BertConfig.from_json_file(ROOT / "configs/model/tiny.json")
    config.update({"vocab_size": len(tokenizer), "max_position_embeddings": 64})
    transformers.BertForPreTraining(config).save_pretrained(work / "start")
    save_tokenizer(tokenizer, work / "start")


def command(work: Path, folder: Path, layout: str, optim: str) -> list[str]:
    machine, ranks, micro, accumulation = LAYOUTS[layout]
    launcher = ["--config_file", f"{machine}.yaml", "--num_processes", str(ranks), "--main_process_port", "0"]
    options = {
        **OPTIONS, "output_dir": folder, "train_file": work / "text.txt", "cache_dir": work / "cache", "optim": optim,
        "model_name_or_path": work / "start", "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
    }  # fmt: skip
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher, "recipes/pretrain.py"]
    return [*command, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def run(words: list[str], log: Path, kill_at: Path | None = None) -> None:
    """Runs a command to its end, or until `kill_at` exists."""
    with open(log, "w") as file:
        process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file)
        while kill_at is not None and process.poll() is None and not kill_at.exists():
            time.sleep(0.005)
        if kill_at is not None:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.send_signal(signal.SIGKILL)
    if process.wait(600) and kill_at is None:
        sys.exit(log.read_text()[-3000:])


def run_layout(work: Path, layout: str, optim: str) -> dict:
    """What a whole run has logged and saved, and whether a killed one has ended with the same bytes."""
    name = f"{optim}-{list(LAYOUTS).index(layout)}"
    whole, killed = work / name, work / f"{name}-killed"
    if not (whole / "model.safetensors").exists():
        run(command(work, whole, layout, optim), work / f"{name}.log")
    if not (killed / "model.safetensors").exists():
        words = command(work, killed, layout, optim)
        run(words, work / f"{name}-killed.log", kill_at=killed / "checkpoint-5")
        assert not (killed / "model.safetensors").exists(), "killed too late"
        run(words, work / f"{name}-resumed.log")

    printed = (work / f"{name}.log").read_text().splitlines()
    history = json.loads((whole / "trainer_state.json").read_text())["log_history"]
    steps = [row for row in history if "grad_norm" in row]
    _, problems = transformers.BertForPreTraining.from_pretrained(whole, output_loading_info=True)

    return {
        "engine": next((line[8:].split(",")[0] for line in printed if line.startswith("engine: ")), "none"),
        "losses": torch.tensor([[row["mlm_loss"], row["nsp_loss"]] for row in steps]).double(),
        "norms": torch.tensor([row["grad_norm"] for row in steps]).double(),
        "weights": load_file(whole / "model.safetensors"),
        "same_bytes": (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes(),
        "loads": not any(problems.values()),
    }


def update(weights: dict, start: dict) -> torch.Tensor:
    return torch.cat([(weights[name] - value).flatten() for name, value in start.items()]).double()


def compare(result: dict, one: dict, start: dict) -> dict:
    """The largest relative differences from one process."""
    mine, its = (update(each["weights"], start) for each in (result, one))
    return {
        "engine": result["engine"],
        "losses": (result["losses"] / one["losses"] - 1).abs().max().item(),
        "norms": (result["norms"] / one["norms"] - 1).abs().max().item(),
        "update": ((mine - its).norm() / its.norm()).item(),
        "same_bytes": result["same_bytes"],
        "tensors": len(result["weights"]),
        "good": result["same_bytes"] and result["loads"] and result["weights"].keys() == start.keys(),
    }


def main() -> int:
    work = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if not (work / "start").exists():
        write_inputs(work)
    start = load_file(work / "start/model.safetensors")

    rows = []
    print("| layout | optimizer | engine | losses | norms | update | bytes after resume | tensors |")
    print("|---" * 8 + "|")
    for optim in ("adamw_torch_fused", "muon"):
        one = run_layout(work, "1 × 8", optim)
        for layout in [each for each in LAYOUTS if optim != "muon" or "ZeRO" not in each]:
            row = {"layout": layout, "optim": optim, **compare(run_layout(work, layout, optim), one, start)}
            rows.append({**row, "good": row["good"] and layout.endswith(row["engine"].replace("none", ""))})
            numbers = " | ".join(f"{row[name]:.1e}" for name in BOUNDS)
            same = "the same" if row["same_bytes"] else "**other**"
            print(f"| {layout} | {optim} | {row['engine']} | {numbers} | {same} | {row['tensors']} |", flush=True)
    print(json.dumps(rows))
    return 0 if all(row["good"] and all(row[name] <= bound for name, bound in BOUNDS.items()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
