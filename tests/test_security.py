"""Security: no file is unpickled, no path leaves its folder, no token is disclosed (invariant 8; SECURITY.md).

S1 an audit of all commands · S2 pickles in every place · S3 a canary for a token · S4 paths that lead elsewhere.
Contents of foreign checkpoints are tested in tests/models/test_loading.py.
"""

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.recipe_runs import write_inputs
from helpers.trainer_runs import make
from hub_server import HubServer

from bert_hf import InputError, load_tokenizer
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.data.corpus.shards import MANIFEST
from bert_hf.data.corpus.store import Corpus
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.publishing.card import Card, write_card

ROOT = Path(__file__).parents[1]
TOKEN = "hf_canary0123456789"


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def write_pickle(path: Path, marker: Path) -> None:
    """Writes a pickle with a side effect: in the zip that torch writes, or plain for the suffix .pkl."""
    if path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(Evil(marker)))
    else:
        torch.save({"evil": Evil(marker)}, path)


def test_the_pickle_has_its_effect(tmp_path):
    """Otherwise the tests below would prove nothing."""
    write_pickle(tmp_path / "x.bin", tmp_path / "marker")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert (tmp_path / "marker").exists()


# ---- S1, S3: an audit of all commands


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """Runs all commands in one process with an audit hook: what it opened, printed, wrote and sent."""
    folder = tmp_path_factory.mktemp("audit")
    place, home, log = folder / "place", folder / "home", folder / "audit.jsonl"
    place.mkdir()
    write_inputs(place)
    with HubServer(TOKEN) as server:
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/auditing"), str(ROOT / "src")]),
            "AUDIT_LOG": str(log), "AUDIT_NO_CODE": f"{place}:{home}", "HF_HOME": str(home), "HF_TOKEN": TOKEN,
            "HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/security_worker.py"), str(place)],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from" in done.stdout
    assert "pushed to" in done.stdout
    events = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    return {"folder": folder, "events": events, "output": done.stdout + done.stderr, "server": server}


# Modules that may unpickle: data that comes through a pipe from a process of this run, never a file.
PIPES = {
    "multiprocessing/queues.py": "batches from DataLoader workers; tasks for workers that prepare text",
    "multiprocessing/connection.py": "results of workers that prepare text",
    "loky/backend/popen_loky_posix.py": "start of workers that prepare text",
}


def test_s1_only_pipes_between_our_own_processes_carry_pickles(audit):
    unpickled = {(event[1], event[2]) for event in audit["events"] if event[0] == "pickle"}
    assert unpickled, "the workers were not audited"
    assert not {(name, caller) for name, caller in unpickled if not caller.endswith(tuple(PIPES))}


def test_s1_no_pickle_file_is_opened_and_no_code_comes_from_a_cache(audit):
    assert not [event for event in audit["events"] if event[0] in ("open", "exec")]


def test_s1_the_only_connection_is_the_push_to_the_hub(audit):
    """Sockets whose name is a path belong to DataLoader workers."""
    addresses = {event[1] for event in audit["events"] if event[0] == "connect"}
    server = audit["server"]
    port = server.address.rsplit(":", 1)[1]
    assert {address for address in addresses if not address.startswith("'/")} == {f"('127.0.0.1', {port})"}
    # The client also asks for a list of programs that may have started it, to name them in its requests.
    requests = [request for request in server.requests if request != "GET /api/agent-harnesses"]
    assert requests[0] == "POST /api/repos/create"
    assert all(
        "spam" in r or r.startswith(("POST /api/repos/create", "POST /api/validate", "POST /lfs")) for r in requests
    )


def test_s3_no_output_file_or_request_body_contains_the_token(audit):
    assert TOKEN not in audit["output"]
    written = [path for path in audit["folder"].rglob("*") if path.is_file()]
    assert {"README.md", "run.json", "model.safetensors", "loss.png"} <= {path.name for path in written}
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    sent = audit["server"].repos["me/spam"]
    assert "model.safetensors" in sent
    assert not [name for name, data in sent.items() if TOKEN.encode() in data]


