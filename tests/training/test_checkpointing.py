import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_config
from transformers import BertForPreTraining

from bert_hf.models.loading import load_weights
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.checkpoints.checkpoint_files import DamagedCheckpoint, commit, newest_verified, rotate, verify
from bert_hf.training.checkpoints.trainer_state import save_model, save_state


def make(run, step):
    temporary = run / f"{checkpoint_files.TEMPORARY}checkpoint-{step}"
    temporary.mkdir(parents=True)
    save_state({"step": step, "m": torch.arange(5.0)}, temporary / "optimizer.safetensors")
    (temporary / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    final = run / f"checkpoint-{step}"
    commit(temporary, final, {"step": step})
    return final


def test_all_files_are_on_the_disk_before_a_checkpoint_has_its_name(tmp_path, monkeypatch):
    events = []
    place = {}  # by inode: which file or folder a descriptor is of
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *paths: events.append("renamed") or rename(*paths))
    final = make(tmp_path, 3)
    place |= {path.stat().st_ino: path.name for path in (tmp_path, final, *final.iterdir())}

    order = [place.get(event, event) for event in events]
    named = order.index("renamed")
    assert set(order[:named]) >= {path.name for path in final.iterdir()}
    assert tmp_path.name in order[named:]  # the folder with the new name


def test_the_names_of_an_old_checkpoint_are_not_saved_again(tmp_path):
    """As google-bert/bert-base-uncased has them; a run resumes from its own checkpoints by the names of today."""
    stock = BertForPreTraining(tiny_config())
    stock.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        renamed = {name.replace(new, old): value for name, value in load_file(tmp_path / "model.safetensors").items()}
        save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})

    model = BertForPreTraining.from_pretrained(tmp_path)
    save_model(model, model.state_dict(), None, tmp_path / "saved", 1)
    assert load_file(tmp_path / "saved/model.safetensors").keys() == names.keys()
    load_weights(stock, tmp_path / "saved")


def test_what_is_no_plain_state_is_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot save a object"):
        save_state({"x": object()}, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_newest_is_chosen_and_leftovers_go(tmp_path):
    for step in (3, 12, 6):
        make(tmp_path, step)
    (tmp_path / "saving-checkpoint-15").mkdir()
    assert newest_verified(tmp_path).name == "checkpoint-12"
    assert not (tmp_path / "saving-checkpoint-15").exists()


@pytest.mark.parametrize("fault", ["truncate", "flip", "remove", "manifest", "garbage manifest"])
def test_damage_is_named_and_passed_over(tmp_path, caplog, fault):
    make(tmp_path, 1)
    newest = make(tmp_path, 2)
    victim = newest / ("checkpoint_manifest.json" if "manifest" in fault else "optimizer.safetensors")
    data = victim.read_bytes()
    if fault == "truncate":
        os.truncate(victim, len(data) // 2)
    elif fault == "flip":
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif fault == "garbage manifest":
        victim.write_text("[]")
    else:
        victim.unlink()
    assert newest_verified(tmp_path).name == "checkpoint-1"
    assert len(caplog.messages) == 1
    assert victim.name in caplog.text


def test_a_file_outside_the_folder_is_not_read(tmp_path):
    folder = make(tmp_path, 1)
    manifest = folder / "checkpoint_manifest.json"
    content = json.loads(manifest.read_text().replace("trainer_state.json", "../outside.json"))
    manifest.write_text(json.dumps({**content, "sha256": checkpoint_files._digest_of(content)}))
    (folder / "trainer_state.json").unlink()
    (tmp_path / "outside.json").write_text('{"global_step": 1}')
    with pytest.raises(DamagedCheckpoint, match="outside"):
        verify(folder)


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 6):
        make(tmp_path, step)
    names = {f"checkpoint-{step}" for step in range(1, 6)}
    rotate(tmp_path, 2, names, spared=str(tmp_path / "checkpoint-1"))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-4",
        "checkpoint-5",
    ]
    rotate(tmp_path, None, names)
    assert (tmp_path / "checkpoint-4").exists()
