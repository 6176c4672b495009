import copy
import json
from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_tokenizer

from bert_hf import BertForPreTraining, InputError
from bert_hf.config.arguments import (
    ClassificationArguments,
    ExampleArguments,
    FineTuningArguments,
    ModelArguments,
    PreTrainingArguments,
)
from bert_hf.finetuning.run import identity_of
from bert_hf.training import output_folder
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.checkpoints.checkpoint_files import DamagedCheckpoint
from bert_hf.training.pretraining import pretraining_identity
from bert_hf.training.run_fingerprint import describe, differences

OLD = {  # what version 0.1.0 recorded of the run below
    "optimizer": [0.0005, 0.9, 0.999, 1e-06, 0.01, 1.0, True, "OptimizerNames.ADAMW_TORCH_FUSED", False, False],
    "schedule": [8, 3.0, 10000, "SchedulerType.LINEAR", False],
}


def identity(config, folder, rate=5e-4, initializer="truncated_normal", examples=None, checkpoint=None, **changes):
    changes = {"warmup_steps": 10_000, **changes}
    args = PreTrainingArguments(str(folder), max_steps=8, learning_rate=rate, bf16=False, use_cpu=True, **changes)
    text = SimpleNamespace(fingerprint="training"), SimpleNamespace(fingerprint="held out")
    model_args = ModelArguments(model_name_or_path=checkpoint, initializer=initializer)
    made = pretraining_identity(args, config, tiny_tokenizer(), text, examples or ExampleArguments(), model_args)
    return json.loads(json.dumps(made)), args


def recorded(folder, made, finished=False):
    folder.mkdir(exist_ok=True)
    output_folder.write_record(folder, made, finished)


def test_the_entry_that_differs_is_named(config, tmp_path):
    made, _ = identity(config, tmp_path)
    recorded(tmp_path / "run", made)
    other, args = identity(config, tmp_path / "run", rate=1e-3)
    with pytest.raises(InputError) as caught:
        output_folder.start(args, other)
    assert "holds another run: optimizer differ (learning_rate: 0.001, was 0.0005); give" in str(caught.value)


def test_a_final_share_is_another_run_and_without_one_it_is_not_recorded(config, tmp_path):
    made, args = identity(config, tmp_path / "run")
    assert not [name for name in made["examples"] if name.startswith(("final_mlm", "seq_length_warmup"))]
    recorded(tmp_path / "run", made)
    other, _ = identity(config, tmp_path / "run", examples=ExampleArguments(final_mlm_probability=0.1))
    with pytest.raises(InputError, match=r"examples differ \(final_mlm_probability: 0.1, was None; final_mlm_fr"):
        output_folder.start(args, other)


def test_other_initial_weights_are_another_run(config, tmp_path):
    made, args = identity(config, tmp_path / "run")
    recorded(tmp_path / "run", made, finished=True)
    assert output_folder.start(args, made).finished
    other, _ = identity(config, tmp_path / "run", initializer="normal")
    with pytest.raises(InputError, match=r"initializer: normal, was truncated_normal"):
        output_folder.start(args, other)

    before = {key: value for key, value in made.items() if key != "initializer"}  # as version 0.1 recorded it
    recorded(tmp_path / "run", before, finished=True)
    assert output_folder.start(args, other).finished


def test_a_run_that_keeps_its_best_weights_is_another_one(config, tmp_path):
    """And so is one that is evaluated at other steps, which may find other weights the best."""
    made, args = identity(config, tmp_path / "run")
    recorded(tmp_path / "run", made, finished=True)
    assert output_folder.start(args, made).finished
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 4}
    kept, _ = identity(config, tmp_path / "run", **best)
    with pytest.raises(InputError, match=r"kept: loss, was the last weights"):
        output_folder.start(args, kept)

    recorded(tmp_path / "best", kept, finished=True)
    often, args = identity(config, tmp_path / "best", **{**best, "eval_steps": 2})
    with pytest.raises(InputError, match=r"eval_steps: 2, was 4"):
        output_folder.start(args, often)
    assert identity(config, tmp_path, eval_steps=2)[0] == identity(config, tmp_path, eval_steps=4)[0]


