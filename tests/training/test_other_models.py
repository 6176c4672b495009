"""Models, collators and batches that are not those of the recipes."""

import pytest
import torch
import transformers
from helpers.trainer_runs import make, ready_rows
from safetensors.torch import load_file
from tiny import TinyStore, tiny_config
from transformers import TrainingArguments

from bert_hf import (
    BertForPreTraining,
    DataCollatorForPreTraining,
    InputError,
    PreTrainer,
    PreTrainingExamples,
    ResumableTrainer,
)


class Plain(torch.nn.Module):
    """Not a `PreTrainedModel`; its output layer is tied to its embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = torch.nn.Embedding(99, 8)
        self.dropout = torch.nn.Dropout(0.1)
        self.output = torch.nn.Linear(8, 99)
        self.output.weight = self.embeddings.weight

    def forward(self, input_ids, labels=None, **kwargs):
        logits = self.output(self.dropout(self.embeddings(input_ids)))
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def arguments(folder, **options):
    return TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=4, save_steps=2, seed=1, **options
    )


def trained(folder, checkpoint=None):
    trainer = ResumableTrainer(Plain(), arguments(folder), transformers.default_data_collator, ready_rows())
    trainer.train(resume_from_checkpoint=checkpoint)
    return folder / "checkpoint-4/model.safetensors"


def test_a_plain_module_is_saved_and_resumed(tmp_path):
    whole = trained(tmp_path / "whole")
    assert load_file(whole).keys() == Plain().state_dict().keys()

    resumed = trained(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-2"))
    assert resumed.read_bytes() == whole.read_bytes()


def test_stock_arguments_may_have_our_defaults(tmp_path):
    ours = {"logging_nan_inf_filter": False, "hub_strategy": "end"}
    ResumableTrainer(Plain(), arguments(tmp_path, **ours), transformers.default_data_collator, ready_rows())

    with pytest.raises(InputError, match=r"--hub_strategy: the finished run is pushed once"):
        ResumableTrainer(Plain(), arguments(tmp_path, hub_strategy="checkpoint"))


def test_the_collator_s_tokenizer_is_saved(tmp_path, tokenizer):
    model = BertForPreTraining(tiny_config())
    trainer = PreTrainer(
        model, arguments(tmp_path), DataCollatorForPreTraining(tokenizer), PreTrainingExamples(TinyStore())
    )
    trainer.save_model()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


def test_the_first_value_of_a_batch_may_be_none(tmp_path):
    def collator(rows):
        return {"position_ids": None, **transformers.default_data_collator(rows)}

    trainer = PreTrainer(BertForPreTraining(tiny_config()), arguments(tmp_path), collator, ready_rows())
    trainer.train()
    assert trainer.state.global_step == 4


def test_a_model_without_both_heads_is_refused(tmp_path):
    model = transformers.BertForMaskedLM(tiny_config())
    trainer = PreTrainer(model, arguments(tmp_path), transformers.default_data_collator, ready_rows())
    with pytest.raises(InputError, match=r"BertForMaskedLM returns no prediction_logits"):
        trainer.train()


def test_pairs_need_two_token_types(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer)
    trainer.model.config.type_vocab_size = 1
    with pytest.raises(InputError, match=r"sentence pairs need 2 token types, the model has 1"):
        trainer.train()
