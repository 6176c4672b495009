"""A search for the pre-training recipe of a small machine: many short runs at equal numbers of tokens.

python benchmarks/recipe_search.py --plan benchmarks/recipe_search.yaml --work_dir FOLDER \
    --train_file CORPUS --validation_file HELD_OUT --tokenizer_name TOKENIZER [--only 'tiny-*'] [--report]

The plan (YAML) names the runs in order: a stage, a number of tokens, and the flags of `recipes/pretrain.py` in which
the run differs from `base`; its `config` holds keys that replace those of the model JSON in `config_name`. Every run
is judged alike: the same held-out documents and vocabulary, 15 % masks, length 128, next-sentence pairs. The number of
steps follows from the tokens, so that a run with more sequences a step has fewer steps. Runs are made one after the
other, each in a new process and folder; called again, the search skips the finished ones and resumes the one that was
cut off. Several searches may work on one plan at the same time: a run that another one has begun is left to it.

After each run two tables are written: `recipe_search.csv` (a row a run) and `recipe_search_curves.csv` (held-out
figures along the way), and a picture of the curves. Seconds are CPU seconds of the run's process, resumed parts
together. This benchmark takes hours: the five-minute limit of the others does not apply.
"""

import csv
import fcntl
import fnmatch
import json
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import yaml
from matplotlib import pyplot

from bert_hf.config.arguments import MUON, option, parse
from bert_hf.errors import InputError, one_line_errors

HERE = Path(__file__).parent
RECIPE = HERE.parent / "recipes/pretrain.py"
FILL = 0.94  # real tokens of a row's length: short examples and document ends leave 6 % empty (docs/cost.md)
FIGURES = ("eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_accuracy")
COLUMNS = ("stage", "run", "tokens", "steps", *FIGURES, "unigram_mlm_loss", "cpu_seconds", "cpu", "changed")
CURVE_COLUMNS = ("run", "tokens", *FIGURES)


@dataclass
class SearchArguments:
    """Which runs of the plan are made, where, and on which text."""

    plan: str = option(str(HERE / "recipe_search.yaml"), "YAML: `base` flags, and `runs` in order.")
    work_dir: str | None = option(None, "Folder of the runs, outside the repository.")
    results_dir: str = option(str(HERE / "results"), "Folder of the tables and the picture.")
    train_file: str | None = option(None, "Folder made by recipes/prepare.py.")
    validation_file: str | None = option(None, "Held-out documents, likewise.")
    tokenizer_name: str | None = option(None, "Tokenizer of both.")
    only: str = option("*", "Names of the runs that are made, with wildcards.")
    threads: int = option(1, "Threads of a run.")
    report: bool = option(False, "Only gather what finished runs have left.")

    def __post_init__(self):
        given = (self.work_dir, self.train_file, self.validation_file, self.tokenizer_name)
        if not self.work_dir or (not self.report and None in given):
            raise ValueError("--work_dir, --train_file, --validation_file and --tokenizer_name must be given")


@dataclass
class Run:
    """One row of the plan."""

    name: str
    stage: str
    tokens: int  # real tokens that are trained on
    changed: dict  # flags that differ from the plan's `base`
    flags: dict  # all flags
    config: dict = field(default_factory=dict)  # keys of the model JSON that differ from that of `config_name`

    def phases(self) -> list[tuple[int, float]]:
        """(length, share of the steps) of each phase."""
        shorter = [entry.split(":") for entry in self.flags.get("seq_length_warmup", [])]
        shorter = [(int(length), float(share)) for length, share in shorter]
        rest = 1.0 - sum(share for _, share in shorter)
        return [*shorter, (self.flags["max_seq_length"], rest)]

    def batch(self) -> int:
        """Sequences in an optimizer step."""
        return self.flags["per_device_train_batch_size"] * self.flags.get("gradient_accumulation_steps", 1)

    def steps(self) -> int:
        """Steps in which `tokens` real tokens are seen."""
        tokens_per_step = sum(length * share for length, share in self.phases()) * self.batch() * FILL
        return round(self.tokens / tokens_per_step)

    def tokens_at(self, step: int) -> int:
        """Real tokens seen after a step."""
        seen, begin, total = 0.0, 0.0, self.steps()
        for length, share in self.phases():
            end = begin + share * total
            seen += max(0.0, min(step, end) - begin) * length * self.batch() * FILL
            begin = end
        return round(seen)


def read_plan(path: Path) -> list[Run]:
    """The runs of a plan.

    Raises:
        InputError: a name is used twice, or a run changes a model JSON that it does not name.
    """
    plan = yaml.safe_load(path.read_text(encoding="utf-8"))
    runs = []
    for stage, rows in plan["stages"].items():
        for name, row in rows.items():
            changed = dict(row)
            tokens = changed.pop("tokens", plan["tokens"])
            flags = {**_base(plan["base"], changed), **changed}
            config = flags.pop("config", {})
            if not isinstance(config, dict) or (config and "config_name" not in flags):
                what, remedy = f"{name}: config holds keys of the model JSON in config_name", "give both"
                raise InputError(what, where=path, remedy=remedy)
            runs.append(Run(name, stage, int(tokens), changed, flags, config))

    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"the name {twice[0]} is used twice", where=path, remedy="rename one")
    return runs


def _base(base: dict, changed: dict) -> dict:
    """The flags of `base` that have an effect in a run: pretrain.py refuses the others."""
    flags = {**base, **changed}
    useless = {"muon_learning_rate"} if flags.get("optim") != MUON else set()
    useless |= {"config_name"} if "model_name_or_path" in flags else set()
    return {name: value for name, value in base.items() if name not in useless}


