import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file, save_file
from tiny import tiny_config, tiny_tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
)
from transformers import BertForPreTraining as StockBert

from bert_hf import BertForPreTraining, InputError, load_tokenizer
from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts
from bert_hf.finetuning.tasks.classification import ClassificationTask
from bert_hf.finetuning.trainer import load_task_model
from bert_hf.models import loading
from bert_hf.models.loading import (
    config_from_json,
    config_of_checkpoint,
    extend_embeddings,
    find_checkpoint,
    find_tokenizer,
    load_network,
    weight_files,
)
from bert_hf.pretraining.model import make_model


@pytest.fixture(autouse=True)
def no_hang():
    """Opening a FIFO waits for ever: each test has a time limit."""

    def fail(*_):
        raise TimeoutError("a test hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    StockBert(tiny_config()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, **entries) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def shard(folder: Path, names: list[str]) -> list[Path]:
    """Spreads the weights over files, as transformers does with large models."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {key: names[i % len(names)] for i, key in enumerate(tensors)}
    for name in names:
        part = {key: tensors[key] for key, place in places.items() if place == name}
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [folder / name for name in names]


class TwoClasses(ClassificationTask):
    """Texts that need no file."""

    def read(self):
        rows = LabelledTexts(["one", "another"], ["a", "b"])
        return {"train": rows, "validation": rows}


def open_as_classifier(where, **options) -> str:
    """Opens a checkpoint for fine-tuning; returns what is said about its new weights."""
    task_args = ClassificationArguments(str(where), max_seq_length=32, **options)
    return load_task_model(TwoClasses(task_args, tiny_tokenizer()), seed=0)[1]


def open_as_both(where, tokenizer) -> None:
    """As the recipes do, for pre-training and for fine-tuning."""
    make_model(ModelArguments(model_name_or_path=str(where)), ExampleArguments(max_seq_length=32), tokenizer, 0)
    open_as_classifier(where)


# ---- complete checkpoints


def test_a_whole_checkpoint_is_opened_as_it_is(folder, tokenizer):
    open_as_both(folder, tokenizer)
    assert open_as_classifier(folder) == "newly initialized: classifier.bias, classifier.weight"
    model, fresh = load_network(BertForPreTraining, find_checkpoint(folder), folder, ("cls.",))
    assert fresh == []
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_shards_of_the_folder_are_opened(folder, tokenizer):
    whole = load_file(folder / "model.safetensors")
    shard(folder, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
    model, _ = load_network(BertForPreTraining, find_checkpoint(folder), folder, ("cls.",))
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in whole.items())
    open_as_both(folder, tokenizer)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_widths_and_old_keys_are_opened(folder, tokenizer, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]  # transformers < 4.31 saved it
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder / "config.json", _attn_implementation_autoset=True, trust_remote_code=False, return_dict=False)
    open_as_both(folder, tokenizer)
    opened, _ = load_network(BertForPreTraining, find_checkpoint(folder), folder, ("cls.",))
    for name, value in opened.state_dict().items():
        assert value.dtype == torch.float32
        assert name not in tensors or torch.equal(value, tensors[name].float()), name  # tied tensors are saved once
    assert opened.config.return_dict


@pytest.mark.parametrize("kind", ["masked LM", "encoder", "classifier"])
def test_heads_may_be_missing_and_nothing_else(folder, tokenizer, tmp_path, kind):
    models = {"masked LM": BertForMaskedLM, "encoder": StockBert, "classifier": AutoModelForSequenceClassification}
    loaded = models[kind].from_pretrained(folder)
    (loaded.bert if kind == "encoder" else loaded).save_pretrained(tmp_path / "part")
    open_as_both(tmp_path / "part", tokenizer)
    assert open_as_classifier(tmp_path / "part").startswith("newly initialized: ")
    tensors = load_file(tmp_path / "part/model.safetensors")
    gone = next(name for name in tensors if name.endswith("layer.1.output.dense.weight"))
    del tensors[gone]
    save_file(tensors, tmp_path / "part/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"it lacks bert\.encoder\.layer\.1\.output\.dense\.weight"):
        open_as_both(tmp_path / "part", tokenizer)


def test_more_layers_than_the_configuration_says_are_refused(folder, tokenizer):
    change(folder / "config.json", num_hidden_layers=1)
    with pytest.raises(InputError, match=r"config\.json does not describe bert\.encoder\.layer\.1\..* and 13 more"):
        open_as_both(folder, tokenizer)


def test_another_shape_than_the_configuration_says_is_refused(folder, tokenizer):
    change(folder / "config.json", intermediate_size=48)
    with pytest.raises(InputError, match=r"intermediate\.dense\.bias is 64 instead of 48, as config\.json says"):
        open_as_both(folder, tokenizer)


@pytest.mark.parametrize(
    ("entry", "value", "reason"),
    [
        ("num_hidden_layers", "2", "Field 'num_hidden_layers' expected int"),
        ("id2label", ["a", "b"], "'list' object"),
        ("hidden_act", "gleu", "unknown value 'gleu'"),
        ("pad_token_id", 5000, "Padding_idx must be within"),
    ],
)
def test_a_value_that_the_stock_class_rejects_is_named(folder, entry, value, reason):
    change(folder / "config.json", **{entry: value})
    with pytest.raises(InputError, match=f"not a BERT's configuration: .*{reason}.*; correct config.json"):
        load_network(BertForPreTraining, find_checkpoint(folder), folder, ("cls.",))


def test_new_rows_of_embeddings_follow_the_old_ones(tmp_path):
    config = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertForPreTraining(config)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    line = extend_embeddings(model, 60, 32)
    assert line == "added, newly initialized: 10 tokens to 50 and 16 positions to 16"
    assert extend_embeddings(model, 55, 20) == ""

    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor[: len(before.get(name, tensor))], before.get(name, tensor))
    assert model(torch.tensor([[55, 59] * 16])).prediction_logits.shape == (1, 32, 60)
    model.save_pretrained(tmp_path)
    _, report = StockBert.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())


# ---- configurations


CODE = [
    {"auto_map": {"AutoModel": "evil.Model"}}, {"auto_map": {"AutoConfig": "me/evil--evil.Config"}},
    {"_attn_implementation_internal": "me/evil"}, {"_attn_implementation": "me/evil"},
    {"attn_implementation": {"": "me/evil"}}, {"_experts_implementation_internal": "me/evil"},
    {"trust_remote_code": True}, {"text_config": {"auto_map": {"AutoModel": "evil.Model"}}},
    {"custom_pipelines": {"x": {"impl": "evil.Pipe"}}}, {"quantization_config": {"quant_method": "awq"}},
    {"transformers_weights": "../evil.safetensors"}, {"label2id": [{"a": {"auto_map": "evil.Model"}}]},
    {"_attn_implementation_autoset": "me/evil"},
]  # fmt: skip


@pytest.mark.parametrize("entry", CODE, ids=json.dumps)
def test_a_configuration_that_asks_for_code_is_refused(folder, tokenizer, entry):
    (folder / "evil.py").write_text(f"open({str(folder / 'marker')!r}, 'w')")
    change(folder / "config.json", **entry)
    match = re.escape(f"{folder}/config.json: ") + ".*requests code or files that are never loaded here"
    for work in (find_checkpoint, find_tokenizer, config_of_checkpoint, lambda where: open_as_both(where, tokenizer)):
        with pytest.raises(InputError, match=match):
            work(folder)
    assert not (folder / "marker").exists()


@pytest.mark.parametrize("entry", CODE[:4], ids=json.dumps)
def test_so_is_a_model_json(tmp_path, tokenizer, entry):
    tiny_config().to_json_file(tmp_path / "m.json")
    change(tmp_path / "m.json", **entry)
    with pytest.raises(InputError, match="requests code"):
        make_model(ModelArguments(config_name=str(tmp_path / "m.json")), ExampleArguments(), tokenizer, 0)
    with pytest.raises(InputError, match="requests code"):
        config_from_json(str(tmp_path / "m.json"), vocab_size=99)


def test_a_new_model_has_an_embedding_for_each_id_of_a_vocabulary_that_repeats_a_line(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\ncat")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert make_model(ModelArguments(config_name="tiny"), ExampleArguments(), tokenizer, 0).config.vocab_size == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "not a JSON object"), (b"", "not JSON"), (b"\xff\xfe", "not UTF-8"), (b"{", "not JSON"),
        (b'{"a":' * 100_000, "not JSON"), (b"{}", "model_type is None, not 'bert'"),
        (b'{"model_type": "roberta"}', "model_type is 'roberta'"), (b'{"model_type": ["bert"]}', "model_type is"),
        (b'{"pad": "' + b" " * 64_000_000 + b'"}', "larger than 64 MB"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_configuration_that_is_none(folder, tokenizer, content, message):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_as_both(folder, tokenizer)


def test_another_architecture_is_refused_by_name_and_by_weights(folder, tokenizer, tmp_path):
    shape = {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
    DistilBertForMaskedLM(DistilBertConfig(**shape)).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="model_type is 'distilbert', not 'bert'"):
        open_as_both(tmp_path / "other", tokenizer)
    tensors = {f"module.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "module.safetensors", metadata={"format": "pt"})
    shutil.copy(tmp_path / "other/model.safetensors", folder)
    with pytest.raises(InputError, match=r"it lacks bert\.embeddings.* and \d+ more; "):
        open_as_both(folder, tokenizer)
    shutil.copy(tmp_path / "module.safetensors", folder / "model.safetensors")
    with pytest.raises(InputError, match=r"it lacks .* more, but has module\.bert\.embeddings\.LayerNorm\.bias; "):
        open_as_both(folder, tokenizer)


def test_an_adapter_is_refused(folder, tokenizer):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "me/evil"}')
    with pytest.raises(InputError, match="an adapter, not a model"):
        open_as_both(folder, tokenizer)


# ---- tokenizers


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"auto_map": {"AutoTokenizer": ["evil.Slow", None]}}, "requests code"),
        ({"auto_map": ["evil.Slow", None]}, "requests code"),
        ({"vocab_file": "/etc/passwd"}, "'vocab_file' points outside the folder"),
        ({"tokenizer_file": "../tokenizer.json"}, "'tokenizer_file' points outside the folder"),
        ({"gguf_file": "x.gguf"}, "requests code or files"),
    ],
    ids=json.dumps,
)
def test_a_tokenizer_that_asks_for_more_is_refused(folder, entry, message):
    (folder / "evil.py").write_text(f"open({str(folder / 'marker')!r}, 'w')")
    change(folder / "tokenizer_config.json", **entry)
    with pytest.raises(InputError, match=message):
        load_tokenizer(folder)
    assert not (folder / "marker").exists()


def test_where_old_tokenizers_once_lay_does_not_matter(folder, tokenizer):
    change(folder / "tokenizer_config.json", special_tokens_map_file="/home/x/special_tokens_map.json")
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()


# ---- weights


ODD_INDEX = [
    {"weight_map": {"x": name}}
    for name in (
        "../model.safetensors", "/etc/passwd", "/tmp/x.safetensors", "sub/x.safetensors", "..", ".", "",
        "\0.safetensors",
        "pytorch_model.bin", "x.safetensors\n", ".hidden.safetensors", "C:\\x.safetensors", 3, None, ["a.safetensors"],
    )
] + [{}, {"weight_map": {}}, {"weight_map": ["x.safetensors"]}, {"weight_map": "x.safetensors"}, []]  # fmt: skip


@pytest.mark.parametrize("index", ODD_INDEX, ids=json.dumps)
def test_s4_an_index_that_leads_elsewhere_is_refused(folder, tokenizer, index):
    shutil.copy(folder / "model.safetensors", folder.parent / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for work in (weight_files, find_checkpoint, lambda where: open_as_both(where, tokenizer)):
        with pytest.raises(
            InputError, match=r"index\.json: (lists .*not a safetensors file in its folder|not a JSON)"
        ):
            work(folder)


def test_s4_a_shard_that_is_not_there(folder):
    shard(folder, ["a.safetensors", "b.safetensors"])[1].unlink()
    with pytest.raises(InputError, match=r"b\.safetensors: cannot be opened: No such file"):
        find_checkpoint(folder)


OPENED = """config.json model.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json vocab.txt
    special_tokens_map.json added_tokens.json chat_template.jinja generation_config.json processor_config.json
    additional_chat_templates/x.jinja""".split()


ODD = r"not a regular file|a link out of the folder|cannot be opened"


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "link out", "link in a circle", "linked fifo"])
@pytest.mark.parametrize("name", OPENED)
def test_s4_odd_files_are_refused_without_a_wait(folder, tokenizer, name, kind):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    content = path.read_bytes() if path.exists() else b"{}"
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's name may have 107 characters
            listener.bind(path.name)
            os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link out":
        (folder.parent / "outside").write_bytes(content)
        path.symlink_to(folder.parent / "outside")
    elif kind == "linked fifo":
        os.mkfifo(folder.parent / "fifo")
        path.symlink_to(folder.parent / "fifo")
    else:
        path.symlink_to(path.name)
    for work in (find_checkpoint, load_tokenizer, lambda where: open_as_both(where, tokenizer)):
        with pytest.raises(InputError, match=ODD) as caught:
            work(folder)
        assert str(path) in str(caught.value)


def test_a_link_within_the_folder_is_followed(folder, tokenizer):
    (folder / "checkpoint-3").mkdir()
    (folder / "model.safetensors").rename(folder / "checkpoint-3/model.safetensors")
    (folder / "model.safetensors").symlink_to("checkpoint-3/model.safetensors")
    open_as_both(folder, tokenizer)
    opened, _ = load_network(BertForPreTraining, find_checkpoint(folder), folder, ("cls.",))
    for name, value in load_file(folder / "checkpoint-3/model.safetensors").items():
        assert torch.equal(opened.state_dict()[name], value), name


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt", "model.pt", "tf_model.h5"])
def test_only_pickles_are_named_and_not_read(folder, tokenizer, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(InputError, match=f"no model.safetensors, only {name}: pickles are not read"):
        open_as_both(folder, tokenizer)


def test_no_weights_at_all(folder, tokenizer):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no model\.safetensors; if you trust it"):
        open_as_both(folder, tokenizer)
    open_as_classifier(folder, from_scratch=True)  # needs none


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_a_safetensors_file_that_ends_early(folder, tokenizer, size):
    path = folder / "model.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(InputError, match=r"model\.safetensors: bad weights"):
        open_as_both(folder, tokenizer)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_number_that_is_not_finite_is_named(folder, tokenizer, dtype, value):
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["bert.encoder.layer.1.output.dense.weight"][-1, -1] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"bert\.encoder\.layer\.1\.output\.dense\.weight contains NaN or infinity"):
        open_as_both(folder, tokenizer)


# ---- the Hub

NOWHERE = ["/nowhere/at/all", "../nowhere", "a/b/c", "no\0where", "", "me/no such"]


@pytest.mark.parametrize("where", NOWHERE, ids=ascii)
def test_nowhere(tokenizer, where):
    with pytest.raises(InputError, match="cannot load a BERT: no such folder"):
        find_checkpoint(where)
    with pytest.raises(InputError, match="cannot load a tokenizer: no such folder"):
        find_tokenizer(where)


def test_not_in_the_cache_of_an_offline_machine():
    with pytest.raises(InputError, match=r"me/unheard-of: cannot load a BERT: .*HF_HUB_OFFLINE"):
        find_checkpoint("me/unheard-of")


FROM_HUB = """
import json, os, sys
import huggingface_hub
from bert_hf import BertForPreTraining, InputError, load_tokenizer
from bert_hf.models.loading import find_checkpoint, load_network
for offline in (False, True):
    huggingface_hub.constants.HF_HUB_OFFLINE = offline
    for repo in sys.argv[1:]:
        try:
            folder = find_checkpoint(repo)
            names = sorted(os.listdir(folder))
            model, _ = load_network(BertForPreTraining, folder, repo, ("cls.",))
            model.save_pretrained("saved")
            total = sum(weights.sum().item() for weights in model.parameters())
            said = [names, model.name_or_path, load_tokenizer(repo).name_or_path, total]
        except InputError as error:
            said = str(error)
        print("SAID " + json.dumps(said))
"""


def test_a_repository_of_the_hub_gives_only_what_is_read(folder, tmp_path):
    """Whole, in shards, and with an index that leads elsewhere; then again, offline, from the cache."""
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"pytorch_model.bin": b"PK", "evil.py": b"1/0", "training_args.bin": b"PK", "onnx/x.safetensors": b""}
    shard(folder, ["model-1.safetensors", "model-2.safetensors"])
    shards = {path.name: path.read_bytes() for path in folder.iterdir()}
    evil = {**shards, "model.safetensors.index.json": b'{"weight_map": {"x": "../../../secret.safetensors"}}'}
    pickled = {name: data for name, data in whole.items() if name != "model.safetensors"}
    code = {**whole, "config.json": b'{"model_type": "bert", "auto_map": {"AutoModel": "evil.M"}}'}
    repos = {"whole": whole, "shards": shards, "evil": evil, "pickled": pickled, "code": code}
    with HubServer("hf_visitor") as server:
        for name, files in repos.items():
            server.repos[f"me/{name}"] = {**files, **others}
        environment = {
            **os.environ, "HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(loading.__file__).parents[2]),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", FROM_HUB, *(f"me/{name}" for name in repos)],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]
    online, offline = (dict(zip(repos, part, strict=True)) for part in (lines[:5], lines[5:]))
    assert online["whole"][0] == ["config.json", "model.safetensors"]
    assert online["shards"][0] == [
        "config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    for name in ("whole", "shards"):
        assert online[name][1:] == [f"me/{name}", f"me/{name}", online["whole"][3]]
        assert offline[name][1:] == online[name][1:]
    assert "'../../../secret.safetensors', which is not a safetensors file in its folder" in online["evil"]
    assert "no model.safetensors" in online["pickled"]
    assert "'auto_map' requests code" in online["code"]
    fetched = [request for request in server.requests if "/resolve/" in request]
    assert fetched
    assert not [request for request in fetched if re.search(r"\.(bin|py|pt)\b|secret|onnx", request)]
    assert "home" not in (tmp_path / "saved/config.json").read_text()  # no path of this machine is saved
