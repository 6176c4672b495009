from importlib.metadata import version

import pytest

from bert_hf.config import hardware
from bert_hf.config.arguments import CorpusArguments, ExampleArguments
from bert_hf.config.finetuning_arguments import ClassificationArguments, QuestionAnsweringArguments, TaskArguments
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError

CLASSES = (CorpusArguments, ExampleArguments, PreTrainingArguments)


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_line_wins_over_the_file(tmp_path):
    path = write(tmp_path, "learning_rate: 3.0e-4\nmax_steps: 7\ntrain_file: [a.txt, b.txt]\nnsp: false\nseed:\n")
    corpus, shape, args = parse(CLASSES, ["--config", path, "--max_steps", "9", "--use_cpu"])
    assert (args.learning_rate, args.max_steps, corpus.train_file, shape.nsp) == (3e-4, 9, ["a.txt", "b.txt"], False)
    assert args.seed == 42  # an empty value leaves the default


def test_the_default_file_is_used_for_the_bare_command_only(tmp_path):
    path = write(tmp_path, "max_steps: 7\n")
    assert parse(CLASSES, [], path)[-1].max_steps == 7
    assert parse(CLASSES, ["--seed", "1"], path)[-1].max_steps == -1


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("max_step: 7\n", [], "run.yaml:1: unknown option 'max_step'; did you mean 'max_steps'?"),
        ("seed: 1\n\nmax_steps: many\n", [], "run.yaml:3: argument --max_steps"),
        ("a: [1\n", [], "run.yaml:2: invalid YAML"),
        ("- a\n", [], "run.yaml:1: not a mapping"),
        ("seed: 1\nseed: 2\n", [], "run.yaml:2: duplicate key 'seed', first in line 1"),
        ("", ["--block_size", "128"], "command line: unknown option 'block_size'; did you mean 'max_seq_length'?"),
        ("", ["--text_column_names", "x"], "unknown option 'text_column_names'; did you mean 'text_column'?"),
        ("", ["--deepspeed", "x.json"], 'the package deepspeed is not installed; pip install "bert-hf[deepspeed]"'),
        ("", ["--max_steps", "x"], "command line: argument --max_steps"),
        ("", ["--mlm_probability", "1.5"], "--mlm_probability: 1.5 is out of range; must be in (0, 1)"),
        ("mlm_probability: nan\n", [], "--mlm_probability: nan is out of range"),
        ("", ["--seed", "-1"], "--seed: -1 is out of range"),
        ("", ["--long_seq_length", "64"], "arguments: --long_seq_length must be at least --max_seq_length"),
        ("", ["--long_seq_fraction", "0.2"], "--long_seq_fraction: no effect without --long_seq_length"),
        ("", ["--max_hours", "1", "--max_steps", "9"], "--max_hours: no effect with --max_steps"),
        ("train_file: a\n", ["--validation_file", "b", "--validation_split_percentage", "2"], "--validation_split_p"),
        ("", ["--output_dir="], "--output_dir: empty value"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, text, words, line):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version("none" if name == "deepspeed" else name))
    with pytest.raises(InputError) as caught:
        parse(CLASSES, ["--config", write(tmp_path, text), *words])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_text_of_a_value_is_taken_as_it_is_written(tmp_path):
    """YAML 1.1 reads 32:0.2 as a number of base 60, 010 as 8, `no` as false, and 1.10 as 1.1."""
    text = (
        "validation_file: [32:0.2, 64:0.5]\nlanguage: no\nmax_steps: 010\nrun_name: 1.10\noutput_dir: 2026-01-01\n"
        "nsp: No\nsave_strategy: no\nseed: ~\nfast_path: no\ndataset_source: '0x10'\n"
        "lr_scheduler_kwargs: {power: 2.0, lr_end: 1e-6}\n"
    )
    corpus, shape, args = parse(CLASSES, ["--config", write(tmp_path, text), "--use_cpu", "--bf16", "false"])
    assert corpus.validation_file == ["32:0.2", "64:0.5"]
    assert (corpus.language, corpus.dataset_source, shape.nsp, args.max_steps) == ("no", "0x10", False, 10)
    assert (args.run_name, args.output_dir, args.seed, args.fast_path) == ("1.10", "2026-01-01", 42, False)
    assert args.save_strategy == "no"
    assert args.lr_scheduler_kwargs == {"power": 2.0, "lr_end": 1e-6}
    with pytest.raises(InputError, match=r"run\.yaml:1: argument --nsp: Truthy value expected: got on but expected"):
        parse(CLASSES, ["--config", write(tmp_path, "nsp: on\n")])


