"""Nothing is unpickled, followed out of its folder, or told a token (invariant 8; docs/security.md).

S1 an audit of the whole way · S2 pickles in every place · S3 a canary for a token · S4 names that lead elsewhere.
What a checkpoint from elsewhere may hold is in tests/test_pretrained.py.
"""

import ast
import json
import os
import pickle
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import HubServer
from test_trainer import make

from bert_hf import InputError, load_tokenizer
from bert_hf.config.arguments import FineTuningArguments, PreTrainingArguments, parse
from bert_hf.data.corpus_store import MANIFEST, Corpus
from bert_hf.data.remote_shards import RemoteShards
from bert_hf.training import checkpointing, hub

ROOT = Path(__file__).parents[1]
TOKEN = "hf_canary0123456789"
TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": 30522,
}  # fmt: skip


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def bait(path: Path, marker: Path) -> None:
    """A pickle that acts, in the zip that torch writes (or bare, where the name is that of a plain pickle)."""
    if path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(Evil(marker)))
    else:
        torch.save({"evil": Evil(marker)}, path)


def test_the_bait_bites(tmp_path):
    """Opened as a pickle it acts, or the tests below would prove nothing."""
    bait(tmp_path / "x.bin", tmp_path / "marker")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert (tmp_path / "marker").exists()


# ---- S1, S3: the whole way, watched


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    """Everything a user does, in a process that is watched: what it opened, said, wrote and sent."""
    folder = tmp_path_factory.mktemp("relay")
    place, home, log = folder / "place", folder / "home", folder / "audit.jsonl"
    place.mkdir()
    documents = [
        "\n".join(f"Topic {d % 7} sentence {s} says that thing{d} follows thing{s}." for s in range(6))
        for d in range(60)
    ]
    (place / "text.txt").write_text("\n\n".join(documents))
    (place / "tiny.json").write_text(json.dumps(TINY))
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
    return {"folder": folder, "events": events, "said": done.stdout + done.stderr, "server": server}


# Who may unpickle: what comes through a pipe from a process that this run has started itself, and no file.
PIPES = {
    "multiprocessing/queues.py": "batches from the workers of the DataLoader; tasks to those that prepare text",
    "multiprocessing/connection.py": "what those that prepare text give back",
    "loky/backend/popen_loky_posix.py": "the start of those that prepare text",
}


def test_s1_only_pipes_between_our_own_processes_carry_pickles(relay):
    asked = {(event[1], event[2]) for event in relay["events"] if event[0] == "pickle"}
    assert asked, "the workers were not watched"
    assert not {(what, who) for what, who in asked if not who.endswith(tuple(PIPES))}


def test_s1_nothing_named_as_a_pickle_is_opened_and_no_code_comes_from_a_cache(relay):
    assert not [event for event in relay["events"] if event[0] in ("open", "exec")]


def test_s1_nobody_is_spoken_to_but_the_hub_and_that_only_to_push(relay):
    """Sockets with a path for a name are pipes of the DataLoader's workers."""
    there = {event[1] for event in relay["events"] if event[0] == "connect"}
    server = relay["server"]
    port = server.address.rsplit(":", 1)[1]
    assert {where for where in there if not where.startswith("'/")} == {f"('127.0.0.1', {port})"}
    # The client, once it is used, asks which programs of others it may be run by, to name them in its requests.
    asked = [request for request in server.requests if request != "GET /api/agent-harnesses"]
    assert asked[0] == "POST /api/repos/create"
    assert all(
        "spam" in r or r.startswith(("POST /api/repos/create", "POST /api/validate", "POST /lfs")) for r in asked
    )


def test_s3_a_token_is_in_nothing_that_is_said_written_or_sent(relay):
    assert TOKEN not in relay["said"]
    written = [path for path in relay["folder"].rglob("*") if path.is_file()]
    assert {"README.md", "run.json", "model.safetensors", "loss.png"} <= {path.name for path in written}
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    sent = relay["server"].repos["me/spam"]
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
    with pytest.raises(InputError, match="a token is not taken as a flag") as caught:
        parse((arguments,), words)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in "".join(capfd.readouterr())
    assert not (tmp_path / "run").exists()


SECRETS = ["https://me:s3cret@host/a.txt", "https://host/a?X-Amz-Signature=s3cret", "s3://b/a?x=1&api_key=s3cret&y=2"]


