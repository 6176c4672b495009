"""Runs the examples of launch/ on two hosts of this machine, breaks them, and compares what they end with.

    make cluster                                          # all parts
    python tests/cluster/run_cluster.py --only hosts      # torchrun.sh on two hosts
    python tests/cluster/run_cluster.py --only slurm

A case passes if every host printed the expected lines and the run ended, if need be after the same command was given
again, with the bytes of an uninterrupted run on two ranks. A part that cannot run is skipped with its reason. The exit
code is 1 if a case failed.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.subject import Subject
from helpers.corpora import everything

from cluster import hosts

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable)
ENVIRONMENT = {
    **os.environ, "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
    "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "TOKENIZERS_PARALLELISM": "false",
    "HOSTS": "2", "RANKS": "1", "FIRST_HOST": "host1",
}  # fmt: skip
TIMEOUT = 30  # --ddp_timeout of the runs, seconds


class Bench:
    """Corpus, reference and folders of the cases."""

    def __init__(self, work: Path):
        self.work = work
        self.subject = Subject(work / "subject")
        self.subject.prepare()
        self.reference = ""

    def words(self, folder: Path, **changes) -> list[str]:
        """The command line of a run of sixty steps in `folder`."""
        changes = {"ddp_timeout": TIMEOUT, "per_device_train_batch_size": 4} | changes
        return ["recipes/pretrain.py", *self.subject.words(folder, **changes)]

    def folder(self, name: str) -> Path:
        """An empty folder for a case's run."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def run_reference(self, **changes) -> str:
        """The bytes of an uninterrupted run on two ranks of one host."""
        folder = self.folder("reference")
        words = [*on_torchrun(), *self.words(folder, **changes)]
        subprocess.run(words, env=ENVIRONMENT, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=600)
        return digest(folder)

    def same(self, folder: Path) -> bool:
        """True if a run ended with the bytes of the reference."""
        return digest(folder) == self.reference


def digest(folder: Path) -> str:
    model = folder / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest() if model.exists() else "no model"


def on_torchrun() -> list[str]:
    return ["torchrun", "--nproc-per-node", "2", "--master-port", "29400"]


def steps(folder: Path) -> int:
    """The step of the newest checkpoint of a run."""
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*[0-9]")), default=0)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


# ---- two hosts under torchrun


class TwoHosts:
    """The processes of `launch/torchrun.sh` on both hosts, and what they print."""

    def __init__(self, bench: Bench, words: list[str]):
        self.logs = [bench.work / f"{name}.log" for name in hosts.HOSTS]
        self.began = time.monotonic()
        self.processes = []
        for name, log in zip(hosts.HOSTS, self.logs, strict=True):
            command = hosts.on_host(name, ["launch/torchrun.sh", *words])
            with log.open("w") as output:
                started = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
            self.processes.append(started)

    def wait(self, seconds: float = 300, names: tuple[str, ...] = hosts.HOSTS) -> list[list[str]]:
        """Waits for the hosts' commands; returns the lines `error: …` and `stopped: …` of each host."""
        for name, process in zip(hosts.HOSTS, self.processes, strict=True):
            if name in names:
                process.wait(max(1.0, self.began + seconds - time.monotonic()))
        return self.lines()

    def lines(self) -> list[list[str]]:
        found = []
        for log in self.logs:
            lines = log.read_text().splitlines()
            found.append([line for line in lines if line.startswith(("error:", "stopped:"))])
        return found

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        for name in hosts.HOSTS:
            hosts.kill_host(name)


@contextlib.contextmanager
def two_hosts(*args, **kwargs) -> Iterator[TwoHosts]:
    running = TwoHosts(*args, **kwargs)
    try:
        yield running
    finally:
        running.stop()


def completes(bench: Bench, folder: Path) -> None:
    """The command, given once more on both hosts, ends with the reference's bytes."""
    with two_hosts(bench, bench.words(folder)) as running:
        lines = running.wait()
    assert bench.same(folder), f"other bytes, or no model: {lines}"


