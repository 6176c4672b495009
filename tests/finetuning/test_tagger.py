"""The BiLSTM on features of a frozen BERT: which hidden states, its sums, its store, its loading."""

import numpy as np
import pytest
import torch
from helpers.tagged_words import asked_for
from tiny import save_tiny_bert, tiny_config, tiny_tokenizer
from transformers import AutoModelForTokenClassification, BertModel

from bert_hf import predict
from bert_hf.config.finetuning_arguments import FEATURES
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.features.word_windows import make_windows, tokenize_words
from bert_hf.finetuning.heads import frozen_features
from bert_hf.finetuning.heads.frozen_features import BiLstmTagger, hidden_state_numbers, make_tagger, word_features
from bert_hf.finetuning.onnx_export import export_onnx
from bert_hf.finetuning.run import identity_of
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask
from bert_hf.finetuning.trainer import FineTuner


@pytest.fixture(autouse=True)
def small_lstm(monkeypatch):
    monkeypatch.setattr(frozen_features, "LSTM_HIDDEN_SIZE", 8)


SENTENCES = [["w1x0", "w2"], ["w3", "\x00", "w4x1x2", "w5"], ["\x00"]]


def bert(layers: int = 5, **options) -> BertModel:
    torch.manual_seed(1)
    config = tiny_config(num_hidden_layers=layers, id2label={0: "O", 1: "B-X", 2: "I-X"}, **options)
    return BertModel(config).eval()


def features_of(tagger, sentences=SENTENCES, longest: int = 14):
    """(words, K, H) features of the words of sentences."""
    pieces = tokenize_words(sentences, tiny_tokenizer(), longest)
    return word_features(tagger, tiny_tokenizer(), pieces, make_windows(pieces, longest))


def test_four_layers_of_a_smaller_model_are_refused():
    with pytest.raises(InputError, match="--feature_based concat_last_4: the model has 2 layers; choose"):
        hidden_state_numbers("concat_last_4", 2)


def test_features_are_the_hidden_states_of_first_pieces():
    model = bert()
    found = features_of(make_tagger(model, "weighted_last_4", 16))
    ids = torch.tensor([[2, 8, 9, 66, 67, 10, 3]])  # [CLS] w3 w4 ##x1 ##x2 w5 [SEP]
    with torch.no_grad():
        states = torch.stack(model(ids, output_hidden_states=True).hidden_states)[:, 0]

    assert [word for word, features in enumerate(found) if not features.any()] == [3, 6]
    for word, position in ((2, 1), (4, 2), (5, 5)):
        torch.testing.assert_close(found[word], states[[2, 3, 4, 5], position], atol=1e-6, rtol=0)


def test_a_word_in_several_windows_has_the_features_of_its_own():
    model = bert()
    words = [f"w{i}" for i in range(10)]
    found = features_of(make_tagger(model, "last", 16), [words], longest=4)
    windows = make_windows(tokenize_words([words], tiny_tokenizer()), 4)
    own = int(windows.window_of_word[6])
    first, last = int(windows.start[own]), int(windows.end[own])
    with torch.no_grad():
        states = model(torch.tensor([[2, *range(5 + first, 5 + last), 3]])).last_hidden_state[0]
    torch.testing.assert_close(found[6][0], states[6 - first + 1], atol=1e-6, rtol=0)


