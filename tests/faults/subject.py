"""The run under test: a tiny network on a tiny corpus, sixty steps with evaluation and saving; and its oracle.

The oracle is the result of an uninterrupted run: bytes of the model, bytes of the last checkpoint's optimizer, the log
without clock and speed, the names of all files (there may be fewer older checkpoints, but no incomplete one). A run
under faults passes if its result is the same.
"""

import hashlib
import json
import random
import shutil
from pathlib import Path

from bert_hf.training.checkpoints import checkpoint_files
from faults.runs import Call, Plan, complete

STEPS, EVERY = 60, 6  # steps of a run; evaluated and saved every so many
SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "vocab_size": 400,
}  # fmt: skip
FLAGS = {
    "logging_steps": 1, "eval_strategy": "steps", "eval_steps": EVERY, "save_steps": EVERY, "save_total_limit": 3,
    "max_steps": STEPS, "per_device_train_batch_size": 8, "max_seq_length": 32, "max_eval_samples": 16,
    "warmup_steps": 5, "bf16": "false", "report_to": "none", "disable_tqdm": "true", "use_cpu": "true",
}  # fmt: skip
CLOCK = ("runtime", "per_second", "mfu", "_time")  # suffixes of figures that depend on the clock


class Subject:
    """Corpus, flags and oracles of the run under test, in one folder."""

    def __init__(self, work: Path):
        self.work = work
        self.corpus, self.shape, self.text = work / "corpus", work / "model.json", work / "text.txt"
        self.oracles: dict[str, dict] = {}

    def prepare(self) -> None:
        """Writes a text, prepares a corpus from it with `recipes/prepare.py`, and writes the model's configuration."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.text.write_text(generated_text())
        self.shape.write_text(json.dumps(SHAPE))
        flags = ["--vocab_size", "400", "--train_file", str(self.text), "--output_dir", str(self.corpus)]
        if not (self.corpus / "manifest.json").exists():
            code, output = complete(Plan(flags, self.work / "log-prepare", recipe="prepare"))
            if code != 0:
                raise RuntimeError(f"preparing the corpus exits with {code}: {output[-2000:]}")

    def words(self, folder: Path, **changes) -> list[str]:
        """The command line of the run in `folder`."""
        flags = {**FLAGS, "train_file": self.corpus, "config_name": self.shape, "output_dir": folder} | changes
        return [str(word) for name, value in flags.items() if value is not None for word in (f"--{name}", value)]

    def plan(self, folder: Path, log: str = "log", **changes) -> Plan:
        """A run in `folder`/run, whose output is a file in `folder`."""
        return Plan(self.words(folder / "run", **changes), folder / log)

    def oracle(self, name: str = "forked", **changes) -> dict:
        """Fingerprint of the uninterrupted run, which is forked at the first call."""
        if name not in self.oracles:
            folder = self.work / f"oracle-{name}"
            folder.mkdir(exist_ok=True)
            code, output = complete(self.plan(folder, **changes))
            if code != 0:
                raise RuntimeError(f"the uninterrupted run exits with {code}:\n{output[-3000:]}")
            self.oracles[name] = fingerprint(folder / "run")
        return self.oracles[name]

    def differs(self, run: Path, name: str = "forked", known: str | None = None) -> str | None:
        """Describes the differences of a finished run from the oracle; None: they are equal."""
        try:
            found = fingerprint(run)
        except (OSError, ValueError, KeyError, IndexError) as error:
            return f"the run has no complete result: {type(error).__name__}: {error}"

        wrong = [key for key, value in self.oracles[name].items() if found[key] != value]
        if "names" in wrong:
            too_many = sorted(set(found["names"]) - set(self.oracles[name]["names"]))
            too_few = sorted(set(self.oracles[name]["names"]) - set(found["names"]))
            return f"{', '.join(wrong)} differ; too many: {too_many[:5]}, missing: {too_few[:5]}"
        return f"{', '.join(wrong)} differ" if wrong else incomplete_checkpoint(run, known)

    def restart(self, folder: Path, name: str = "forked", log: str = "log-restart", **changes) -> str | None:
        """Repeats the command; returns the fault of its end, None if it equals the oracle."""
        code, output = complete(self.plan(folder, log, **changes))
        if code != 0:
            return f"the repeated command exits with {code}: {last_line(output)}"
        return self.differs(folder / "run", name)

    def snapshot(self, step: int) -> Path:
        """A run that was killed just before it wrote the checkpoint of `step`; copy it before use."""
        folder = self.work / f"snapshot-{step}"
        if not (folder / "run").exists():
            making = self.work / f"making-{step}"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            plan = self.plan(making)
            plan.call = Call(making / "run", 1, "kill before", needle=f"checkpoint-{step}")
            code, output = complete(plan)
            if code != -9:
                raise RuntimeError(f"the run was not killed before checkpoint-{step}: {code}\n{output[-2000:]}")
            making.rename(folder)
        return folder

    def copied(self, folder: Path, snapshot: Path) -> Path:
        shutil.copytree(snapshot / "run", folder / "run", symlinks=True)
        return folder


def generated_text(documents: int = 300, seed: int = 0) -> str:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(300)]
    texts = []
    for _ in range(documents):
        lines = [" ".join(rng.choices(words, k=rng.randint(4, 10))).capitalize() for _ in range(rng.randint(2, 8))]
        texts.append(".\n".join(lines) + ".")
    return "\n\n".join(texts) + "\n"


def fingerprint(run: Path) -> dict:
    """The parts of a finished run that are compared."""
    state = json.loads((run / "trainer_state.json").read_text())
    last = f"checkpoint-{state['global_step']}"
    history = [{k: v for k, v in row.items() if not k.endswith(CLOCK)} for row in state["log_history"]]
    names = [str(path.relative_to(run)) for path in run.rglob("*")]
    return {
        "model": _sha256(run / "model.safetensors"),
        "optimizer": _sha256(run / last / "optimizer.safetensors"),
        "history": hashlib.sha256(json.dumps(history, sort_keys=True).encode()).hexdigest(),
        "names": sorted(name for name in names if not name.startswith(("checkpoint-", "stacks-")) or last in name),
    }


def incomplete_checkpoint(run: Path, known: str | None = None) -> str | None:
    """Describes a checkpoint up to the last step that does not verify; `known`: one that was damaged on purpose."""
    last = json.loads((run / "trainer_state.json").read_text())["global_step"]
    for folder in checkpoint_files.checkpoints(run):
        try:
            if int(folder.name.split("-")[1]) <= last and folder.name != known:
                checkpoint_files.verify(folder)
        except checkpoint_files.DamagedCheckpoint as damage:
            return f"an incomplete checkpoint is left: {damage}"
    return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "(no output)"