@pytest.mark.parametrize("url", [*SECRETS, f"https://host/{TOKEN}/a"])
def test_s3_secrets_of_a_url_or_of_this_login_are_not_in_the_card(tmp_path, monkeypatch, url):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    card = hub.Card(title="t", pipeline_tag="fill-mask", command=f"x --train_file '{url}' --seed 1", machine="CPU")
    hub.write_card(tmp_path, card, {"eval_loss": 1.0})
    text = (tmp_path / "README.md").read_text()
    assert "s3cret" not in text
    assert TOKEN not in text
    assert "(token)" in text
    assert "--seed 1" in text
    assert "y=2" in text or "y=2" not in url


# ---- S2: pickles where a run looks

BESIDE = [
    "pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin", "adapter_model.safetensors",
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_0.pth",
    "training_args.bin", "pytorch_model_fsdp.bin", "model.pkl", "random_states_0.pkl", "trainer_state.pt",
    "model.safetensors.index.json", "custom_checkpoint_0.pkl",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    """A run cut off at its first checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    make(folder, tokenizer, steps=6, stop=3).train()
    return folder


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run, place / "run")
    return place / "run/checkpoint-3"


def recommit(checkpoint: Path) -> None:
    """Gives a checkpoint a manifest that fits what it holds now: the attacker can compute checksums, too."""
    facts = json.loads((checkpoint / checkpointing.MANIFEST).read_text())
    (checkpoint / checkpointing.MANIFEST).unlink()
    temporary = checkpoint.with_name("saving-again")
    checkpoint.rename(temporary)
    checkpointing.commit(temporary, checkpoint, {"step": facts["step"], "world_size": facts["world_size"]})
    checkpointing.verify(checkpoint)


def test_s2_pickles_beside_a_checkpoint_are_passed_over(run, tokenizer, tmp_path):
    checkpoint = copied(run, tmp_path)
    for name in BESIDE:
        if name.endswith("index.json"):
            (checkpoint / name).write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}, "metadata": {}}))
        else:
            bait(checkpoint / name, tmp_path / "marker")
    recommit(checkpoint)
    resumed = make(checkpoint.parent, tokenizer, steps=6)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 6
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("pointed", [False, True])
def test_s2_a_checkpoint_whose_weights_are_only_pickles_is_refused(run, tokenizer, tmp_path, pointed):
    checkpoint = copied(run, tmp_path)
    (checkpoint / "model.safetensors").unlink()
    bait(checkpoint / "pytorch_model.bin", tmp_path / "marker")
    if pointed:
        index = {"weight_map": {"x": "pytorch_model.bin"}, "metadata": {}}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    recommit(checkpoint)
    with pytest.raises(InputError, match="no safetensors file of its folder" if pointed else "pickles are not read"):
        make(checkpoint.parent, tokenizer, steps=6).train(resume_from_checkpoint=str(checkpoint))
    assert not (tmp_path / "marker").exists()


def test_s2_a_pickle_in_place_of_any_file_of_a_checkpoint_does_nothing(run, tokenizer, tmp_path):
    names = sorted(path.name for path in (run / "checkpoint-3").iterdir())
    assert {"model.safetensors", "optimizer.safetensors", "rank_0.safetensors", "trainer_state.json"} <= set(names)
    went_on = []
    for name in names:
        place = tmp_path / name
        checkpoint = copied(run, place)
        bait(checkpoint / name, tmp_path / "marker")
        said = []
        assert checkpointing.newest_verified(checkpoint.parent, said.append) is None, name  # its checksum is another
        assert len(said) == 1
        assert "checkpoint-3" in said[0]
        if name == checkpointing.MANIFEST:
            continue
        recommit(checkpoint)
        try:
            make(checkpoint.parent, tokenizer, steps=6).train(resume_from_checkpoint=str(checkpoint))
            went_on.append(name)
        except (InputError, ValueError, checkpointing.DamagedCheckpoint):
            pass
        assert not (tmp_path / "marker").exists(), name
    assert set(went_on) <= {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}  # not read again


def test_s2_the_best_model_is_that_of_the_run_whatever_its_state_says(run, tokenizer, tmp_path):
    """`trainer_state.json` names the folder of the best model; stock opens it wherever it is."""
    (tmp_path / "elsewhere").mkdir()
    bait(tmp_path / "elsewhere/pytorch_model.bin", tmp_path / "marker")
    copied(run, tmp_path)
    trainer = make(tmp_path / "run", tokenizer, steps=6)
    with torch.no_grad():
        trainer.model.cls.predictions.bias.fill_(5.0)
    trainer.state.best_model_checkpoint = str(tmp_path / "away/checkpoint-3")  # the run was moved since
    trainer._load_best_model()
    assert trainer.model.cls.predictions.bias.abs().max() < 1
    trainer.state.best_model_checkpoint = str(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="elsewhere/checkpoint_manifest"):
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
            assert ast.unparse(node.func) not in CALLS, node.lineno
        elif isinstance(node, ast.keyword):
            allowed = node.arg not in ("allow_pickle", "trust_remote_code") or ast.unparse(node.value) == "False"
            assert allowed, node.value.lineno


# ---- S4: names that lead elsewhere


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    from bert_hf.data.prepare import prepare
    from bert_hf.data.readers import Texts

    folder = tmp_path_factory.mktemp("corpus") / "corpus"
    text = ("w1 w2 w3.\nw4 w5 w6.", "w7 w8.\nw9 w10.", "w11.\nw12.", "w13.\nw14.")
    prepare([Texts(text)], tokenizer, folder, language=None)
    return folder


ODD_SHARDS = [
    {"file": "../data-00000.arrow"}, {"file": "/etc/passwd"}, {"file": ".."}, {"file": "."}, {"file": ""},
    {"file": "sub/data-00000.arrow"}, {"file": 3}, {"file": "data-00000.arrow\n"}, {"file": "training_args.bin"},
    {"sha256": "/../../../escape"}, {"sha256": "0" * 63}, {"sha256": None}, {"bytes": -1}, {"bytes": "9"},
    {"tokens": 1.5}, {"documents": True},
]  # fmt: skip


@pytest.mark.parametrize("behind_a_url", [False, True])
@pytest.mark.parametrize("change", ODD_SHARDS, ids=str)
def test_s4_a_corpus_whose_manifest_leads_elsewhere_is_refused(corpus, tmp_path, change, behind_a_url):
    place = tmp_path / "deep/down/corpus"
    shutil.copytree(corpus, place)
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["shards"][0].update(change)
    (place / MANIFEST).write_text(json.dumps(manifest))
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    where = RemoteShards(place.as_uri(), tmp_path / "cache") if behind_a_url else place
    with pytest.raises(InputError, match="not a prepared corpus"):
        Corpus.open(where)
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before
    names = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()} if behind_a_url else set()
    assert names <= {MANIFEST}


@pytest.mark.parametrize("behind_a_url", [False, True])
def test_s4_the_corpus_as_it_was_is_opened(corpus, tmp_path, behind_a_url):
    opened = Corpus.open(RemoteShards(corpus.as_uri(), tmp_path) if behind_a_url else corpus)
    assert len(opened.window(opened.windows()[0])) == 4
    assert load_tokenizer(opened.tokenizer()).mask_token_id is not None


def test_s4_a_manifest_of_brackets_is_one_line(corpus, tmp_path):
    (tmp_path / MANIFEST).write_text("[" * 200_000)
    with pytest.raises(InputError, match="not a prepared corpus"):
        Corpus.open(tmp_path)


# ---- through the doors


@pytest.mark.parametrize("recipe", ["pretrain", "finetune_classification", "estimate"])
def test_s2_a_model_of_pickles_or_code_is_one_line_and_exit_code_2(run, tokenizer, tmp_path, capsys, recipe):
    place = tmp_path / "model"
    shutil.copytree(run / "checkpoint-3", place)
    (place / "model.safetensors").unlink()
    for name in BESIDE[:1] + BESIDE[2:-2]:
        bait(place / name, tmp_path / "marker")
    if recipe == "estimate":  # reads the configuration alone
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "evil.Config"}}))
        words = ["--max_steps", "5", "--max_seq_length", "32"]
    elif recipe == "pretrain":
        (tmp_path / "text.txt").write_text("w1 w2 w3. w4 w5.\n\nw6 w7. w8 w9.\n\n" * 20)
        words = [
            "--train_file",
            str(tmp_path / "text.txt"),
            "--cache_dir",
            str(tmp_path / "cache"),
            "--max_steps",
            "2",
        ]
        words += ["--max_seq_length", "32", "--output_dir", str(tmp_path / "out")]
    else:
        words = ["--train_file", str(ROOT / "src/bert_hf/finetuning/messages/spam.tsv"), "--max_seq_length", "32"]
        words += ["--output_dir", str(tmp_path / "out")]
    main = runpy.run_path(str(ROOT / f"recipes/{recipe}.py"))["main"]
    assert main(["--model_name_or_path", str(place), *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line or "Traceback" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {place}")
    assert ("asks for code" if recipe == "estimate" else "pickles are not read") in lines[0]
    assert not (tmp_path / "out/model.safetensors").exists()
    assert not (tmp_path / "marker").exists()