def test_forward_equals_the_sum_by_hand():
    """Weighted: softmax of the scalars; padding changes nothing."""
    torch.manual_seed(0)
    tagger = make_tagger(bert(), "weighted_last_4", max_seq_length=16).eval()
    tagger.layer_scalars.data = torch.tensor([0.0, 1.0, -1.0, 2.0])
    features = torch.randn(2, 5, 4, 32)
    batch = tagger(features, torch.tensor([3, 5])).logits

    weights = torch.exp(tagger.layer_scalars) / torch.exp(tagger.layer_scalars).sum()
    for row, length in enumerate((3, 5)):
        mixed = sum(weights[layer] * features[row, :length, layer] for layer in range(4))
        expected = tagger.tag_classifier(tagger.lstm(mixed[None])[0])[0]
        torch.testing.assert_close(batch[row, :length], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("features", FEATURES)
def test_parameters_of_each_kind(features):
    tagger = make_tagger(bert(), features, max_seq_length=16)
    states = 4 if features == "concat_last_4" else 1
    assert tagger.lstm.weight_ih_l0.shape == (4 * 8, states * 32)
    assert (tagger.lstm.num_layers, tagger.lstm.bidirectional) == (2, True)
    assert tagger.tag_classifier.weight.shape == (3, 16)
    weights = {"weighted_last_4": 4, "weighted_all": 5}.get(features)
    assert (None if tagger.layer_scalars is None else len(tagger.layer_scalars)) == weights

    # Only the new layers are trained
    assert not any(name.startswith("bert.") for name, p in tagger.named_parameters() if p.requires_grad)


def test_a_saved_tagger_is_loaded_by_one_call(tmp_path):
    torch.manual_seed(0)
    tagger = make_tagger(bert(), "weighted_all", max_seq_length=16)
    tagger.layer_scalars.data.normal_()
    tagger.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))

    with pytest.raises(InputError, match="cannot be exported"):
        export_onnx(tagger, tiny_tokenizer(), tmp_path / "onnx", 16)
    loaded = BiLstmTagger.from_pretrained(tmp_path)
    expected = [row["labels"] for row in predict(tagger.eval(), SENTENCES, tiny_tokenizer())]
    assert [row["labels"] for row in predict(tmp_path, SENTENCES)] == expected
    assert [row["labels"] for row in predict(tmp_path, [[], SENTENCES[0], []])] == [[], expected[0], []]
    assert [len(tags) for tags in expected] == [2, 4, 1]
    assert expected[1][1] == expected[2][0] == "O"  # words without pieces
    for name, weight in tagger.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert {tag for tags in expected for tag in tags} <= {"O", "B-X", "I-X"}


def test_the_stock_class_does_not_take_its_classifier(tmp_path, monkeypatch):
    """The BiLSTM's states are here as wide as BERT's, so that the shapes would fit."""
    monkeypatch.setattr(frozen_features, "LSTM_HIDDEN_SIZE", 16)
    torch.manual_seed(0)
    tagger = make_tagger(bert(), "last", max_seq_length=16)
    tagger.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    _, loaded = AutoModelForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(loaded["missing_keys"]) == {"classifier.weight", "classifier.bias"}


def test_python_trains_it_by_the_same_option(tmp_path):
    save_tiny_bert(tmp_path)
    rows = [{"tokens": ["w1"], "tags": ["O"]}]
    options = {"head": "token_classification", "max_seq_length": 16, "feature_based": "last"}
    assert type(FineTuner(tmp_path, train_dataset=rows, eval_dataset=rows, **options).network) is BiLstmTagger


def trainer_of(folder, **options):
    """A trainer of a tagger without dropout, by plain gradient steps."""
    shape = {"feature_based": "weighted_last_4"}
    task_args = asked_for(folder, model_name_or_path="none", from_scratch=True, **shape)
    task = TokenClassificationTask(task_args, tiny_tokenizer())
    defaults = {
        "learning_rate": 0.5, "optim": "sgd", "max_steps": 2, "max_grad_norm": 0.0, "warmup_steps": 0,
        "eval_strategy": "no", "save_strategy": "no", "train_sampling_strategy": "sequential", "report_to": "none",
        "disable_tqdm": True, "use_cpu": True, "weight_decay": 0.0, "lr_scheduler_type": "constant",
    }  # fmt: skip
    args = FineTuningArguments(output_dir=str(folder / "out"), **{**defaults, **options})
    network = bert(hidden_dropout_prob=0.0)
    network.config.id2label = dict(enumerate(task.head.labels))
    tagger, _ = task.make_frozen_network(network, args)
    args.num_train_epochs = 1
    facts = {"identity": identity_of(task, args, tagger)}
    return FineTuner(tagger, args, task=task, facts=facts)


def test_sentences_of_the_task_have_their_own_features(tmp_path):
    trainer = trainer_of(tmp_path)
    task = trainer.task
    rows = task.parts["validation"]
    features = task.encoded("validation").features.to_list()
    found = features_of(trainer.network, rows.words)
    batch = task.head.collate(features[:3])

    words = iter(found)
    for row, sentence in enumerate(rows.words[:3]):
        expected = torch.stack([next(words) for _ in sentence])
        torch.testing.assert_close(batch["features"][row, : len(sentence)], expected, atol=1e-5, rtol=0)
        assert [task.head.labels[number] for number in batch["labels"][row, : len(sentence)]] == rows.tags[row]
    assert batch["lengths"].tolist() == [len(sentence) for sentence in rows.words[:3]]

    width = max(row["length"] for row in features)
    gold = np.array([row["labels"] + [-100] * (width - row["length"]) for row in features])
    assert task.predictions("validation", gold) == rows.tags
