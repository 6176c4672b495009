"""Pre-training from a corpus behind a URL: the same bytes as from the folder, also after server errors and resume."""

import functools
import gzip
import json
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from helpers.recipe_runs import TINY, cut_off, recipe
from hub_server import HubServer

from bert_hf import PreTrainer
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import WINDOWS, Phase, RunSampler, generator
from bert_hf.data.text.sources import TextFile

SHARDS, STEPS, BATCH, CUT_AT = 12, 28, 4, 16


class Server:
    """A folder on 127.0.0.1. `requests`: the paths that were asked for. `faults`: file → what is sent in its place."""

    def __init__(self, folder: Path):
        self.requests: list[str] = []
        self.faults: dict[str, str] = {}
        handler = functools.partial(type("Handler", (_Handler,), {"server_of": self}), directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def shards(self) -> list[int]:
        """The shards that were sent, in order."""
        return [int(path[-11:-6]) for path in self.requests if path.endswith(".arrow")]


class _Handler(SimpleHTTPRequestHandler):
    server_of: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server_of.requests.append(self.path)
        fault = self.server_of.faults.get(self.path.rsplit("/", 1)[1])
        if fault is None:
            return super().do_GET()
        data = bytearray(Path(self.translate_path(self.path)).read_bytes())
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == "damaged":
            data[len(data) // 2] ^= 1
            self.wfile.write(data)
        else:  # it dies in the middle of it
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.close()


def test_a_change_of_equal_size_is_seen(tmp_path):
    with Server(tmp_path) as server:
        source, checksums = TextFile(f"{server.address}/a.txt"), []
        for number, text in enumerate(("one", "two")):
            (tmp_path / "a.txt").write_text(text)
            os.utime(tmp_path / "a.txt", (number, number))
            checksums.append(source.checksum())
    assert checksums[0] != checksums[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus of twelve shards, a model shape, and the run on it here."""
    folder = tmp_path_factory.mktemp("streaming")
    for number in range(SHARDS):
        documents = [
            "\n".join(
                f"Topic {number} of {d} says in {s} that thing{d * 7 + s} follows {number + s}." for s in range(7)
            )
            for d in range(4)
        ]
        (folder / f"{number:02d}.txt").write_text("\n\n".join(documents))
    text = ["--train_file", str(folder / "*.txt")]
    assert recipe("train_tokenizer")([*text, "--vocab_size", "150", "--output_dir", str(folder / "tokenizer")]) == 0
    words = [*text, "--tokenizer_name", str(folder / "tokenizer"), "--output_dir", str(folder / "corpus")]
    assert recipe("prepare")(words) == 0
    (folder / "tiny.json").write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_windows(place):
    """Windows of one or two shards."""
    before, corpus_store.WINDOW_TOKENS = (
        corpus_store.WINDOW_TOKENS,
        Corpus(place / "corpus").manifest["tokens"] // SHARDS,
    )
    yield
    corpus_store.WINDOW_TOKENS = before


@pytest.fixture(scope="module")
def expected(place):
    assert pretrain(place, place / "corpus", "here") == 0
    return results(place / "here")


@pytest.fixture
def server(place):
    with Server(place) as server:
        yield server


def pretrain(place, corpus, output, *words) -> int:
    return recipe("pretrain")(
        [
            "--config_name", str(place / "tiny.json"), "--train_file", str(corpus),
            "--cache_dir", str(place / f"cache-{output}"),
            "--validation_split_percentage", "30", "--max_seq_length", "32",
            "--max_steps", str(STEPS), "--per_device_train_batch_size", str(BATCH),
            "--logging_steps", "4", "--save_steps", str(CUT_AT), "--warmup_steps", "2", "--disable_tqdm", "true",
            "--bf16", "false", "--use_cpu", "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def results(run: Path) -> tuple:
    """The bytes of the model, and every figure of the log that is not a time."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    timed = ("runtime", "per_second", "mfu")
    kept = [{name: value for name, value in line.items() if not name.endswith(timed)} for line in history]
    assert sum("loss" in line for line in kept) == STEPS // 4
    return (run / "model.safetensors").read_bytes(), kept


def windows(place, epoch: int) -> list[tuple[int, ...]]:
    return Corpus(place / "corpus").windows(generator(42, WINDOWS, 0, epoch))


def test_the_run_is_that_on_the_local_folder(place, server, expected):
    assert len(windows(place, 0)) > 5
    assert pretrain(place, f"{server.address}/corpus", "far") == 0
    assert results(place / "far") == expected
    assert sorted(server.shards) == list(range(SHARDS))  # each once, in two epochs


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_resumed_run_fetches_no_shard_again(place, server, expected, capsys, workers):
    words = [f"{server.address}/corpus", f"cut{workers}", "--dataloader_num_workers", workers]
    with cut_off(PreTrainer, CUT_AT):
        pretrain(place, *words)
    capsys.readouterr()
    fresh_cache = ["--cache_dir", str(place / f"another-machine-{workers}")]
    server.faults = {f"data-{shard:05d}.arrow": "dies" for shard in needed(place) - set(head(place))}
    assert pretrain(place, *words, *fresh_cache) == 2  # found by a worker, if there is one
    assert one_error(capsys).startswith(f"error: {server.address}/corpus/data-")
    server.faults = {}
    server.requests.clear()
    assert pretrain(place, *words, *fresh_cache) == 0
    assert results(place / f"cut{workers}") == expected
    assert set(server.shards) <= needed(place) < set(range(SHARDS))


def needed(place) -> set[int]:
    """The first window, and those of the examples after the cut."""
    corpus, _ = Corpus(place / "corpus").split(30)
    examples = PreTrainingExamples(corpus, (Phase(32, None),))
    order = RunSampler(examples.phases, examples.window_length, STEPS * BATCH, 42, start=CUT_AT * BATCH)
    numbers = sorted({(number.epoch, number.window) for number in order})
    every = [window for epoch in range(2) for window in windows(place, epoch)]
    first, last = (sum(len(windows(place, e)) for e in range(epoch)) + w for epoch, w in (numbers[0], numbers[-1]))
    return {shard for window in [head(place), *every[first : last + 1]] for shard in window}


def head(place) -> tuple[int, ...]:
    return Corpus(place / "corpus").windows()[0]


def one_error(capsys) -> str:
    """The one line of a fault."""
    said = capsys.readouterr().err
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if "error" in line.lower()]
    assert line.endswith("; check the address and the network")
    return line


@pytest.mark.parametrize("fault", ["damaged", "dies"])
def test_a_server_error_is_one_line_and_the_same_command_resumes(place, server, expected, capsys, fault):
    order = windows(place, 0)
    assert not set(order[5]) & {shard for window in order[:5] for shard in window}
    server.faults = {f"data-{shard:05d}.arrow": fault for shard in order[5]}
    words = [f"{server.address}/corpus", f"fault-{fault}", "--save_steps", "4", "--save_total_limit", "0"]
    assert pretrain(place, *words) == 2
    error = one_error(capsys)
    assert error.startswith(f"error: {server.address}/corpus/data-{order[5][0]:05d}.arrow: cannot be read: ")
    assert ("checksum" in error) == (fault == "damaged")
    assert (place / f"fault-{fault}/checkpoint-4").is_dir()
    server.faults = {}
    assert pretrain(place, *words) == 0
    assert "resuming from" in capsys.readouterr().out
    assert results(place / f"fault-{fault}") == expected


def test_a_missing_server_is_one_line(place, capsys):
    with Server(place) as server:
        address = server.address
    assert pretrain(place, f"{address}/corpus", "gone") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {address}/corpus/manifest.json: cannot be read: ")
    assert error.count("\n") == 1


def test_raw_text_behind_a_url(place, server, capsys):
    documents = [f"Thing {d} says that it follows. And topic {d} follows thing {d}." for d in range(30)]
    rows = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    (place / "rows.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    words = ["--tokenizer_name", str(place / "tokenizer"), "--output_dir", str(place / "far-text")]
    assert recipe("prepare")(["--train_file", f"{server.address}/rows.jsonl.gz", *words]) == 0
    assert "30 documents" in capsys.readouterr().out
    server.faults = {"rows.jsonl.gz": "dies"}
    words[-1] = str(place / "far-text-2")
    assert recipe("prepare")(["--train_file", f"{server.address}/rows.jsonl.gz", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {server.address}/rows.jsonl.gz: ")
    assert error.count("\n") == 1


def test_shards_from_the_hub(place, expected, monkeypatch, capsys):
    with HubServer("hf_x") as hub:
        files = [path for path in (place / "corpus").rglob("*") if path.is_file()]
        hub.repos["me/corpus"] = {str(path.relative_to(place / "corpus")): path.read_bytes() for path in files}
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        assert pretrain(place, "hf://datasets/me/corpus", "hub") == 0
        huggingface_hub.HfFileSystem.clear_instance_cache()
    assert results(place / "hub") == expected
    assert "arrow" not in capsys.readouterr().err  # no bars