def uninterrupted(bench: Bench) -> str:
    folder = bench.folder("hosts")
    completes(bench, folder)
    return "the bytes of one host with two ranks"


def killed_host(bench: Bench) -> str:
    folder = bench.folder("killed")
    with two_hosts(bench, bench.words(folder)) as running:
        wait_for(lambda: steps(folder) >= 12, 120, "step 12")
        hosts.kill_host("host2")
        began = time.monotonic()
        lines = running.wait(names=("host1",))[0]
        seconds = time.monotonic() - began
    assert len(lines) == 1, lines
    assert seconds < 90, seconds
    completes(bench, folder)
    return f"one line after {seconds:.0f} s, then the same bytes"


def pulled_cable(bench: Bench) -> str:
    folder = bench.folder("cable")
    with two_hosts(bench, bench.words(folder)) as running:
        wait_for(lambda: steps(folder) >= 12, 120, "step 12")
        hosts.pull_cable(True)
        began = time.monotonic()
        try:  # torchrun itself waits five minutes more for the other host
            wait_for(lambda: all(running.lines()), TIMEOUT + 60, "a line on each host")
        finally:
            hosts.pull_cable(False)
        seconds = time.monotonic() - began
    lines = running.lines()
    assert [len(each) for each in lines] == [1, 1], lines
    completes(bench, folder)
    return f"one line on each host within {seconds:.0f} s (--ddp_timeout {TIMEOUT}), then the same bytes"


# ---- Slurm


