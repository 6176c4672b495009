"""Two hosts, each a launcher on this machine: what one of them cannot do is one line on both."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from helpers.child_processes import code, start_launcher
from helpers.recipe_runs import write_inputs
from tiny import tiny_tokenizer

ROOT = Path(__file__).parents[2]


def start(folder: Path, fault: str, *more: str) -> list[int]:
    """The launchers of both hosts, of one rank each; their outputs are log-0 and log-1."""
    write_inputs(folder)
    tiny_tokenizer().save_pretrained(folder / "tokenizer")
    (folder / "other").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    words = [
        "--train_file", f"{folder}/text.txt", "--config_name", f"{folder}/tiny.json", "--max_steps", "2",
        "--tokenizer_name", f"{folder}/tokenizer", "--max_seq_length", "32", "--per_device_train_batch_size", "4",
        "--bf16", "false", "--validation_split_percentage", "20", "--seed", "1", "--ddp_timeout", "60",
        "--output_dir", f"{folder}/run", "--cache_dir", f"{folder}/cache", *more,
    ]  # fmt: skip
    pids = []
    for number, host in enumerate(("host-a", "host-b")):
        machine = [
            "--config_file", str(ROOT / "configs/accelerate/cpu_ddp.yaml"), "--num_machines", "2",
            "--machine_rank", str(number), "--main_process_ip", "127.0.0.1", "--main_process_port", port,
        ]  # fmt: skip
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HOST": host, "OTHER": f"{folder}/other"}
        command = [*machine, str(ROOT / "tests/hosts_worker.py"), fault, "pretrain", *words]
        pids.append(start_launcher(command, folder / f"log-{number}", **environment))
    return pids


def lines_of(folder: Path, kind: str = "error: ") -> list[list[str]]:
    """The lines of both hosts that begin so."""
    logs = [(folder / f"log-{number}").read_text() for number in range(2)]
    return [[line for line in log.splitlines() if line.startswith(kind)] for log in logs]


def wait_for_line(log: Path, line: str) -> None:
    end = time.monotonic() + 60
    while not (log.exists() and line in log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)


FAULTS = {
    "text": "host-b, rank 1: missing.txt: no such file",
    "tokenizer": "host-b, rank 1: missing: ",
    "option": "host-b, rank 1: command line: argument --seed",
    "seed": "host-b, rank 1: seed differ (seed: 2, rank 0 has 1)",
    "cache": "host-b, rank 1: ",
    "folder": "host-b, rank 1: ",
    "version": "host-b, rank 1: bert_hf, tokenizers differ (bert_hf: 0.1.0, rank 0 has",
    "corpus": "host-b, rank 1: data differ",
}
SAMPLE = ("text",)


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in FAULTS]
)
def test_a_fault_of_one_host_is_one_line_on_both(tmp_path, fault):
    codes = [code(pid) for pid in start(tmp_path, fault)]
    expected, other = lines_of(tmp_path)
    assert all(codes)
    assert expected == other
    assert len(expected) == 1
    assert expected[0].startswith(f"error: {FAULTS[fault]}")
    assert not (tmp_path / "run/model.safetensors").exists()


def test_a_rank_that_waits_for_another_host_obeys_a_signal(tmp_path):
    first, second = start(tmp_path, "hangs")
    try:
        wait_for_line(tmp_path / "log-0", "waiting")
        time.sleep(1)  # it is in torch, where Python handles no signal
        os.kill(first, signal.SIGTERM)
        sent = time.monotonic()
        assert code(first) != 0
        assert time.monotonic() - sent < 10  # torchrun would kill it after 30
    finally:
        os.kill(second, signal.SIGTERM)
        code(second)
    stopped, _ = lines_of(tmp_path, "stopped: ")
    assert len(stopped) == 1
    assert stopped[0].startswith("stopped: SIGTERM")
