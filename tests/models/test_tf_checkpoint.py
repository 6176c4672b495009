"""TensorFlow checkpoints: the reader against what TensorFlow itself reads, converted networks against numpy.

The files in tensorflow_checkpoint/ were written by TensorFlow 2.21: a BERT of the 2018 code with Adam's slots,
the word embeddings partitioned, a weight in float16 and one in bfloat16.
"""

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from helpers.recipe_runs import recipe
from safetensors import safe_open
from transformers import AutoTokenizer, BertForPreTraining

from bert_hf.errors import InputError
from bert_hf.models.tensor_bundle import TensorBundle
from bert_hf.models.tf_checkpoint import read_tf_config, weight_name

FOLDER = Path(__file__).parent / "tensorflow_checkpoint"
PREFIX = FOLDER / "pretraining/bert_model.ckpt"
FILES = sorted(PREFIX.parent.glob("bert_model.ckpt.*"))


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(PREFIX.parent / "expected.npz") as file:
        return dict(file)


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of the checkpoint's folder, to damage."""
    return Path(shutil.copytree(PREFIX.parent, tmp_path / "copied"))


def convert(folder: Path, *options: str) -> int:
    return recipe("convert_tf_checkpoint")([str(folder), *options])


def test_tensors_have_the_bytes_that_tensorflow_reads(expected):
    bundle = TensorBundle(PREFIX)
    for name, tensor in expected.items():
        read = bundle.read(name)
        assert read.shape == bundle.shapes[name] == tensor.shape
        assert read.tobytes() == tensor.tobytes(), name
    assert {str(tensor.dtype) for tensor in expected.values()} == {"float32", "float16"}


def damage(files: dict[Path, bytes], random: np.random.Generator) -> tuple[Path, bytes]:
    """A file, and its content with a flipped bit or cut short."""
    path = list(files)[random.integers(len(files))]
    content = bytearray(files[path])
    place = int(random.integers(len(content)))
    if random.random() < 0.2:
        return path, bytes(content[:place])
    content[place] ^= 1 << random.integers(8)
    return path, bytes(content)


