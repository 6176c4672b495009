"""Declares the options of a training run: fields of transformers' `TrainingArguments` and some of ours.

Without importing torch, so that `--help` answers at once; training_arguments.py has the classes that are filled.
"""

from dataclasses import dataclass

from bert_hf.config.options import option


@dataclass
class RunOptions:
    """Training run."""

    # Length and batch
    max_steps: int = option(-1, "Optimizer steps; takes precedence over --num_train_epochs.")
    num_train_epochs: float = option(3.0, "Passes over the training data.")
    per_device_train_batch_size: int = option(8, "Training examples per device.", range="[1, inf)")
    per_device_eval_batch_size: int = option(8, "Evaluation examples per device.", range="[1, inf)", common=False)
    gradient_accumulation_steps: int = option(1, "Batches per optimizer step.", range="[1, inf)")

    # Optimizer and schedule
    learning_rate: float = option(5e-5, "Peak learning rate.", range="[0, inf)")
    warmup_steps: float = option(
        0,
        "Steps of linear warm-up; a number below 1 is a share of the steps.",
        range="[0, inf)",
        not_with="lr_scheduler_type=constant",
    )
    lr_scheduler_type: str = option("linear", "Schedule of the learning rate.")
    optim: str = option("adamw_torch_fused", "Or adamw_torch, sgd, adafactor, bert_adam; pre-training: muon.")
    weight_decay: float = option(0.01, "Weight decay, except of biases and LayerNorm (A.2).")
    adam_epsilon: float = option(1e-6, "Epsilon of Adam (2018 code).", common=False)

    # Machine
    bf16: bool | None = option(None, "Use bf16 autocast. Default: where it is faster.")
    torch_compile: bool = option(False, "Compile the model with `torch.compile`.")
    ddp_timeout: int = option(600, "Timeout in seconds of collective operations between ranks.", common=False)
    seed: int = option(42, "Random seed of new weights, order, masks and dropout.", range="[0, 4294967295]")

    # What is done
    do_train: bool = option(None, "Train. Default: true, unless only --do_eval or --do_predict is set.", common=False)
    do_eval: bool = option(None, "Without --do_train: only evaluate. A run that trains always evaluates.")
    do_predict: bool = option(None, "Predict the test rows of a fine-tuning task.", common=False)

    # Output
    output_dir: str | None = option(None, "Folder of the run; the same command resumes an interrupted run in it.")
    overwrite_output_dir: bool = option(False, "Replace another finished run in the output folder.")
    logging_steps: float = option(500, "Log every N steps; below 1: a share of all steps.")
    eval_strategy: str | None = option(
        None,
        "When to evaluate during training. Default: steps with --eval_steps; otherwise never in pre-training, and "
        "each epoch in fine-tuning, at most ten times.",
        ("no", "steps", "epoch"),
    )
    eval_steps: float | None = option(None, "Steps between evaluations; below 1: a share of all steps.")
    save_minutes: float = option(
        15.0,
        "Minutes between checkpoints; 0: not by time. The last step is always saved.",
        range="[0, inf)",
        not_with="save_strategy=no",
    )
    save_strategy: str | None = option(
        None,
        "no: never. steps, epoch, best: in addition to --save_minutes.",
        ("no", "steps", "epoch", "best"),
        common=False,
    )
    save_steps: float = option(
        None, "Steps between checkpoints, in addition to --save_minutes.", not_with="save_strategy=no"
    )
    save_total_limit: int | None = option(2, "Number of newest checkpoints that are kept; 0 keeps all.")
    report_to: None | str | list[str] = option("none", "wandb, tensorboard, trackio, …")
    push_to_hub: bool = option(False, "Push the finished run to the Hub.")
    hub_model_id: str | None = option(None, "Repository to push to.")


@dataclass
class PreTrainingOptions(RunOptions):
    """Pre-training, with the optimizer and schedule of the paper (Devlin et al. 2019, A.2)."""

    output_dir: str | None = "runs/pretrain"
    learning_rate: float = 1e-4  # A.2
    warmup_steps: float = 0.01  # A.2: 10,000 of 1,000,000
    max_hours: float | None = option(
        None,
        "Time budget instead of --max_steps; speed is measured once, pauses do not count.",
        range="(0, inf)",
        not_with=("max_steps", "num_train_epochs"),
    )
    muon_learning_rate: float = option(
        3e-3, "Peak rate of the encoder's matrices with --optim muon.", range="[0, inf)", only_with="optim=muon"
    )
    torch_compile: bool = option(
        None, "Compile the model. Default: its layers, on a GPU that can compile and from hidden size 768 on."
    )
    dataloader_num_workers: int = option(
        None, "DataLoader workers. Default: up to 4 with an accelerator, 0 on a CPU.", common=False
    )
    fast_path: bool = option(True, "Compute no padding; false: by PyTorch's own operations, padded.", common=False)


@dataclass
class FineTuningOptions(RunOptions):
    """Fine-tuning run."""

    output_dir: str | None = "runs/finetune"
    learning_rate: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] - until it is chosen
        None,
        "Peak learning rate. Default: by hidden size, 1e-3 up to 128, 3e-4 up to 256, 1e-4 up to 512, else 5e-5 "
        "(the paper's grid: 5e-5, 3e-5, 2e-5; A.3).",
        range="[0, inf)",
    )
    num_train_epochs: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None,
        "Default: 4 up to hidden size 512, else 3 (the paper's grid: 2, 3, 4; A.3), or enough to reach --min_steps.",
    )
    do_predict: bool = option(None, "Without --do_train: only predict the test rows. Default: true.")
    per_device_train_batch_size: int = 32  # the paper's grid: 16, 32 (A.3)
    per_device_eval_batch_size: int = 64
    warmup_steps: float = 0.1  # 2018 code
    logging_steps: float = 0.05
    label_smoothing_factor: float = option(0.0, "Share of a label that is given to all classes.")
    load_best_model_at_end: bool | None = option(
        None,
        "Keep the weights of the best evaluation. Default: true if the run is evaluated during training.",
        common=False,
    )
    metric_for_best_model: str | None = option(
        None, "Selects the best weights. Default: the task's metric; below 200 rows, the loss."
    )
