"""The list of all options: a new one is seen in review. And how option classes are made."""

from dataclasses import dataclass, fields

import pytest
from transformers import TrainingArguments

from bert_hf.config.commands import COMMANDS
from bert_hf.config.options import check_ranges, declarations, option
from bert_hf.config.short_help import help_classes
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.errors import InputError

OURS = """
    accelerate_config best_f1_threshold blimp cache_dir check class_names class_weight config config_name
    data_dir dataset_config_name dataset_license dataset_name dataset_source deduplicate device do_lower_case
    doc_stride document_context dropout encoding fast_path feature_based folds folds_dir format from_scratch
    global_batch host join_lines label_column label_columns label_separator language layers long_seq_fraction
    long_seq_length long_texts max_answer_length max_eval_samples max_false_positive_rate max_hours max_pairs
    max_query_length max_seq_length max_train_samples metric_name metrics mfu min_steps
    mlm_probability model_license model_name_or_path models muon_learning_rate n_best_size nsp
    null_score_diff_threshold num_devices num_proc num_processes output overwrite_output_dir pooling
    position_initializer problem_type recipe reference save_minutes seeds sentence_per_line separator shard
    short_seq_probability split_seed strip_accents task test_file test_split_percentage text_column
    text_pair_column tf_checkpoint tokenize_chinese_chars tokenizer_name train_file train_sizes validation_file
    validation_split_percentage version_2_with_negative vocab_size whole_word_mask write_predictions
""".split()

# Declared here for their help text, default or range; training takes all other fields of `TrainingArguments`, too
OF_TRAINER = """
    adam_epsilon bf16 dataloader_num_workers ddp_timeout do_eval do_predict do_train eval_steps eval_strategy
    gradient_accumulation_steps hub_model_id label_smoothing_factor learning_rate load_best_model_at_end
    logging_steps lr_scheduler_type max_steps metric_for_best_model num_train_epochs optim output_dir
    per_device_eval_batch_size per_device_train_batch_size push_to_hub report_to save_steps save_strategy
    save_total_limit seed torch_compile warmup_steps weight_decay
""".split()

CLASSES = {cls for command in COMMANDS.values() for cls in (*help_classes(command), *command.others)}


def test_all_options_are_exactly_these():
    names = {field.name for cls in CLASSES for field in fields(cls)}
    stock = {field.name for field in fields(TrainingArguments)}
    assert sorted(names - stock) == OURS
    assert sorted(names & stock) == OF_TRAINER
    assert len(names) <= 150


@pytest.mark.parametrize(
    "cls", sorted({*CLASSES, PreTrainingArguments, FineTuningArguments}, key=lambda cls: cls.__name__)
)
def test_option_classes_are_flat_and_in_one_package(cls):
    ours = [base for base in cls.__mro__ if base.__module__.startswith("bert_hf.")]
    assert len(ours[1:]) <= 3
    assert all(base.__module__.startswith("bert_hf.config.") for base in ours)


def test_a_default_that_is_changed_keeps_the_declaration():
    @dataclass
    class Base:
        steps: int = option(1, "Steps.", common=True, range="[1, 9]")

    @dataclass
    class Derived(Base):
        steps: int = 10

    ((field, declared),) = declarations(Derived)
    assert (field.default, declared["help"], declared["common"]) == (10, "Steps.", True)
    check_ranges(Base())
    with pytest.raises(InputError, match=r"--steps: 10 is out of range; must be in \[1, 9\]"):
        check_ranges(Derived())
