"""What is tortured: a tiny network on a tiny corpus, sixty steps of everything a real run does; and its oracle.

An oracle is what an uninterrupted run leaves: bytes of the model, bytes of the last checkpoint's optimizer, the log
without clock and speed, the names of all files (of older checkpoints there may be fewer, but no half one). A run under
faults passes if it leaves the same.
"""

import hashlib
import json
import random
import shutil
from pathlib import Path

from faults.runs import Call, Plan, complete

from bert_hf.training import checkpointing

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
CLOCK = ("runtime", "per_second", "mfu", "_time")  # ends of the names of what the clock decides


class Subject:
    """The corpus, the flags and the oracles, in a folder of their own."""

    def __init__(self, work: Path):
        self.work = work
        self.corpus, self.shape, self.text = work / "corpus", work / "model.json", work / "text.txt"
        self.oracles: dict[str, dict] = {}

    def prepare(self) -> None:
        """Writes text, has `recipes/prepare.py` make a corpus of it, and writes the model's shape."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.text.write_text(generated_text())
        self.shape.write_text(json.dumps(SHAPE))
        flags = ["--vocab_size", "400", "--train_file", str(self.text), "--output_dir", str(self.corpus)]
        if not (self.corpus / "manifest.json").exists():
            code, output = complete(Plan(flags, self.work / "log-prepare", recipe="prepare"))
            if code != 0:
                raise RuntimeError(f"the corpus is not prepared: {code}: {output[-2000:]}")

    def words(self, folder: Path, **changes) -> list[str]:
        """The command line of the run in `folder`."""
        flags = {**FLAGS, "train_file": self.corpus, "config_name": self.shape, "output_dir": folder} | changes
        return [str(word) for name, value in flags.items() if value is not None for word in (f"--{name}", value)]

    def plan(self, folder: Path, log: str = "log", **changes) -> Plan:
        """A run in `folder`/run, whose output goes beside it."""
        return Plan(self.words(folder / "run", **changes), folder / log)

    def oracle(self, name: str = "forked", **changes) -> dict:
        """What the uninterrupted run leaves; made when it is first asked for, by one forked run."""
        if name not in self.oracles:
            folder = self.work / f"oracle-{name}"
            folder.mkdir(exist_ok=True)
            code, output = complete(self.plan(folder, **changes))
            if code != 0:
                raise RuntimeError(f"the uninterrupted run ends with {code}:\n{output[-3000:]}")
            self.oracles[name] = fingerprint(folder / "run")
        return self.oracles[name]

    def differs(self, run: Path, name: str = "forked", known: str | None = None) -> str | None:
        """What of a finished run is not the oracle's, in words; None: nothing."""
        try:
            found = fingerprint(run)
        except (OSError, ValueError, KeyError, IndexError) as error:
            return f"the run has no result: {type(error).__name__}: {error}"
        wrong = [key for key, value in self.oracles[name].items() if found[key] != value]
        if "names" in wrong:
            too_many = sorted(set(found["names"]) - set(self.oracles[name]["names"]))
            too_few = sorted(set(self.oracles[name]["names"]) - set(found["names"]))
            return f"{', '.join(wrong)} differ; too many: {too_many[:5]}, missing: {too_few[:5]}"
        return f"{', '.join(wrong)} differ" if wrong else half_checkpoint(run, known)

    def restart(self, folder: Path, name: str = "forked", log: str = "log-restart", **changes) -> str | None:
        """The same command once more: what is wrong with its end, None where it is the oracle's."""
        code, output = complete(self.plan(folder, log, **changes))
        if code != 0:
            return f"the restarted run ends with {code}: {last_line(output)}"
        return self.differs(folder / "run", name)

    def snapshot(self, step: int) -> Path:
        """A run that was killed when it was about to write the checkpoint of `step`; copy it before use."""
        folder = self.work / f"snapshot-{step}"
        if not (folder / "run").exists():
            making = self.work / f"making-{step}"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            plan = self.plan(making)
            plan.call = Call(making / "run", 1, "kill before", needle=f"checkpoint-{step}")
            code, output = complete(plan)
            if code != -9:
                raise RuntimeError(f"no kill came before checkpoint-{step}: {code}\n{output[-2000:]}")
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
    """What is compared of a finished run."""
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


def half_checkpoint(run: Path, known: str | None = None) -> str | None:
    """A checkpoint at or before the last step that does not verify, in words; not the one that was damaged by us."""
    last = json.loads((run / "trainer_state.json").read_text())["global_step"]
    for folder in checkpointing.checkpoints(run):
        try:
            if int(folder.name.split("-")[1]) <= last and folder.name != known:
                checkpointing.verify(folder)
        except checkpointing.DamagedCheckpoint as damage:
            return f"a half checkpoint is left: {damage}"
    return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "(no output)"