def words_of(run: Run, options: SearchArguments, folder: Path) -> list[str]:
    """The command line of a run."""
    flags = {
        **run.flags,
        "max_steps": run.steps(),
        "train_file": options.train_file,
        "validation_file": options.validation_file,
        "tokenizer_name": options.tokenizer_name,
        "output_dir": str(folder),
    }
    if run.config:
        flags["config_name"] = str(_config_file(folder))
    words = []
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def _config_file(folder: Path) -> Path:
    """The model JSON of a run that changes some of its keys, next to the run's folder."""
    return folder.with_name(f"{folder.name}.config.json")


def _write_config(run: Run, folder: Path) -> None:
    shape = json.loads(Path(run.flags["config_name"]).read_text(encoding="utf-8"))
    _config_file(folder).write_text(json.dumps({**shape, **run.config}, indent=2) + "\n", encoding="utf-8")


def make(run: Run, options: SearchArguments) -> bool:
    """Starts or resumes a run; False if another process is running it.

    Raises:
        InputError: the run failed; its log is named.
    """
    folder = Path(options.work_dir) / run.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    if run.config:
        _write_config(run, folder)
    log = folder.with_name(f"{folder.name}.log")
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "false"}

    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(log, "a") as output:
            words = [sys.executable, str(RECIPE), *words_of(run, options, folder)]
            code = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, env=environment).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        _add_seconds(folder, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    if code:
        raise InputError(f"exit code {code}", where=log, remedy="read its last lines")
    return True


def _add_seconds(folder: Path, seconds: float) -> None:
    """CPU seconds of a run, over all its processes; what was cut off together with the search is not counted."""
    record = folder.with_name(f"{folder.name}.seconds.json")
    known = json.loads(record.read_text()) if record.is_file() else {"cpu_seconds": 0.0}
    record.write_text(json.dumps({"cpu_seconds": known["cpu_seconds"] + seconds, "cpu": cpu_name()}))


def cpu_name() -> str:
    """Name of this CPU in /proc/cpuinfo, and its 16-bit units."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    units = [unit for unit in ("amx_bf16", "avx512_bf16") if unit in fields.get("flags", "").split()]
    return f"{fields.get('model name', 'unknown')} ({', '.join(units) or 'no bf16'})"


def gather(runs: list[Run], work: Path) -> tuple[list[dict], list[dict]]:
    """A row of figures for each finished run, and the points of all curves."""
    rows, curves = [], []
    for run in runs:
        folder = work / run.name
        if not (folder / "all_results.json").is_file():
            continue
        metrics = json.loads((folder / "all_results.json").read_text())
        measured = folder.with_name(f"{folder.name}.seconds.json")  # not there if the search was killed before the run
        seconds = json.loads(measured.read_text()) if measured.is_file() else {}
        rows.append(
            {
                "stage": run.stage,
                "run": run.name,
                "tokens": run.tokens,
                "steps": run.steps(),
                **{name: _rounded(metrics.get(name)) for name in (*FIGURES, "unigram_mlm_loss")},
                "cpu_seconds": _rounded(seconds.get("cpu_seconds")),
                "cpu": seconds.get("cpu"),
                "changed": json.dumps(run.changed),
            }
        )
        for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]:
            if "eval_mlm_loss" in entry:
                values = {name: _rounded(entry.get(name)) for name in FIGURES}
                curves.append({"run": run.name, "tokens": run.tokens_at(entry["step"]), **values})
    return rows, curves


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def write(rows: list[dict], curves: list[dict], folder: Path) -> None:
    """Both tables and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns, content in (
        ("recipe_search.csv", COLUMNS, rows),
        ("recipe_search_curves.csv", CURVE_COLUMNS, curves),
    ):
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(content)
    if rows:
        draw(rows, curves, folder / "recipe_search.png")


def draw(rows: list[dict], curves: list[dict], path: Path) -> None:
    """Held-out MLM loss over tokens, a panel a stage."""
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    figure, panels = pyplot.subplots(
        1, len(stages), figsize=(5.5 * len(stages), 4.5), sharey=True, squeeze=False, layout="constrained"
    )
    for stage, panel in zip(stages, panels[0], strict=True):
        for row in (row for row in rows if row["stage"] == stage):
            points = [point for point in curves if point["run"] == row["run"]]
            tokens = [point["tokens"] / 1e6 for point in points]
            panel.plot(tokens, [point["eval_mlm_loss"] for point in points], label=row["run"])
        panel.axhline(rows[0]["unigram_mlm_loss"], color="grey", linestyle=":", label="unigram")
        panel.set(title=stage, xlabel="million tokens")
        panel.legend(fontsize="x-small")
    panels[0][0].set_ylabel("held-out MLM loss (nats)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((SearchArguments,), argv)
    runs = read_plan(Path(options.plan))
    work, results = Path(options.work_dir), Path(options.results_dir)

    for run in runs:
        finished = (work / run.name / "all_results.json").is_file()
        if options.report or finished or not fnmatch.fnmatch(run.name, options.only):
            continue
        print(f"{run.name}: {run.steps():,} steps", flush=True)
        if make(run, options):
            write(*gather(runs, work), results)

    rows, curves = gather(runs, work)
    write(rows, curves, results)
    for row in rows:
        print(f"{row['run']:32} {row['tokens']:>12,} {row['eval_mlm_loss']:7.3f} {row['eval_mlm_accuracy']:6.3f}")
    print(json.dumps({"runs": len(rows)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