@pytest.mark.parametrize("arguments", [PreTrainingArguments, FineTuningArguments])
@pytest.mark.parametrize("way", ["flag", "yaml"])
def test_s3_a_token_as_an_option_is_refused_before_anything_is_made(tmp_path, capfd, arguments, way):
    words = ["--output_dir", str(tmp_path / "run")]
    if way == "yaml":
        (tmp_path / "run.yaml").write_text(f"hub_token: {TOKEN}\n")
        words += ["--config", str(tmp_path / "run.yaml")]
    else:
        words += ["--hub_token", TOKEN]
    with pytest.raises(InputError, match="--hub_token: ") as caught:
        parse((arguments,), words)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in "".join(capfd.readouterr())
    assert not (tmp_path / "run").exists()


def test_s3_the_card_contains_no_token_of_the_login(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    card = Card(pipeline_tag="fill-mask", command=f"x --train_file {TOKEN}/a --seed 1", machine="CPU")
    write_card(tmp_path, card, {"eval_loss": 1.0})
    text = (tmp_path / "README.md").read_text()
    assert TOKEN not in text
    assert "(token)/a --seed 1" in text


# ---- S2: pickles in the folders of a run

UNTRUSTED = [
    "pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin", "adapter_model.safetensors",
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_0.pth",
    "training_args.bin", "pytorch_model_fsdp.bin", "model.pkl", "random_states_0.pkl", "trainer_state.pt",
    "model.safetensors.index.json", "custom_checkpoint_0.pkl",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    """A run that was interrupted at its first checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    make(folder, tokenizer, steps=6, stop=3).train()
    return folder


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run, place / "run")
    return place / "run/checkpoint-3"


def recommit(checkpoint: Path) -> None:
    """Writes a matching manifest: an attacker can compute checksums, too."""
    facts = json.loads((checkpoint / checkpoint_files.MANIFEST).read_text())
    (checkpoint / checkpoint_files.MANIFEST).unlink()
    temporary = checkpoint.with_name("saving-again")
    checkpoint.rename(temporary)
    checkpoint_files.commit(temporary, checkpoint, {"step": facts["step"], "world_size": facts["world_size"]})
    checkpoint_files.verify(checkpoint)


def test_s2_other_pickles_in_a_checkpoint_are_ignored(run, tokenizer, tmp_path):
    checkpoint = copied(run, tmp_path)
    for name in UNTRUSTED:
        if name.endswith("index.json"):
            (checkpoint / name).write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}, "metadata": {}}))
        else:
            write_pickle(checkpoint / name, tmp_path / "marker")
    recommit(checkpoint)
    resumed = make(checkpoint.parent, tokenizer, steps=6)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 6
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("pointed", [False, True])
def test_s2_a_checkpoint_whose_weights_are_only_pickles_is_refused(run, tokenizer, tmp_path, pointed):
    checkpoint = copied(run, tmp_path)
    (checkpoint / "model.safetensors").unlink()
    write_pickle(checkpoint / "pytorch_model.bin", tmp_path / "marker")
    if pointed:
        index = {"weight_map": {"x": "pytorch_model.bin"}, "metadata": {}}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    recommit(checkpoint)
    with pytest.raises(
        InputError, match="not a safetensors file in its folder" if pointed else "pickles are not read"
    ):
        make(checkpoint.parent, tokenizer, steps=6).train(resume_from_checkpoint=str(checkpoint))
    assert not (tmp_path / "marker").exists()


def test_s2_a_pickle_in_place_of_any_file_has_no_effect(run, tokenizer, tmp_path):
    names = sorted(path.name for path in (run / "checkpoint-3").iterdir())
    assert {"model.safetensors", "optimizer.safetensors", "rank_0.safetensors", "trainer_state.json"} <= set(names)
    resumed = []
    for name in names:
        place = tmp_path / name
        checkpoint = copied(run, place)
        write_pickle(checkpoint / name, tmp_path / "marker")
        assert checkpoint_files.newest_verified(checkpoint.parent) is None, name  # another checksum
        if name == checkpoint_files.MANIFEST:
            continue
        recommit(checkpoint)
        try:
            make(checkpoint.parent, tokenizer, steps=6).train(resume_from_checkpoint=str(checkpoint))
            resumed.append(name)
        except (InputError, ValueError, checkpoint_files.DamagedCheckpoint):
            pass
        assert not (tmp_path / "marker").exists(), name
    assert set(resumed) <= {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}  # not read again


def test_s2_the_best_model_is_loaded_from_the_run_folder_only(run, tokenizer, tmp_path):
    """`trainer_state.json` names the folder of the best model; the stock Trainer opens any folder."""
    (tmp_path / "elsewhere").mkdir()
    write_pickle(tmp_path / "elsewhere/pytorch_model.bin", tmp_path / "marker")
    copied(run, tmp_path)
    trainer = make(tmp_path / "run", tokenizer, steps=6)
    with torch.no_grad():
        trainer.model.cls.predictions.bias.fill_(5.0)
    trainer.state.best_model_checkpoint = str(tmp_path / "away/checkpoint-3")  # the run was moved since
    trainer._trial = None  # as `train` sets it where no hyperparameters are searched
    trainer._load_best_model()
    assert trainer.model.cls.predictions.bias.abs().max() < 1
    trainer.state.best_model_checkpoint = str(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"checkpoint_manifest\.json: missing"):
        trainer._load_best_model()
    assert not (tmp_path / "marker").exists()


FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "tarfile", "zipfile", "runpy"}
CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "shutil.unpack_archive",
         "os.system", "importlib.util.spec_from_file_location", "evaluate.load"}  # fmt: skip


@pytest.mark.parametrize("path", sorted([*ROOT.rglob("src/bert_hf/**/*.py"), *ROOT.glob("recipes/*.py")]), ids=str)
def test_s2_s4_no_source_unpickles_unpacks_or_runs_what_it_reads(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN
        elif isinstance(node, ast.Call):
            own_recipe = path.name == "package_files.py" and "RECIPES / " in ast.unparse(node)
            named_metric = path.name == "evaluated.py" and ast.unparse(node.func) == "evaluate.load"  # --metric_name
            assert ast.unparse(node.func) not in CALLS or own_recipe or named_metric, node.lineno
        elif isinstance(node, ast.keyword):
            allowed = node.arg not in ("allow_pickle", "trust_remote_code") or ast.unparse(node.value) == "False"
            assert allowed, node.value.lineno


# ---- S4: paths that lead elsewhere


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    from helpers.corpora import Texts

    from bert_hf.data.corpus.prepare import prepare

    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    text = ("w1 w2 w3.\nw4 w5 w6.", "w7 w8.\nw9 w10.", "w11.\nw12.", "w13.\nw14.")
    prepare([Texts(text)], tokenizer, folder, language=None)
    return folder


ODD_SHARDS = [
    {"file": "../data-00000.arrow"}, {"file": "/etc/passwd"}, {"file": ".."}, {"file": "."}, {"file": ""},
    {"file": "sub/data-00000.arrow"}, {"file": 3}, {"file": "data-00000.arrow\n"}, {"file": "training_args.bin"},
]  # fmt: skip


@pytest.mark.parametrize("change", ODD_SHARDS, ids=str)
def test_s4_a_manifest_with_a_path_outside_its_folder_is_refused(corpus, tmp_path, change):
    place = tmp_path / "deep/down/corpus"
    shutil.copytree(corpus, place)
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["shards"][0].update(change)
    (place / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="not a prepared corpus"):
        Corpus(place)


def test_s4_the_unchanged_corpus_is_opened(corpus):
    opened = Corpus(corpus)
    assert len(opened.window(opened.windows()[0])) == 4
    assert load_tokenizer(opened.tokenizer()).mask_token_id is not None
