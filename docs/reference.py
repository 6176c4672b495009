"""Writes the reference pages of the site: every command, every option, and the public names of Python.

They are made from the recipes' docstrings, the option declarations and `bert_hf.__all__`.
"""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import bert_hf
from bert_hf.config import short_help
from bert_hf.config.commands import COMMANDS
from bert_hf.config.options import declarations

INTRODUCTION = """# Commands

`bert-hf COMMAND` runs from any folder; in a clone, `accelerate launch recipes/NAME.py` and `python recipes/NAME.py` do
the same. Commands that train also take every field of transformers'
[TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments).
"""


# What a user looks for, and the options of each subject in the order in which they are used
SUBJECTS = {
    "Command": "config check num_processes accelerate_config",
    "Data": """train_file validation_file test_file dataset_name dataset_config_name task data_dir text_column
        text_pair_column encoding separator language sentence_per_line join_lines deduplicate shard num_proc cache_dir
        validation_split_percentage test_split_percentage split_seed folds max_train_samples max_eval_samples""",
    "Labels": """label_column label_separator label_columns problem_type class_names class_weight
        version_2_with_negative""",
    "Tokenizer": "tokenizer_name vocab_size do_lower_case strip_accents tokenize_chinese_chars",
    "Model": """model_name_or_path config_name from_scratch feature_based dropout position_initializer
        fast_path tf_checkpoint""",
    "Objective": """max_seq_length long_seq_length long_seq_fraction nsp mlm_probability whole_word_mask
        short_seq_probability long_texts document_context doc_stride max_query_length label_smoothing_factor""",
    "Optimizer": """optim learning_rate muon_learning_rate warmup_steps lr_scheduler_type weight_decay adam_epsilon
        per_device_train_batch_size gradient_accumulation_steps max_steps num_train_epochs
        max_hours min_steps""",
    "Run": """output_dir overwrite_output_dir seed bf16 torch_compile do_train do_eval do_predict logging_steps
        report_to eval_strategy eval_steps per_device_eval_batch_size metric_name metric_for_best_model
        load_best_model_at_end save_minutes save_strategy save_steps save_total_limit
        dataloader_num_workers ddp_timeout""",
    "Hub": "push_to_hub hub_model_id model_license dataset_license dataset_source",
    "Prediction": """output write_predictions host max_false_positive_rate best_f1_threshold
        null_score_diff_threshold n_best_size max_answer_length format layers pooling""",
    "Comparison": """models recipe folds_dir seeds train_sizes metrics reference blimp max_pairs device
        num_devices global_batch mfu""",
}


def options_of(name: str) -> dict[str, tuple[Field, Mapping[str, Any]]]:
    """Return the options of a command with their declarations."""
    classes = [*short_help.help_classes(COMMANDS[name]), *COMMANDS[name].others]
    return {field.name: (field, metadata) for cls in classes for field, metadata in declarations(cls)}


def default_of(f: Field) -> str:
    value = f.default_factory() if f.default is MISSING else f.default
    if value is None or value == []:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def meaning(metadata: Mapping[str, Any]) -> str:
    """Return the help text of an option and its limits."""
    notes = {
        "in ": filter(None, [metadata["range"]]),
        "one of ": [f"`{choice}`" for choice in metadata.get("choices", ())],
        "only with ": [f"`--{name}`" for name in metadata["only_with"]],
        "not with ": [f"`--{name}`" for name in metadata["not_with"]],
    }
    texts = {note: ", ".join(names) for note, names in notes.items()}
    remarks = "; ".join(note + text for note, text in texts.items() if text)
    return (metadata["help"].replace("%%", "%") + (f" ({remarks})" if remarks else "")).replace("|", "\\|")


def row(name: str) -> str:
    """Return the line of an option in a table: its name, defaults, meanings, and the commands that take it."""
    taken = {command: options_of(command)[name] for command in COMMANDS if name in options_of(command)}
    columns = []
    for describe in (lambda field, _: default_of(field), lambda _, metadata: meaning(metadata)):
        commands_of_text: dict[str, list[str]] = {}
        for command, declaration in taken.items():
            commands_of_text.setdefault(describe(*declaration), []).append(command)
        first, *others = sorted(commands_of_text, key=lambda text: -len(commands_of_text[text]))
        others = [f"*{', '.join(commands_of_text[text])}*: {text or 'none'}" for text in others]
        columns.append("<br>".join(filter(None, [first, *others])))
    return f"| `--{name}` | {columns[0]} | {columns[1]} | {', '.join(taken)} |"


def command(name: str) -> list[str]:
    """Return the lines of a command: its purpose, its page of help, and links to the subjects of all its options."""
    first, text = short_help.description(name).split("\n\n", 1)
    page = f"{text}\n\n{short_help.options_page(name)}"
    subjects = [subject for subject, names in SUBJECTS.items() if options_of(name).keys() & set(names.split())]
    links = [f"[{subject}](options.md#{subject.lower()})" for subject in subjects]
    heading = [f"## bert-hf {name}", "", f"`recipes/{COMMANDS[name].recipe}.py`: {first}", ""]
    return [*heading, "```text", page, "```", "", f"All options: {', '.join(links)}", ""]


def directive(name: str) -> str:
    """What makes Sphinx document a public name; the fields of option classes are on the page of options."""
    if name.endswith("Arguments"):
        return f".. autoclass:: bert_hf.{name}(**options)"
    if inspect.isclass(getattr(bert_hf, name)):
        return f".. autoclass:: bert_hf.{name}\n   :members:\n   :exclude-members: config_class, auto_class"
    return f".. autofunction:: bert_hf.{name}"


def write_pages(folder: Path) -> None:
    """Writes commands.md, options.md and python.md."""
    folder.mkdir(exist_ok=True)
    lines = [INTRODUCTION, *(line for name in COMMANDS for line in command(name))]
    (folder / "commands.md").write_text("\n".join(lines))

    lines = ["# Options", "", "By subject, with the commands that take them.", ""]
    for subject, names in SUBJECTS.items():
        lines += [f"## {subject}", "", "| option | default | meaning | commands |", "|---|---|---|---|"]
        lines += [*map(row, names.split()), ""]
    (folder / "options.md").write_text("\n".join(lines))

    lines = ["# Python", "", "What `from bert_hf import …` gives.", ""]
    for name in bert_hf.__all__:
        lines += [f"## {name}", "", "```{eval-rst}", directive(name), "```", ""]
    (folder / "python.md").write_text("\n".join(lines))
