"""A window that takes longer to plan than the watchdog waits: does the run train, resume and end?

python benchmarks/slow_planning.py
python benchmarks/slow_planning.py --seconds 5 --hang_timeout 2 --workers 1

A tiny run (2 layers of 64) through two windows, by `recipes/pretrain.py`; a shim makes planning the second one take
`--seconds`. It is killed (-9) in the middle of planning, started again by the same command, and compared with a run
without the shim: bytes of the weights and of the optimizer, and the log without clock and speed. Prints a table, then
a JSON line; the exit code is 1 where something differs.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bert_hf.config.arguments import option, parse
from bert_hf.errors import one_line_errors

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from faults.subject import SHAPE, fingerprint, generated_text  # noqa: E402 - the tiny run of fault injection

STEPS = 60
# The recipe with a slow plan of the second window. Windows are small, so that the tiny corpus has two.
SHIM = """
import importlib.util, sys, time
from pathlib import Path
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.examples.dataset import PreTrainingExamples

recipe, seconds, mark, *words = sys.argv[1:]
make_plan = PreTrainingExamples._make_plan

def slow(self, phase, epoch, window):
    if window == 1 and float(seconds):
        Path(mark).touch()
        time.sleep(float(seconds))
    return make_plan(self, phase, epoch, window)

PreTrainingExamples._make_plan = slow
corpus_store.WINDOW_TOKENS = 8_000
spec = importlib.util.spec_from_file_location("recipe", recipe)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.exit(module.main(words))
"""


@dataclass
class SlowArguments:
    seconds: float = option(90.0, "Seconds that the second window takes to plan.")
    hang_timeout: float = option(50.0, "Seconds without progress after which the watchdog ends a run.")
    workers: int = option(0, "Processes that make batches.")


class Runs:
    """The runs of one comparison, in one folder."""

    def __init__(self, folder: Path, options: SlowArguments):
        self.folder, self.options = folder, options

    def prepare(self) -> None:
        """Writes text in two files, a corpus of it, and the model's shape."""
        for number in range(2):
            (self.folder / f"{number}.txt").write_text(generated_text(seed=number))
        (self.folder / "model.json").write_text(json.dumps(SHAPE))
        flags = {"train_file": f"{self.folder}/?.txt", "vocab_size": 400, "output_dir": self.folder / "corpus"}
        words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
        subprocess.run([sys.executable, str(ROOT / "recipes/prepare.py"), *words], check=True, capture_output=True)

    def start(self, name: str, seconds: float) -> subprocess.Popen:
        flags = {
            "train_file": self.folder / "corpus", "config_name": self.folder / "model.json", "max_seq_length": 32,
            "output_dir": self.folder / name, "max_steps": STEPS, "save_steps": 6, "max_eval_samples": 16,
            "logging_steps": 1, "per_device_train_batch_size": 32, "warmup_steps": 5, "bf16": "false",
            "report_to": "none", "disable_tqdm": "true", "use_cpu": "true", "eval_strategy": "no",
            "hang_timeout": self.options.hang_timeout, "dataloader_num_workers": self.options.workers,
        }  # fmt: skip
        words = [str(word) for flag, value in flags.items() for word in (f"--{flag}", value)]
        command = [sys.executable, "-c", SHIM, str(ROOT / "recipes/pretrain.py"), str(seconds), str(self.mark), *words]
        with open(self.folder / f"{name}.log", "a") as log:
            alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # tiny matrices: two threads would wait for each other
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=alone)

    @property
    def mark(self) -> Path:
        """A file that is there when planning the second window has begun."""
        return self.folder / "planning"

    def wait_for_planning(self, running: subprocess.Popen) -> None:
        while not self.mark.exists() and running.poll() is None:
            time.sleep(0.2)


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((SlowArguments,), argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), options)
        runs.prepare()

        # 1. Without the shim, for comparison
        begun = time.monotonic()
        code = runs.start("quick", 0).wait()
        rows.append(("not slowed", code, time.monotonic() - begun, ""))

        # 2. Slowed, and killed in the middle of planning
        begun = time.monotonic()
        running = runs.start("slow", options.seconds)
        runs.wait_for_planning(running)
        time.sleep(options.seconds / 2)
        running.send_signal(signal.SIGKILL)
        rows.append(("slowed, killed while it plans", running.wait(), time.monotonic() - begun, ""))

        # 3. The same command again
        begun = time.monotonic()
        code = runs.start("slow", options.seconds).wait()
        resumed = [line for line in (runs.folder / "slow.log").read_text().splitlines() if "resuming from" in line]
        rows.append(("the same command again", code, time.monotonic() - begun, resumed[-1].rpartition("/")[2]))

        # 4. What is left
        finished = all((runs.folder / name / "model.safetensors").exists() for name in ("quick", "slow"))
        left = [fingerprint(runs.folder / name) for name in ("quick", "slow")] if finished else [{}, {}]
        last = (runs.folder / "slow.log").read_text().splitlines()[-1]

    equal = {name: left[0][name] == left[1][name] for name in ("model", "optimizer", "history") if finished}
    for what, code, seconds, remark in rows:
        print(f"{what:32s} exit code {code:4d} {seconds:7.1f} s  {remark}")
    print(f"{'the same':32s} " + (", ".join(f"{name}: {value}" for name, value in equal.items()) or last))
    print(json.dumps({**vars(options), "codes": [row[1] for row in rows], "equal": equal}))
    return 0 if finished and all(equal.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