def test_the_home_folder_is_written_as_a_tilde(tmp_path, monkeypatch):
    """Also where the shell does not expand it: after `=`, and in a file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, "validation_file: [~/v.txt, a~b.txt]\ncache_dir: ~/cache\n")
    words = ["--config=~/run.yaml", "--output_dir=~/out", "--train_file", "~/a.txt", "/b~.txt", "--use_cpu"]
    assert path == f"{tmp_path}/run.yaml"
    corpus, _, args = parse(CLASSES, words)
    assert corpus.train_file == [f"{tmp_path}/a.txt", "/b~.txt"]
    assert corpus.validation_file == [f"{tmp_path}/v.txt", "a~b.txt"]
    assert (corpus.cache_dir, args.output_dir) == (f"{tmp_path}/cache", f"{tmp_path}/out")


def test_data_of_the_command_line_replace_those_of_the_file(tmp_path):
    files, dataset = "train_file: [a.txt]\n", "dataset_name: me/text\ndataset_config_name: de\n"
    corpus = parse(CLASSES, ["--config", write(tmp_path, dataset), "--train_file=b.txt", "--use_cpu"])[0]
    assert (corpus.train_file, corpus.dataset_name, corpus.dataset_config_name) == (["b.txt"], None, None)
    corpus = parse(CLASSES, ["--config", write(tmp_path, files), "--dataset_name", "me/text", "--use_cpu"])[0]
    assert (corpus.train_file, corpus.dataset_name) == (None, "me/text")


def test_a_configuration_may_belong_to_the_dataset_of_a_task():
    (task,) = parse((ClassificationArguments,), ["--task", "spam", "--dataset_config_name", "other"])
    assert task.dataset_config_name == "other"
    with pytest.raises(InputError, match="--dataset_config_name: no effect without --dataset_name"):
        parse((ClassificationArguments,), ["--dataset_config_name", "other"])


def test_a_file_may_hold_the_rate_of_an_optimizer_that_the_command_line_replaces(tmp_path):
    path = write(tmp_path, "optim: muon\nmuon_learning_rate: 4e-3\n")
    words = ["--config", path, "--use_cpu", "--bf16", "false"]
    (args,) = parse((PreTrainingArguments,), [*words, "--optim", "adamw_torch_fused"])
    assert args.optim == "adamw_torch_fused"
    (args,) = parse((PreTrainingArguments,), [*words, "--muon_learning_rate", "5e-3"])
    assert (args.optim, args.muon_learning_rate) == ("muon", 5e-3)
    with pytest.raises(InputError, match="--muon_learning_rate: no effect without --optim muon"):
        parse((PreTrainingArguments,), [*words, "--optim", "adamw_torch_fused", "--muon_learning_rate", "5e-3"])


def test_a_schedule_on_the_command_line_replaces_that_of_the_file(tmp_path):
    path = write(tmp_path, "lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 0.2}\n")

    def schedule(*words):
        (args,) = parse((PreTrainingArguments,), ["--config", path, "--output_dir", str(tmp_path / "out"), *words])
        return args.lr_scheduler_type.value, args.lr_scheduler_kwargs or None

    assert schedule() == ("warmup_stable_decay", {"num_decay_steps": 0.2})
    assert schedule("--lr_scheduler_type", "linear") == ("linear", None)


@pytest.mark.parametrize(
    ("file", "given", "expected"),
    [
        ("max_steps: 5", ["--max_hours", "2"], (-1, 3.0, 2.0)),
        ("max_steps: 5", ["--num-train-epochs", "7"], (-1, 7.0, None)),
        ("num_train_epochs: 5", ["--max_steps=9"], (9, 5.0, None)),
        ("max_hours: 5", ["--max_steps", "9"], (9, 3.0, None)),
        ("max_steps: 5", ["--seed", "2"], (5, 3.0, None)),
    ],
)
def test_the_length_of_a_run_on_the_command_line_replaces_that_of_the_file(tmp_path, file, given, expected):
    args = parse(CLASSES, ["--config", write(tmp_path, file + "\n"), *given, "--use_cpu"])[2]
    assert (args.max_steps, args.num_train_epochs, args.max_hours) == expected


@pytest.mark.parametrize("name", ["english", "German", "de_DE", "", "d", "false"])
@pytest.mark.parametrize("arguments", [CorpusArguments, TaskArguments, QuestionAnsweringArguments])
def test_names_of_languages_are_refused(arguments, name):
    with pytest.raises(InputError, match=r"--language: .* is not an ISO 639 language code"):
        arguments(language=name)


def test_threads_are_cores_by_local_ranks_unless_the_user_sets_them(monkeypatch):
    for name in ("OMP_NUM_THREADS", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert hardware.cpu_threads() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert hardware.cpu_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert hardware.cpu_threads() == 3  # plain python: it is the user's
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(hardware, "_user_set_threads", lambda: False)
    assert hardware.cpu_threads() == 2  # set by the launcher, not by the user
    monkeypatch.setattr(hardware, "_user_set_threads", lambda: True)
    assert hardware.cpu_threads() == 3


def test_lengths_of_the_phases():
    assert ExampleArguments().lengths() == [(128, 1.0)]
    shape = ExampleArguments(max_seq_length=64, long_seq_length=128, long_seq_fraction=0.25)
    assert shape.lengths() == [(64, 0.75), (128, 0.25)]
