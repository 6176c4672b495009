"""Curves, model card and push of a finished run."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_server import HubServer
from PIL import Image

from bert_hf import BertForPreTraining
from bert_hf.training.publishing.card import Card, held_out_description, write_card
from bert_hf.training.publishing.curves import draw_curves, write_curves

TOKEN = "hf_canary0123456789"
FIGURES = {"eval_mlm_loss": 2.34567, "eval_nsp_accuracy": 0.9, "train_runtime": 3.0, "unigram_mlm_loss": 6.5}
HISTORY = [
    {"step": 10, "loss": 7.0, "mlm_loss": 6.3, "nsp_loss": 0.7, "nsp_accuracy": 0.5},
    {"step": 20, "eval_loss": 6.0, "eval_mlm_loss": 5.4, "eval_nsp_accuracy": 0.6},
]


def card(**changes):
    given = {"pipeline_tag": "fill-mask", "command": "accelerate launch x", "machine": "CPU"}
    return Card(**{**given, **changes})


@pytest.fixture
def folder(tmp_path, config, tokenizer):
    BertForPreTraining(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write_curves(HISTORY, tmp_path, {"unigram_mlm_loss": 6.5})
    said = {"dataset_license": "odbl", "model_license": "cc-by-4.0", "source": "my archive", "language": "en"}
    identity = {"seed": 3, "max_hours": None, "optimizer": {"name": "muon", "learning_rate": 1e-3}}
    write_card(tmp_path, card(**said), FIGURES, identity)
    (tmp_path / "all_results.json").write_text(json.dumps(FIGURES))
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04")  # must not travel
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3/model.safetensors").write_bytes(b"x")
    return tmp_path


def test_a_push_through_the_real_client_and_back(folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    expected = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".pt"}
    with HubServer(TOKEN) as server:
        environment = {
            **os.environ, "HF_ENDPOINT": server.address, "HF_TOKEN": TOKEN, "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        worker = Path(__file__).parents[1] / "hub_worker.py"
        done = subprocess.run(
            [sys.executable, str(worker), str(folder)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        seen = json.loads(done.stdout.split("SEEN ")[1])
        stored = server.repos["me/tiny"]
        assert set(server.objects) == server.verified  # model.safetensors went through LFS, the rest in the commit
        assert len(server.objects) == 1
    assert set(stored) - {".gitattributes"} == expected
    assert not any(TOKEN.encode() in data for data in stored.values())
    assert not any(data[:2] == b"\x80\x04" or data[:4] == b"PK\x03\x04" for data in stored.values())
    assert seen["equal"] is True
    assert seen["ids"] is True
    assert "/me/tiny/" in seen["address"]
    assert b'model="me/tiny"' in stored["README.md"]
    assert server.branches == ["new"]
    assert seen["no rights"].startswith("me/other: the push failed: ")
    assert "hf auth login" in seen["no rights"]
    assert seen["stalled"].startswith("me/stalled: the push failed: ")
    assert "timed out" in seen["stalled"]


def test_a_token_on_the_command_line_is_not_in_the_card(tmp_path):
    write_card(tmp_path, card(command=f"accelerate launch x --other hf_{'aB3' * 12} --seed 1"), FIGURES)
    text = (tmp_path / "README.md").read_text()
    assert "hf_" not in text.replace("bert_hf", "")
    assert "(token) --seed 1" in text


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])


def test_the_card_holds_the_run_s_figures_and_what_the_user_said(folder):
    text, front = (folder / "README.md").read_text(), front_matter(folder)
    assert front["license"] == "cc-by-4.0"
    assert front["language"] == "en"
    assert front["pipeline_tag"] == "fill-mask"
    results = front["model-index"][0]["results"][0]
    found = {m["type"]: m["value"] for m in results["metrics"]}
    assert found == {"mlm_loss": 2.34567, "nsp_accuracy": 0.9}  # a baseline is no result of this model
    assert results["dataset"]["split"] == "validation"
    assert "| metric | validation | baseline |\n|---|---:|---:|\n| mlm_loss | 2.3457 | 6.5000 |\n" in text
    assert "Licence of the data: odbl\n" in text
    assert results["dataset"]["name"] == "my archive"
    assert "train_runtime" not in text
    assert "| seed | 3 |\n| optimizer: name | muon |\n| optimizer: learning_rate | 0.001 |\n" in text
    assert "accelerate launch x" in text


def test_the_code_on_the_card_names_the_folder_and_runs(tmp_path):
    write_card(tmp_path, card(example='He said "\\[MASK]".'), {"eval_loss": float("nan")})
    text = (tmp_path / "README.md").read_text()
    code = text.split("```python")[1].split("```")[0]
    compile(code, "card", "exec")
    assert f'model="{tmp_path.name}"' in code
    assert "model-index" not in front_matter(tmp_path)  # not a number is not a figure


def test_the_hub_is_told_of_no_pipeline_that_cannot_load_the_model(tmp_path):
    write_card(tmp_path, card(pipeline_tag="token-classification", stock=False), {"test_f1": 0.5})
    front = front_matter(tmp_path)
    assert not {"pipeline_tag", "library_name"} & front.keys()
    assert front["model-index"][0]["results"][0]["task"]["type"] == "token-classification"


def test_nothing_is_guessed(tmp_path):
    write_card(tmp_path, card(), FIGURES)
    assert "license" not in front_matter(tmp_path)
    assert "language" not in front_matter(tmp_path)
    assert "datasets" not in front_matter(tmp_path)
    assert (tmp_path / "README.md").read_text().split("\n---\n")[1].count(": not stated") == 3


def test_curves_of_a_log_without_steps_or_lines(tmp_path):
    write_curves([{"loss": 1.0}], tmp_path, {})
    write_curves([], tmp_path, {})
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_curves(tmp_path):
    write_curves(HISTORY, tmp_path, {"unigram_mlm_loss": 6.5, "majority_nsp_accuracy": 0.52})
    with open(tmp_path / "log_history.csv", newline="") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    assert rows == HISTORY
    with Image.open(tmp_path / "loss.png") as picture:
        assert picture.size == (1320, 480)
        assert len(picture.convert("RGB").getcolors(1_000_000)) > 20


def test_each_task_has_a_panel_with_its_baseline():
    """MLM losses lie between 2 and 10 nats, NSP losses below 0.7: on one axis the second is a flat line."""
    figure = draw_curves(HISTORY, {"unigram_mlm_loss": 6.5, "majority_nsp_accuracy": 0.52})
    shown = [[(line.get_label(), list(map(float, line.get_ydata()))) for line in axes.lines] for axes in figure.axes]
    assert shown == [
        [("MLM loss, held out", [5.4]), ("MLM loss, training", [6.3]), ("unigram frequencies (6.500)", [6.5, 6.5])],
        [("NSP accuracy, held out", [0.6]), ("NSP accuracy, training", [0.5]), ("majority class (0.520)", [0.52] * 2)],
    ]


def test_panels_of_a_masked_lm_alone_and_of_a_classifier():
    alone = [{"step": 1, "loss": 7.0, "mlm_loss": 7.0, "mlm_accuracy": 0.1}]
    classifier = [{"step": 1, "loss": 0.7}, {"step": 1, "eval_loss": 0.6, "eval_f1": 0.5, "eval_accuracy": 0.9}]
    labels, axes_names = [], []
    for history in (alone, classifier):
        figure = draw_curves(history, {})
        labels.append([[line.get_label() for line in axes.lines] for axes in figure.axes])
        axes_names.append(figure.axes[1].get_ylabel())
    assert axes_names == ["accuracy", "F1, accuracy"]
    assert labels == [
        [["MLM loss, training"], ["MLM accuracy, training"]],
        [["loss, held out", "loss, training"], ["accuracy, held out", "F1, held out"]],
    ]


def test_the_card_says_on_what_the_figures_were_taken(tmp_path):
    said = {
        held_out_description(None, "--validation_file", "documents held out"): "documents held out",
        held_out_description(["a/valid.txt", "b/c.txt"], "--validation_file", ""): (
            "the text given by --validation_file (valid.txt, c.txt)"
        ),
        held_out_description(list("abcde"), "--test_file", ""): "the text given by --test_file (a, b, c and 2 more)",
    }
    for given, expected in said.items():
        write_card(tmp_path, card(held_out=given, limits=["Trained at 128."]), FIGURES)
        text = (tmp_path / "README.md").read_text()
        assert f"Measured on {expected}:\n" in text
        assert "\n\nTrained at 128.\n" in text