@pytest.mark.parametrize("trials", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_damaged_file_is_an_error_or_changes_nothing(copied, expected, trials):
    files = {copied / path.name: path.read_bytes() for path in FILES}
    random = np.random.default_rng(0)
    errors = 0
    for _ in range(trials):
        path, content = damage(files, random)
        path.write_bytes(content)
        try:
            bundle = TensorBundle(copied / PREFIX.name)
            assert all(bundle.read(name).tobytes() == tensor.tobytes() for name, tensor in expected.items())
        except InputError:
            errors += 1
        path.write_bytes(files[path])
    assert errors > trials / 4  # most bytes are Adam's, which are not read


def test_each_fault_has_its_line(copied, capsys):
    index = copied / "bert_model.ckpt.index"
    data = copied / "bert_model.ckpt.data-00000-of-00002"
    config = copied / "bert_config.json"

    def line(path: Path, content: bytes | None) -> str:
        before = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert convert(copied, "--output_dir", str(copied.parent / "out")) == 2
        assert not (copied.parent / "out").exists()
        path.write_bytes(before)
        [printed] = capsys.readouterr().err.splitlines()
        assert printed.startswith("error: ")
        return printed

    assert "truncated" in line(index, index.read_bytes()[:3000])
    assert "not the index" in line(index, b"a text\n")
    assert "wrong checksum" in line(data, data.read_bytes().replace(data.read_bytes()[40:44], b"abcd"))
    assert "no such file" in line(data, None)
    assert "truncated" in line(data, data.read_bytes()[:100])
    assert "layer.1" in line(config, config.read_bytes().replace(b'layers": 2', b'layers": 1'))
    assert "shape" in line(config, config.read_bytes().replace(b'intermediate_size": 32', b'intermediate_size": 64'))
    assert "go up to 19" in line(config, config.read_bytes().replace(b'vocab_size": 20', b'vocab_size": 19'))


def rename(monkeypatch, name: bytes, other: bytes) -> None:
    """Lets the variables of the checkpoint have other names."""
    read_block = TensorBundle._read_block

    def renamed(self, content, offset, size):
        return ((key.replace(name, other), value) for key, value in read_block(self, content, offset, size))

    monkeypatch.setattr(TensorBundle, "_read_block", renamed)


@pytest.mark.parametrize(
    ("name", "other", "kind"),
    [
        (b"/adam_m", b"/BERTAdam", "BertForPreTraining"),
        (b"cls/seq_relationship/", b"cls/sentence_order/", "BertForMaskedLM"),
        (b"cls/", b"heads/", "BertModel"),
    ],
)
def test_the_class_is_that_of_the_heads_that_are_there(name, other, kind, expected, tmp_path, monkeypatch, capsys):
    rename(monkeypatch, name, other)
    assert convert(PREFIX.parent, "--output_dir", str(tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{kind}: ")
    model, report = getattr(transformers, kind).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    left_out = len(TensorBundle(PREFIX).shapes) - len(list(model.named_parameters()))
    assert f"left out: {left_out} variables" in printed
    table = model.get_input_embeddings().weight.detach()
    np.testing.assert_array_equal(table, expected["bert/embeddings/word_embeddings"])


@pytest.mark.parametrize(
    ("name", "other", "problem"),
    [
        (b"bert/", b"electra/", "it lacks bert.embeddings.word_embeddings.weight"),
        (b"global_step", b"_CHECKPOINTABLE_OBJECT_GRAPH", "TensorFlow 2"),
    ],
)
def test_checkpoints_of_other_models_are_refused(name, other, problem, tmp_path, monkeypatch, capsys):
    rename(monkeypatch, name, other)
    assert convert(PREFIX.parent, "--output_dir", str(tmp_path / "out")) == 2
    assert problem in capsys.readouterr().err


def test_names_are_a_bijection_onto_those_of_transformers(expected):
    names = [weight_name(name) for name in expected]
    model = BertForPreTraining(read_tf_config(PREFIX.parent / "bert_config.json"))
    assert len(set(names)) == len(names)
    assert set(names) == {name for name, _ in model.named_parameters()}


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class NumpyBert:
    """The forward pass of modeling.py of google-research/bert, in float64."""

    def __init__(self, weights: dict[str, np.ndarray], heads: int = 2, layers: int = 2):
        self.weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
        self.heads, self.layers = heads, layers

    def dense(self, x, name):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def norm(self, x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]

    def attention(self, x, name):
        length, width = x.shape
        query, key, value = (
            self.dense(x, f"{name}/{part}").reshape(length, self.heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / math.sqrt(width // self.heads)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return (shares @ value).swapaxes(0, 1).reshape(length, width)

    def __call__(self, ids, types):
        """Logits of the MLM (L, V) and of the NSP (2,) for one sequence."""
        table = self.weights["bert/embeddings/word_embeddings"]
        x = table[ids] + self.weights["bert/embeddings/token_type_embeddings"][types]
        x = self.norm(x + self.weights["bert/embeddings/position_embeddings"][: len(ids)], "bert/embeddings/LayerNorm")
        for number in range(self.layers):
            layer = f"bert/encoder/layer_{number}"
            attended = self.dense(self.attention(x, f"{layer}/attention/self"), f"{layer}/attention/output/dense")
            x = self.norm(x + attended, f"{layer}/attention/output/LayerNorm")
            inner = gelu(self.dense(x, f"{layer}/intermediate/dense"))
            x = self.norm(x + self.dense(inner, f"{layer}/output/dense"), f"{layer}/output/LayerNorm")

        head = "cls/predictions/transform"
        states = self.norm(gelu(self.dense(x, f"{head}/dense")), f"{head}/LayerNorm")
        pooled = np.tanh(self.dense(x[0], "bert/pooler/dense"))
        sentence = self.weights["cls/seq_relationship/output_weights"] @ pooled
        return states @ table.T + self.weights["cls/predictions/output_bias"], (
            sentence + self.weights["cls/seq_relationship/output_bias"]
        )


def test_stock_transformers_computes_what_the_2018_code_computes(expected, tmp_path):
    assert convert(PREFIX.parent, "--output_dir", str(tmp_path / "bert")) == 0
    model = BertForPreTraining.from_pretrained(tmp_path / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert model.dtype == torch.float32

    inputs = tokenizer("The cat sat.", "A dog ran?", return_tensors="pt")
    assert inputs.input_ids[0, 1] == 5  # "The" is lower-cased: the vocabulary has no capitals
    with torch.no_grad():
        outputs = model(**inputs)
    mlm, nsp = NumpyBert(expected)(inputs.input_ids[0].numpy(), inputs.token_type_ids[0].numpy())
    np.testing.assert_allclose(outputs.prediction_logits[0], mlm, atol=1e-5 * max(1, np.abs(mlm).max()))
    np.testing.assert_allclose(outputs.seq_relationship_logits[0], nsp, atol=1e-5 * max(1, np.abs(nsp).max()))


def test_the_slots_of_the_optimizer_are_left_out(tmp_path):
    convert(PREFIX.parent, "--output_dir", str(tmp_path / "bert"))
    with safe_open(tmp_path / "bert/model.safetensors", "np") as file:
        assert len(file.keys()) == 46


def test_capitals_in_the_vocabulary_make_a_cased_tokenizer(copied):
    vocabulary = copied / "vocab.txt"
    text = vocabulary.read_text()
    vocabulary.write_text(re.sub("^mat$", "Mat", text, flags=re.MULTILINE))
    assert convert(copied, "--output_dir", str(copied.parent / "out")) == 0
    assert AutoTokenizer.from_pretrained(copied.parent / "out").tokenize("Mat mat") == ["Mat", "[UNK]"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("मुझे हिन्दी पसंद है ।", "मुझे हिन्दी पसंद है।"),
        ("hän ei ole täällä .", "Hän ei ole täällä."),
        ("han ei ole taalla .", "Hän ei ole täällä."),
        ("나는 학생", "나는 학생"),
    ],
)
def test_marks_are_stripped_unless_the_vocabulary_has_them(words, text, copied):
    specials = (copied / "vocab.txt").read_text().split("\n")[:5]
    (copied / "vocab.txt").write_text("\n".join([*specials, *words.split()]))
    assert convert(copied, "--output_dir", str(copied.parent / "out")) == 0
    assert AutoTokenizer.from_pretrained(copied.parent / "out").tokenize(text) == words.split()


def test_a_folder_without_or_with_two_checkpoints_is_refused(copied, capsys):
    shutil.copy(copied / "bert_model.ckpt.index", copied / "other.index")
    assert convert(copied, "--output_dir", str(copied.parent / "out")) == 2
    assert "2 TensorFlow checkpoints" in capsys.readouterr().err
    assert convert(copied.parent, "--output_dir", str(copied.parent / "out")) == 2
