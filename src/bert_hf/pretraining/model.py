"""Makes the network of a pre-training: newly initialized from a model JSON, or from a checkpoint."""

from transformers import BertConfig, PreTrainedTokenizerBase, set_seed

from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.console import logger
from bert_hf.data.examples.objectives import OBJECTIVES
from bert_hf.data.text.tokenization import check_tokenizer, id_count
from bert_hf.models.loading import (
    config_errors,
    config_from_json,
    config_of_checkpoint,
    extend_embeddings,
    find_checkpoint,
    load_network,
)
from bert_hf.models.modeling_bert import BertForPreTraining


def planned_config(model_args: ModelArguments) -> BertConfig:
    """Return the configuration of the network that is trained; the tokenizer may still change its `vocab_size`."""
    where = model_args.model_name_or_path
    return config_of_checkpoint(where) if where else config_from_json(model_args.config_name)


def make_model(
    model_args: ModelArguments, example_args: ExampleArguments, tokenizer: PreTrainedTokenizerBase, seed: int
) -> BertForPreTraining:
    """Seed all generators, and return the network: from a checkpoint (extended if too small, logged), or a new one."""
    set_seed(seed)
    if checkpoint := model_args.model_name_or_path:
        model = _from_checkpoint(checkpoint, model_args)
        if line := extend_embeddings(model, id_count(tokenizer), example_args.longest_seq_length):
            logger.info(f"{checkpoint}: {line}")
    else:
        model = _from_config(model_args, tokenizer)
    check_tokenizer(tokenizer, model.config.vocab_size)
    OBJECTIVES[example_args.nsp].check_model(model.config, checkpoint or model_args.config_name)
    return model


def _from_checkpoint(where: str, model_args: ModelArguments) -> BertForPreTraining:
    """Return the network of a checkpoint in fp32, without what fine-tuning recorded in its configuration.

    Heads that it lacks are newly initialized, and logged.
    """
    heads = ("cls.", "bert.pooler.")
    model, new = load_network(BertForPreTraining, find_checkpoint(where), where, heads, **model_args.dropouts())

    # What fine-tuning recorded, which `predict` would obey (`position_initializer` is recorded by pre-training)
    stock = BertConfig()
    for name in model.config.to_dict().keys() - stock.to_dict().keys() - {"position_initializer"}:
        vars(model.config).pop(name, None)
    model.config.update({name: getattr(stock, name) for name in ("problem_type", "id2label", "label2id")})
    if new:
        logger.info(f"not in {where}, newly initialized: {', '.join(new)}")
    return model


def _from_config(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> BertForPreTraining:
    """Return a newly initialized network with the shape of a model JSON and the tokenizer's vocabulary."""
    config = config_from_json(model_args.config_name, vocab_size=id_count(tokenizer), **model_args.dropouts())
    config.update({"pad_token_id": tokenizer.pad_token_id})
    with config_errors(str(model_args.config_name), "fix the file"):
        model = BertForPreTraining(config)

    if model_args.position_initializer == "sinusoidal":
        model.config.position_initializer = model_args.position_initializer  # part of the run's identity
        model.bert.embeddings.set_sinusoidal_positions(config.initializer_range)
    return model
