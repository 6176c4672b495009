import json
from types import SimpleNamespace

import pytest
import torch
from tiny import tiny_tokenizer

from bert_hf import BertForPreTraining, InputError
from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.finetuning.run import identity_of
from bert_hf.pretraining.start import pretraining_identity
from bert_hf.training import output_folder, run
from bert_hf.training.identity import differences
from bert_hf.training.run import Run, start_run


@pytest.fixture(autouse=True)
def released():
    yield
    output_folder.release_lock()


def identity(config, folder, rate=5e-4, examples=None, checkpoint=None, **changes):
    changes = {"warmup_steps": 10_000, **changes}
    args = PreTrainingArguments(str(folder), max_steps=8, learning_rate=rate, bf16=False, use_cpu=True, **changes)
    text = SimpleNamespace(fingerprint="training"), SimpleNamespace(fingerprint="held out")
    model_args = ModelArguments(model_name_or_path=checkpoint)
    made = pretraining_identity(args, config, tiny_tokenizer(), text, examples or ExampleArguments(), model_args)
    return json.loads(json.dumps(made)), args


def recorded(folder, made, finished=False):
    folder.mkdir(exist_ok=True)
    Run(folder, made, finished=finished).record()


def test_the_entry_that_differs_is_named(config, tmp_path):
    made, _ = identity(config, tmp_path)
    recorded(tmp_path / "run", made)
    other, args = identity(config, tmp_path / "run", rate=1e-3)
    with pytest.raises(InputError) as caught:
        start_run(args, other)
    assert "contains another run: optimizer differ (learning_rate: 0.001, was 0.0005); give" in str(caught.value)


def test_a_run_that_keeps_its_best_weights_is_another_one(config, tmp_path):
    """And so is one that is evaluated at other steps, which may find other weights the best."""
    made, args = identity(config, tmp_path / "run")
    recorded(tmp_path / "run", made, finished=True)
    assert start_run(args, made).finished
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 4}
    kept, _ = identity(config, tmp_path / "run", **best)
    with pytest.raises(InputError, match=r"kept: loss, was the last weights"):
        start_run(args, kept)

    recorded(tmp_path / "best", kept, finished=True)
    often, args = identity(config, tmp_path / "best", **{**best, "eval_steps": 2})
    with pytest.raises(InputError, match=r"eval_steps: 2, was 4"):
        start_run(args, often)
    assert identity(config, tmp_path, eval_steps=2)[0] == identity(config, tmp_path, eval_steps=4)[0]


def test_a_run_is_another_one_if_the_checkpoint_that_it_starts_from_has_other_weights(config, tmp_path, monkeypatch):
    """Not if its folder is spelled differently."""
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
                assert differences(before, after) == {}
    for before, after in zip(first, identities("start"), strict=True):
        assert list(differences(before, after)) == ["weights"]


def test_a_host_with_other_files_is_named(config, tmp_path, monkeypatch):
    made, args = identity(config, tmp_path / "run")
    monkeypatch.setattr(run, "gather_values", lambda mine: [mine, {**mine, "data": "another text"}])
    with pytest.raises(
        InputError, match=r"rank 1: data differ \(data: another text, rank 0 has .*; give all hosts the"
    ):
        start_run(args, made)


def test_a_published_configuration_names_no_checkpoint_that_is_read(config, tmp_path):
    config.name_or_path = "google-bert/bert-base-uncased"
    assert identity(config, tmp_path)[0]["weights"] is None