def test_a_run_is_another_one_if_the_checkpoint_that_it_starts_from_has_other_weights(config, tmp_path, monkeypatch):
    """Not if its folder is spelled differently. Records of earlier versions, without a checksum, stay readable."""
    monkeypatch.chdir(tmp_path)
    args = FineTuningArguments("out", learning_rate=3e-4, num_train_epochs=2, bf16=False, use_cpu=True)

    def identities(spelled):
        """(pre-training, fine-tuning) from the weights in the folder `start`."""
        model = BertForPreTraining.from_pretrained(spelled)
        task = SimpleNamespace(
            task_args=ClassificationArguments(spelled), fingerprint=dict, tokenizer=tiny_tokenizer()
        )
        return identity(model.config, "run", checkpoint=spelled)[0], json.loads(
            json.dumps(identity_of(task, args, model))
        )

    for seed in (1, 2):
        torch.manual_seed(seed)
        BertForPreTraining(config).save_pretrained("start")
        if seed == 1:
            first = identities("./start/")
            for before, after in zip(first, identities("start"), strict=True):
                assert before != after
                assert differences(before, after) == {}
    for before, after in zip(first, identities("start"), strict=True):
        assert list(differences(before, after)) == ["weights"]
        assert differences({key: value for key, value in before.items() if key != "weights"}, after) == {}


def test_a_published_configuration_names_no_checkpoint_that_is_read(config, tmp_path):
    config.name_or_path = "google-bert/bert-base-uncased"
    assert identity(config, tmp_path)[0]["weights"] is None


def test_a_run_recorded_with_lists_is_the_same_run(config, tmp_path):
    made, args = identity(config, tmp_path / "run")
    recorded(tmp_path / "run", {**made, **OLD}, finished=True)
    assert output_folder.start(args, made).finished

    other, args = identity(config, tmp_path / "run", rate=1e-3, warmup_steps=0.1)
    with pytest.raises(InputError, match=r"optimizer, schedule differ \(learning_rate: 0.001, was 0.0005; "
                                         r"warmup_steps: 0.1, was 10000\)"):  # fmt: skip
        output_folder.start(args, other)


def test_the_order_of_old_lists_is_kept_for_classifiers(config, tmp_path):
    args = FineTuningArguments(str(tmp_path), learning_rate=3e-4, num_train_epochs=2, bf16=False, use_cpu=True)
    task = SimpleNamespace(
        task_args=ClassificationArguments("checkpoint", from_scratch=True),
        fingerprint=dict,
        tokenizer=tiny_tokenizer(),
    )
    made = identity_of(task, args, SimpleNamespace(config=config))
    old = [3e-4, 0.01, 1e-6, "OptimizerNames.ADAMW_TORCH_FUSED", False, False], [-1, 2, 0.1, "SchedulerType.LINEAR"]
    assert list(made["optimizer"].values())[: len(old[0])] == old[0]
    assert differences({**made, "optimizer": old[0], "schedule": old[1]}, made) == {}


def test_a_checkpoint_recorded_with_lists_belongs_to_the_run(config, tmp_path):
    made, _ = identity(config, tmp_path)
    temporary = tmp_path / ".tmp-checkpoint-3"
    temporary.mkdir()
    (temporary / "model.safetensors").write_bytes(b"weights")
    checkpoint_files.commit(temporary, tmp_path / "checkpoint-3", {"step": 3, "identity": {**made, **OLD}})
    assert checkpoint_files.verify(tmp_path / "checkpoint-3", identity=made)["step"] == 3

    other, _ = identity(config, tmp_path, rate=1e-3)
    with pytest.raises(DamagedCheckpoint, match="identity differs"):
        checkpoint_files.verify(tmp_path / "checkpoint-3", identity=other)


def test_entries_of_every_kind(config, tmp_path):
    made, _ = identity(config, tmp_path)
    other = copy.deepcopy(made)
    other["seed"], other["model"]["hidden_size"], other["examples"]["nsp"] = 7, 64, False
    assert differences(made, other) == {
        "model": ["hidden_size: 64, was 32"], "seed": ["seed: 7, was 42"], "examples": ["nsp: False, was True"],
    }  # fmt: skip
    shorter = {**made, "optimizer": list(made["optimizer"].values())[:-1]}  # recorded before the last entry existed
    assert differences(shorter, made) == {}
    longer = {**made, "optimizer": [*made["optimizer"].values(), "unknown"]}
    assert differences(longer, made) == {"optimizer": ["optimizer: other entries"]}
    many = describe(differences({}, made))
    assert many.startswith("model, tokenizer, data, seed, global_batch, optimizer, schedule")
    assert " and 4 more)" in many  # eight keys, four of them shown