def submit(bench: Bench, folder: Path, *flags: str, **changes) -> str:
    """Queues launch/slurm.sbatch for two hosts of one task; returns the job's number."""
    Path(f"{folder}.log").unlink(missing_ok=True)
    options = ["--gpus-per-node=0", "--ntasks-per-node=1", "--cpus-per-task=1", "--parsable", *flags]
    words = ["sbatch", *options, f"--output={folder}.log", "launch/slurm.sbatch", *bench.words(folder, **changes)]
    done = subprocess.run(
        hosts.on_host("host1", words), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(job: str) -> str:
    shown = hosts.slurm("scontrol", "--oneliner", "show", "job", job)
    return shown.partition("JobState=")[2].split(" ")[0]


def restarts(job: str) -> int:
    shown = hosts.slurm("scontrol", "--oneliner", "show", "job", job)
    return int(shown.partition("Restarts=")[2].split(" ")[0] or 0)


def finishes(job: str, folder: Path, reference: str, seconds: float = 400) -> str:
    log = Path(f"{folder}.log")
    ends = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"}
    wait_for(lambda: state(job) in ends, seconds, f"the end of job {job}: {state(job)}")
    assert state(job) == "COMPLETED", f"{state(job)}: {log.read_text()[-2000:]}"
    assert digest(folder) == reference, f"other bytes: {log.read_text()[-2000:]}"
    return log.read_text()


def slurm_requeue(bench: Bench) -> str:
    folder = bench.folder("slurm-term")
    job = submit(bench, folder)
    wait_for(lambda: steps(folder) >= 12, 120, "step 12")
    hosts.slurm("scancel", "--signal=TERM", job)
    log = finishes(job, folder, bench.reference)
    assert log.count("stopped: SIGTERM") == 2, log  # a line of each host
    return f"requeued {restarts(job)} time, the same bytes"


def slurm_time_limit(bench: Bench) -> str:
    folder = bench.folder("slurm-usr1")
    longer = {"max_steps": 3000, "save_steps": 3000, "eval_steps": 3000}  # longer than a minute
    reference = bench.run_reference(**longer)
    job = submit(bench, folder, "--time=1", "--signal=USR1@20", **longer)
    wait_for(lambda: restarts(job) > 0, 180, "the requeued job")
    # One stop is enough, however slow the machine is
    hosts.slurm("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    log = finishes(job, folder, reference, 900)
    assert "stopped: SIGUSR1" in log, log
    return f"requeued {restarts(job)} times, the same bytes"


def slurm_killed_host(bench: Bench) -> str:
    folder = bench.folder("slurm-killed")
    job = submit(bench, folder)
    wait_for(lambda: steps(folder) >= 12, 120, "step 12")
    hosts.kill_host("host2")
    wait_for(lambda: restarts(job) > 0, 120, "the requeued job")
    hosts.start_slurm_daemon("host2")
    finishes(job, folder, bench.reference)
    return f"requeued by Slurm {restarts(job)} time, the same bytes"


def prepared_in_parts(bench: Bench) -> str:
    folder, whole = bench.folder("parts"), bench.folder("whole")
    texts = bench.folder("texts")
    texts.mkdir()
    documents = bench.subject.text.read_text().split("\n\n")
    for number in range(4):
        (texts / f"{number}.txt").write_text("\n\n".join(documents[number::4]))
    train = ["recipes/train_tokenizer.py", "--train_file", f"{texts}/*.txt", "--vocab_size", "400"]
    train += ["--output_dir", f"{texts}/tokenizer"]
    subprocess.run([sys.executable, *train], cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
    words = ["--train_file", f"{texts}/*.txt", "--tokenizer_name", f"{texts}/tokenizer"]

    array = ["sbatch", "--wait", "--array=0-1", "--cpus-per-task=1", f"--output={texts}/%a.log"]
    command = [*array, "launch/prepare_array.sbatch", *words, "--output_dir", str(folder)]
    done = subprocess.run(
        hosts.on_host("host1", command), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, [log.read_text() for log in texts.glob("*.log")]

    one = [sys.executable, "recipes/prepare.py", *words, "--output_dir", str(whole)]
    subprocess.run(one, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
    assert everything(folder) == everything(whole)
    return "two tasks of an array: the bytes of one process"


# ---- the parts

PARTS: dict[str, list[Callable[[Bench], str]]] = {
    "hosts": [uninterrupted, killed_host, pulled_cable],
    "slurm": [slurm_requeue, slurm_time_limit, slurm_killed_host, prepared_in_parts],
}


def obstacle(part: str) -> str | None:
    """Why a part cannot run here."""
    if os.geteuid() != 0:
        return "needs root"
    programs = ["ip", "unshare", "nsenter"]
    programs += ["slurmctld", "slurmd", "munged", "sbatch"] if part == "slurm" else []
    missing = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--case", help="only the case of this name")
    parser.add_argument("--work", type=Path, default=Path("/tmp/bert_hf-cluster"), help="working folder")
    flags = parser.parse_args()

    if os.geteuid() == 0 and shutil.which("unshare"):
        hosts.reenter_in_namespaces()
        flags.work.mkdir(parents=True, exist_ok=True)
        hosts.connect_hosts(flags.work)
    bench = Bench(flags.work)
    bench.reference = bench.run_reference()

    failed = 0
    for part in flags.only:
        if reason := obstacle(part):
            print(f"{part}: skipped, {reason}")
            continue
        if part == "slurm":
            hosts.start_slurm()
        for case in PARTS[part]:
            if flags.case in (None, case.__name__):
                failed += not passes(part, case, bench)
    return min(failed, 1)


def passes(part: str, case: Callable[[Bench], str], bench: Bench) -> bool:
    """Runs a case and prints its line."""
    began = time.monotonic()
    try:
        detail, passed = case(bench), True
    except (AssertionError, subprocess.TimeoutExpired) as error:
        detail, passed = f"{type(error).__name__}: {error}", False
    seconds = time.monotonic() - began
    print(f"{part:6} {case.__name__:18} {'passed' if passed else 'FAILED'} {seconds:5.0f} s  {detail}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
