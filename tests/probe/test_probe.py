"""The probe against literal examples, against plain loops over the stock model, and against scikit-learn."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny import tiny_config, tiny_tokenizer
from torch import nn
from transformers import BertForPreTraining

from bert_hf.analysis.probe import tuning
from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.analysis.probe.data import (
    NO_TEXT,
    HeldOutText,
    LabelledTask,
    MaskedExample,
    MinimalPair,
    ProbeData,
    check_folds,
    draw_rows,
    outer_folds,
    read_held_out,
    read_minimal_pairs,
    read_tasks,
)
from bert_hf.analysis.probe.features import (
    CHOICES_OF_C,
    Candidate,
    Fold,
    candidates,
    inner_splits,
    labelled_folds,
    majority_score,
    pooled_states,
    probe_features,
    probe_states,
)
from bert_hf.analysis.probe.geometry import (
    effective_rank,
    mean_pairwise_cosine,
    probe_geometry,
    share_along,
    vocabulary_use,
)
from bert_hf.analysis.probe.grammar import mask_each_position, probe_grammar, pseudo_log_likelihoods
from bert_hf.analysis.probe.language import (
    Disturber,
    frequency_bands,
    language_outputs,
    probe_masked_lm,
    probe_next_sentence,
)
from bert_hf.analysis.probe.network import Subject, batches_by_length, check_reset
from bert_hf.analysis.probe.parts import ProbeRun
from bert_hf.analysis.probe.tuning import classify, fine_tune, metrics, probe_few_labels
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.text.sources import Texts
from bert_hf.errors import InputError

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture
def subject(tmp_path):
    return make_subject(tmp_path)


def make_subject(folder, **changes) -> Subject:
    """A checkpoint of the stock class with every parameter random, and its tokenizer."""
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(dropout=0.0, **changes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.3)
    model.save_pretrained(folder / "checkpoint")
    return Subject(
        name="tiny",
        folder=folder / "checkpoint",
        config=model.config,
        tokenizer=tiny_tokenizer(),
        device=torch.device("cpu"),
        seed=0,
    )


def toy_task(count=60, classes=2, seed=0) -> LabelledTask:
    """Texts whose label is told by one word; every fifth one misleads. Neighbours (2i, 2i + 1) are one group."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    told = np.where(np.arange(count) % 5 == 4, (labels + 1) % classes, labels)
    texts = [f"w{10 + told[row]} " + " ".join(f"w{word}" for word in rng.integers(20, 60, 6)) for row in range(count)]
    groups = np.arange(count) // (2 * classes)
    return LabelledTask("toy", texts, None, labels, tuple(f"label {one}" for one in range(classes)), groups)


# ---- geometry


def test_effective_rank_of_known_matrices():
    directions = np.concatenate([np.eye(4), -np.eye(4)])
    assert effective_rank(directions) == pytest.approx(4)
    assert effective_rank(directions + 7.0) == pytest.approx(4)  # the mean does not count
    assert effective_rank(np.array([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(1)
    assert effective_rank(np.ones((5, 3))) == 1.0
    three_to_one = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(three_to_one) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_mean_pairwise_cosine_of_known_vectors():
    assert mean_pairwise_cosine(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])) == pytest.approx(1 / 3)
    assert mean_pairwise_cosine(np.array([[1.0, 1.0], [2.0, 2.0]])) == pytest.approx(1)


def test_share_of_variance_along_a_direction():
    vectors = np.array([[2.0, 1.0], [-2.0, 1.0], [0.0, 3.0], [0.0, -1.0]])  # centred: 8 along x, 8 along y
    assert share_along(vectors, np.array([5.0, 0.0])) == pytest.approx(0.5)


def test_a_collapsed_network_is_named(subject):
    rows = toy_task(40).encoded(subject.tokenizer, 64)
    model = subject.load()
    healthy = probe_geometry(model, rows, subject)
    assert [layer["layer"] for layer in healthy["layers"]] == [0, 1, 2]
    assert healthy["collapsed"] == []
    last = model.bert.encoder.layer[1].output
    with torch.no_grad():  # the last layer says the same to every token: only its bias is left
        last.LayerNorm.weight.zero_()
    collapsed = probe_geometry(model, rows, subject)
    assert collapsed["collapsed"] == ["[CLS] of layer 2", "tokens of layer 2", "pooler output"]
    assert collapsed["layers"][1] == healthy["layers"][1]


def test_vocabulary_use_by_hand(subject):
    task = LabelledTask("t", ["w1x2 w3", "w3 zz"], None, np.array([0, 1]), ("a", "b"), np.arange(2))
    # w1 ##x2 | w3 · w3 | [UNK]: 5 tokens of 4 words, one of them split, 4 different tokens
    assert subject.tokenizer.tokenize("w1x2 w3 zz") == ["w1", "##x2", "w3", "[UNK]"]
    assert vocabulary_use(task, subject) == {
        "tokens": 5,
        "fertility": 1.25,
        "split_words": 0.25,
        "vocabulary_in_use": 4 / len(subject.tokenizer),
        "unknown": 0.2,
    }


# ---- grammar


class TwoWordModel(nn.Module):
    """p(w0 | w1 is there) = ½, p(w2 | w1 is there) = ½; without w1: p(w1) = ¼, p(w2) = ¾. Positions are ignored."""

    config = SimpleNamespace(max_position_embeddings=16)

    def __init__(self, ids, size):
        super().__init__()
        self.w0, self.w1, self.w2, self.size = *ids, size
        self.cls = SimpleNamespace(predictions=self.predictions)

    def bert(self, input_ids, attention_mask):
        there = ((input_ids == self.w1) & attention_mask.bool()).any(1)
        return (there.float()[:, None, None].expand(*input_ids.shape, 1),)

    def predictions(self, states):
        chances = torch.full((len(states), self.size), 1e-30)
        there = states[:, 0] > 0
        chances[there, self.w0] = chances[there, self.w2] = 0.5
        chances[~there, self.w1], chances[~there, self.w2] = 0.25, 0.75
        return chances.log()


def test_pseudo_log_likelihood_of_a_toy_model_by_hand(subject):
    ids = subject.tokenizer.convert_tokens_to_ids(["w0", "w1", "w2"])
    model = TwoWordModel(ids, len(subject.tokenizer))
    scores = pseudo_log_likelihoods(model, ["w0 w1", "w2 w1", "w2"], subject)
    # "w0 w1": p(w0 | w1) = ½, p(w1 | w0) = ¼ · "w2 w1": ½ · ¼ · "w2": ¾
    assert scores == pytest.approx([math.log(1 / 8), math.log(1 / 8), math.log(3 / 4)])


def test_masked_copies_of_words_in_pieces():
    continues = np.zeros(30, bool)
    continues[[11, 12]] = True
    ids = [CLS, 10, 11, 12, 20, SEP]
    rows = [(row.tolist(), position) for row, position in mask_each_position(ids, continues, MASK, whole_words=True)]
    assert rows == [
        ([CLS, MASK, MASK, MASK, 20, SEP], 1),
        ([CLS, 10, MASK, MASK, 20, SEP], 2),
        ([CLS, 10, 11, MASK, 20, SEP], 3),
        ([CLS, 10, 11, 12, MASK, SEP], 4),
    ]
    original = [row.tolist() for row, _ in mask_each_position(ids, continues, MASK, whole_words=False)]
    assert original[0] == [CLS, MASK, 11, 12, 20, SEP]
    assert [row.count(MASK) for row in original] == [1, 1, 1, 1]


@pytest.mark.parametrize("whole_words", [True, False])
def test_pseudo_log_likelihoods_equal_a_plain_loop_over_the_stock_model(subject, whole_words):
    model, tokenizer = subject.load(), subject.tokenizer
    sentences = ["w1x2x3 w4", "w9 w8 w7 w6 w5", "w3"]
    expected = []
    for sentence in sentences:
        ids = tokenizer(sentence)["input_ids"]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        total = 0.0
        for position in range(1, len(ids) - 1):
            masked = list(ids)
            masked[position] = tokenizer.mask_token_id
            for later in range(position + 1, len(ids)):
                if not whole_words or not pieces[later].startswith("##"):
                    break
                masked[later] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(torch.tensor([masked])).prediction_logits[0, position]
            total += logits.log_softmax(-1)[ids[position]].item()
        expected.append(total)
    assert pseudo_log_likelihoods(model, sentences, subject, whole_words) == pytest.approx(expected, abs=1e-4)


def test_ties_are_wrong():
    scores = {"a": -1.0, "b": -2.0, "c": -1.00001}
    pairs = [
        MinimalPair("a", "b", "one", "x"),
        MinimalPair("b", "a", "one", "x"),
        MinimalPair("a", "c", "two", "x"),
        MinimalPair("a", "b", "three", "y"),
    ]
    found = probe_grammar(pairs, lambda sentences: np.array([scores[sentence] for sentence in sentences]))
    assert (found["accuracy"], found["ties"]) == (0.5, 1)
    assert found["by_phenomenon"] == {"x": {"pairs": 3, "accuracy": 1 / 3}, "y": {"pairs": 1, "accuracy": 1.0}}
    assert found["standard_error"] == pytest.approx(0.25)


def test_minimal_pairs_are_sampled_by_paradigm(tmp_path):
    line = '{{"sentence_good": "g{0}", "sentence_bad": "b{0}", "UID": "{1}", "linguistics_term": "t"}}\n'
    (tmp_path / "b.jsonl").write_text("".join(line.format(n, "many" if n < 30 else "few") for n in range(33)))
    found = read_minimal_pairs([str(tmp_path / "*.jsonl")], 5, seed=0)
    assert [pair.paradigm for pair in found] == ["few"] * 3 + ["many"] * 5
    assert found == read_minimal_pairs([str(tmp_path / "b.jsonl")], 5, seed=0)
    assert [pair.good for pair in found[3:]] != [f"g{n}" for n in range(5)]


def test_a_file_without_minimal_pairs_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"a.jsonl: no minimal pairs in it; give sentence_good and sentence_bad"):
        read_minimal_pairs([str(tmp_path / "a.jsonl")], 5, seed=0)
    assert read_minimal_pairs([], 5, seed=0) == []


# ---- language


def masked_example(tokenizer, words_a, words_b, predicted) -> MaskedExample:
    a, b = (tokenizer.convert_tokens_to_ids(words) for words in (words_a, words_b))
    ids = np.array([CLS, *a, SEP, *b, SEP])
    labels = np.full(len(ids), -100)
    labels[predicted] = ids[predicted]
    masked = ids.copy()
    masked[predicted] = MASK
    segments = np.array([0] * (len(a) + 2) + [1] * (len(b) + 1))
    return MaskedExample(masked, segments, labels, 0)


def random_text(tokenizer, count=40, seed=0) -> HeldOutText:
    rng = np.random.default_rng(seed)
    examples, counts = [], np.zeros(len(tokenizer), np.int64)
    for number in range(count):
        a, b = ([f"w{i}" for i in rng.integers(0, 60, rng.integers(4, 9))] for _ in range(2))
        example = masked_example(tokenizer, a, [*b, "##x1"], [1, len(a) + 3])
        examples.append(example._replace(next_sentence_label=number % 2))
        counts += np.bincount(np.where(example.labels >= 0, example.labels, example.input_ids), minlength=len(counts))
    return HeldOutText(examples, counts, 3.0, True)


def test_shuffling_keeps_words_whole_and_inside_their_segment(subject):
    example = masked_example(subject.tokenizer, ["w1", "##x1", "##x2", "w2", "w3"], ["w4", "w5", "##x3"], [2, 5])
    disturber = Disturber(subject.tokenizer, np.ones(len(subject.tokenizer)), seed=1)
    pieces = subject.tokenizer.convert_ids_to_tokens
    seen = set()
    for _ in range(200):
        shuffled = disturber.shuffled(example)
        text = " ".join(pieces(np.where(shuffled.labels >= 0, shuffled.labels, shuffled.input_ids).tolist()))
        seen.add(text)
        assert "w1 ##x1 ##x2" in text
        assert "w5 ##x3" in text
        masked = shuffled.input_ids == MASK
        assert (shuffled.labels[masked] >= 0).all()
        assert pieces(sorted(shuffled.labels[masked].tolist())) == pieces(sorted(example.labels[[2, 5]].tolist()))
        first = shuffled.token_type_ids == 0
        assert sorted(shuffled.input_ids[first]) == sorted(example.input_ids[first])
    assert len(seen) == 12  # 3! orders of A's words times 2! of B's
    kept = disturber.shuffled(example, (1,))
    assert kept.input_ids[:7].tolist() == example.input_ids[:7].tolist()


def test_replacing_keeps_lengths_and_what_is_predicted(subject):
    example = masked_example(subject.tokenizer, ["w1", "w2", "w3"], ["w4", "w5"], [2])
    counts = np.zeros(len(subject.tokenizer))
    only = subject.tokenizer.convert_tokens_to_ids("w50")
    counts[[only, CLS]] = 1  # [CLS] is never drawn
    disturber = Disturber(subject.tokenizer, counts, seed=0)
    assert disturber.replaced(example).input_ids.tolist() == [CLS, only, MASK, only, SEP, only, only, SEP]
    assert disturber.replaced(example, False).input_ids.tolist() == [CLS, only, only, only, SEP, only, only, SEP]
    assert disturber.replaced(example).labels.tolist() == example.labels.tolist()


def test_a_bag_of_words_model_has_no_shuffled_gap(subject):
    """A BERT without positions and segments is one; with them it is none."""
    text, model = random_text(subject.tokenizer), subject.load()

    def outputs(examples):
        return language_outputs(model, examples, subject)

    with_positions = probe_masked_lm(text, subject, outputs)
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.zero_()
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    without = probe_masked_lm(text, subject, outputs)
    assert abs(without["shuffled_gap"]) < 2e-6
    assert abs(with_positions["shuffled_gap"]) > 5e-4
    assert abs(without["replaced_gap"]) > 1e-2


def test_losses_equal_those_of_the_stock_model(subject):
    text, model = random_text(subject.tokenizer), subject.load()
    targets, losses, correct, following, shown = language_outputs(model, text.examples, subject)
    expected, order = [], []
    for row, example in enumerate(text.examples):
        output = model(
            torch.tensor(example.input_ids)[None], token_type_ids=torch.tensor(example.token_type_ids)[None]
        )
        places = np.flatnonzero(example.labels >= 0)
        chances = output.prediction_logits[0].log_softmax(-1)
        for place in places:
            expected.append(-chances[place, example.labels[place]].item())
            order.append((len(example.input_ids), row, place))
        logits = output.seq_relationship_logits[0]
        assert following[row] == pytest.approx((logits[0] - logits[1]).item(), abs=1e-4)
    by_length = sorted(range(len(order)), key=order.__getitem__)
    assert losses == pytest.approx([expected[number] for number in by_length], abs=1e-4)
    metrics = probe_masked_lm(text, subject, lambda examples: language_outputs(model, examples, subject))
    assert metrics["loss"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert metrics["nats_per_character"] == pytest.approx(np.mean(expected) / 3.0, abs=1e-5)
    assert metrics["accuracy"] == correct.mean()
    assert (shown == MASK).all()
    assert metrics["masked_loss"] == metrics["loss"]
    shares = (text.counts + 1) / (text.counts + 1).sum()
    assert metrics["unigram_loss"] == pytest.approx(-np.log(shares[targets]).mean())


def test_the_loss_at_mask_leaves_out_what_is_shown(subject):
    text, model = random_text(subject.tokenizer, count=6), subject.load()

    def shown(example):  # the first predicted token is shown, the second one is not
        ids = example.input_ids.copy()
        place = np.flatnonzero(example.labels >= 0)[0]
        ids[place] = example.labels[place]
        return example._replace(input_ids=ids)

    partly = HeldOutText([shown(example) for example in text.examples], text.counts, 3.0, True)
    outputs = language_outputs(model, partly.examples, subject)
    found = probe_masked_lm(partly, subject, lambda examples: language_outputs(model, examples, subject))
    assert (outputs.shown == MASK).tolist() == [False, True] * 6
    assert found["masked_loss"] == pytest.approx(outputs.losses[1::2].mean())


def test_frequency_bands_by_hand():
    per_million = np.array([20_000, 10_000, 500, 0.5])
    rows = frequency_bands(per_million, np.array([1.0, 2.0, 4.0, 8.0]), np.array([1, 0, 1, 0]), np.arange(4.0))
    assert [row["at_least_per_million"] for row in rows] == [10_000, 100, 0]
    assert rows[0] == {"at_least_per_million": 10_000, "share": 0.5, "loss": 1.5, "accuracy": 0.5, "unigram_loss": 0.5}
    assert rows[2]["loss"] == 8.0


def test_next_sentence_evidence_is_told_apart(subject):
    """Labels told by the first word of B; then by the length of B alone."""
    tokenizer = subject.tokenizer
    mark = tokenizer.convert_tokens_to_ids("w1")
    text = random_text(tokenizer, count=200)

    def by_first_word(examples):
        first = [example.input_ids[np.flatnonzero(example.token_type_ids)[0]] for example in examples]
        return SimpleNamespace(next_sentence=np.where(np.array(first) == mark, -1.0, 1.0))

    def marked(example):
        begin = np.flatnonzero(example.token_type_ids)[0]
        ids, labels = example.input_ids.copy(), example.labels.copy()
        ids[begin] = mark if example.next_sentence_label else mark + 1
        labels[begin] = -100
        return example._replace(input_ids=ids, labels=labels)

    told = HeldOutText([marked(example) for example in text.examples], text.counts, 3.0, True)
    found = probe_next_sentence(told, subject, by_first_word)
    assert (found["pairs"], found["majority"], found["accuracy"]) == (200, 0.5, 1.0)
    assert found["shuffled_b_accuracy"] < 0.75
    assert found["lengths_accuracy"] == pytest.approx(0.5, abs=0.1)

    def by_length(examples):
        lengths = np.array([example.token_type_ids.sum() for example in examples])
        return SimpleNamespace(next_sentence=np.where(lengths < 8, 1.0, -1.0))

    lengths = [int(example.token_type_ids.sum() >= 8) for example in text.examples]
    leaking = [one._replace(next_sentence_label=label) for one, label in zip(text.examples, lengths, strict=True)]
    found = probe_next_sentence(HeldOutText(leaking, text.counts, 3.0, True), subject, by_length)
    assert found["shuffled_b_accuracy"] == found["lengths_accuracy"] == found["accuracy"] == 1.0
    assert found["lengths_classifier_accuracy"] > 0.9


def test_held_out_examples_are_those_of_pretraining(subject, documents, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(documents).replace("Document", "w1"))
    probe_args = ProbeArguments(
        validation_file=[str(tmp_path / "text.txt")], max_seq_length=32, cache_dir=str(tmp_path / "cache")
    )
    held_out = read_held_out(probe_args, subject.tokenizer)
    texts = tuple((tmp_path / "text.txt").read_text().split("\n\n"))
    corpus = prepare([Texts(texts)], subject.tokenizer, tmp_path / "corpus")
    examples = PreTrainingExamples(corpus, seed=0, fixed=True)
    examples.phases = (examples.phases[0]._replace(max_seq_length=32),)
    batch = DataCollatorForPreTraining(subject.tokenizer)([examples[index] for index in range(len(examples))])
    assert held_out.pairs
    assert len(held_out.examples) == len(examples)
    for row, example in enumerate(held_out.examples):
        for name in ("input_ids", "token_type_ids", "labels"):
            assert batch[name][row, : len(example.input_ids)].tolist() == getattr(example, name).tolist()
    assert [one.next_sentence_label for one in held_out.examples] == batch["next_sentence_label"].tolist()
    # w1, says, in, …: all but w1, item-words' pieces and marks are [UNK]; the counts are the corpus's own
    assert held_out.counts.sum() == corpus.tokens


# ---- frozen features


def test_states_equal_those_of_one_text_at_a_time(subject):
    model, task = subject.load(), toy_task(12)
    task.texts[3] = ""
    rows = task.encoded(subject.tokenizer, 64)
    states = pooled_states(model, rows, subject)
    assert states["mean"].shape == states["cls"].shape == (3, 12, 32)
    for number, row in enumerate(rows):
        with torch.no_grad():
            hidden = model.bert(torch.tensor([row["input_ids"]]), output_hidden_states=True).hidden_states
        for layer, tokens in enumerate(hidden):
            inside = tokens[0, 1:-1] if number != 3 else tokens[0, :1]
            assert states["mean"][layer, number] == pytest.approx(inside.mean(0).numpy(), abs=1e-5)
            assert states["cls"][layer, number] == pytest.approx(tokens[0, 0].numpy(), abs=1e-5)


def random_states(count, layers=2, width=6, seed=0):
    """States in which one layer's mean tells the label."""
    rng = np.random.default_rng(seed)
    states = {pooling: rng.normal(size=(layers + 1, count, width)).astype(np.float32) for pooling in ("mean", "cls")}
    states["mean"][1, :, 0] += 2 * (np.arange(count) % 2)
    return states


def test_the_choice_and_the_score_equal_plain_scikit_learn():
    task, states = toy_task(200), random_states(200)
    train, test = np.arange(0, 120), np.arange(120, 200)
    labels, groups = task.labels[train], task.groups[train]
    inner = inner_splits(labels, groups, seed=3)
    assert len(inner) == 3

    best, best_score = None, -1.0
    splitter = StratifiedGroupKFold(3, shuffle=True, random_state=3)
    for choice in candidates(2):
        pipeline = make_pipeline(
            StandardScaler(), LogisticRegression(C=choice.c, class_weight="balanced", max_iter=2000)
        )
        rows = states[choice.pooling][choice.layer][train].astype(np.float64)
        scores = cross_val_score(pipeline, rows, labels, groups=groups, cv=splitter, scoring="average_precision")
        if scores.mean() > best_score:
            best, best_score, best_pipeline = choice, scores.mean(), pipeline
    layer = states[best.pooling][best.layer].astype(np.float64)
    best_pipeline.fit(layer[train], labels)
    expected = average_precision_score(task.labels[test], best_pipeline.decision_function(layer[test]))

    value, choice = probe_states(states, task, Fold(train, test, inner))
    assert (choice.pooling, choice.layer) == ("mean", 1)
    assert choice == best
    assert value == expected


def test_below_fifty_labels_nothing_is_chosen():
    task, states = toy_task(200), random_states(200)
    by_count = labelled_folds(task, [10, 50], folds=5, seed=0)
    assert all(fold.inner == [] for fold in by_count[10])
    assert all(len(fold.inner) == 3 for fold in by_count[50])
    value, choice = probe_states(states, task, by_count[10][0])
    assert choice == Candidate("mean", 2, CHOICES_OF_C[0])
    rows = states["mean"][2].astype(np.float64)
    fold = by_count[10][0]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced")).fit(
        rows[fold.train], task.labels[fold.train]
    )
    assert value == average_precision_score(task.labels[fold.test], model.decision_function(rows[fold.test]))


def test_folds_and_choices_keep_near_duplicates_on_one_side():
    task = toy_task(200)
    for train, test in outer_folds(task, 5, seed=0):
        assert not set(task.groups[train]) & set(task.groups[test])
    task.groups[1::2] = 0
    with pytest.raises(InputError, match="a label has 1 rows that differ in their words"):
        check_folds(task, 5)
    task = toy_task(200)
    for a, b in inner_splits(task.labels[:100], task.groups[:100], seed=0):
        assert not set(task.groups[:100][a]) & set(task.groups[:100][b])


def test_draws_keep_the_shares_of_the_classes():
    labels = np.array([0] * 90 + [1] * 10)
    rng = np.random.default_rng(0)
    rows = draw_rows(labels, np.arange(100), 50, rng)
    assert (len(rows), labels[rows].sum(), len(set(rows.tolist()))) == (50, 5, 50)
    assert labels[draw_rows(labels, np.arange(100), 10, rng)].sum() == 2  # in proportion it would be one
    assert draw_rows(labels, np.arange(100), 101, rng) is None
    assert len(draw_rows(np.arange(100), np.arange(100), 7, rng)) == 7  # more classes than rows
    rare = np.array([0] * 1000 + list(range(1, 21)) * 2)  # in proportion all ten would be of class 0
    assert sorted(np.bincount(rare[draw_rows(rare, np.arange(len(rare)), 10, rng)])) == [1, 9]
    fifty = np.arange(200) % 50
    assert np.bincount(fifty[draw_rows(fifty, np.arange(200), 75, rng)]).tolist().count(0) == 0
    assert len(draw_rows(fifty, np.arange(200), 75, rng)) == 75
    assert draw_rows(labels, np.arange(85, 100), 15, rng).tolist() == list(range(85, 100))


def texts_of(task):
    return np.array(task.joined(), dtype=object)


def test_probe_features_compares_on_equal_rows():
    task = toy_task(160)
    states = [random_states(160, layers=1, seed=seed) for seed in (0, 1, 2)]
    networks = {"checkpoint": states[:1], "random": states[1:]}
    found = probe_features(networks, task, texts_of(task), [10, 60, 1000], folds=2, seed=0)
    assert found["metric"] == "average precision"
    assert list(found["difference"]) == [10, 60]  # a fold has no 1,000 rows
    scores = found["scores"]
    assert {name: len(values[60]) for name, values in scores.items()} == {
        "checkpoint": 2, "random": 4, "tfidf_words": 2, "tfidf_characters": 2, "majority": 2,
    }  # fmt: skip
    by_fold = np.array(scores["checkpoint"][60]) - np.array(scores["random"][60]).reshape(2, 2).mean(1)
    assert found["difference"][60] == pytest.approx(by_fold.tolist())
    assert scores["majority"][60] == pytest.approx([0.5] * 2, abs=0.05)
    assert np.mean(scores["tfidf_words"][60]) > 0.6  # the telling word is right four times in five
    assert found["by_layer"]["checkpoint"]["mean"][1] > found["by_layer"]["checkpoint"]["mean"][0]
    assert 0 not in found["by_layer"]["random"]["cls"]
    assert probe_features(networks, task, texts_of(task), [1000], folds=2, seed=0) is None


def test_three_classes_are_judged_by_macro_f1():
    task = toy_task(90, classes=3)
    fold = labelled_folds(task, [40], 3, 0)[40][0]
    assert majority_score(task, fold) == pytest.approx(1 / 6, abs=0.03)  # F1 ½ of one class in three, 0 of the others
    states = [random_states(90, layers=1)]
    found = probe_features({"checkpoint": states, "random": states}, task, texts_of(task), [40], 3, 0)
    assert found["metric"] == "macro F1"
    assert found["difference"][40] == [0.0, 0.0, 0.0]


# ---- few labels


def test_fine_tuning_learns_and_is_repeatable(subject):
    task = toy_task(200)
    probe_args = ProbeArguments(
        tune_labels=100, tune_steps=30, tune_learning_rate=2e-3, max_seq_length=32, tune_draws=1
    )
    found = probe_few_labels(task, subject, probe_args)
    assert found == probe_few_labels(task, subject, probe_args)
    assert found["learning_rate"] == 2e-3
    assert {name: len(values) for name, values in found["scores"].items()} == dict.fromkeys(found["scores"], 1)
    assert np.mean(found["scores"]["random"]) > 0.65
    expected = np.subtract(found["scores"]["checkpoint"], found["scores"]["random"]).tolist()
    assert found["difference"] == expected
    assert probe_few_labels(toy_task(60), subject, ProbeArguments(tune_labels=100)) is None


def test_the_classifier_starts_from_the_checkpoint_or_from_nothing(subject):
    checkpoint = subject.load().bert.state_dict()
    started = subject.load_classifier(2, 0, random=False).bert.state_dict()
    assert all(torch.equal(started[name], checkpoint[name]) for name in started)
    reset = subject.load_classifier(2, 0, random=False, reset=("bert.encoder.layer.1.",)).bert.state_dict()
    changed = {name.split(".")[2] for name in reset if not torch.equal(reset[name], checkpoint[name])}
    assert changed == {"1"}
    drawn = [subject.load_classifier(2, draw, random=True).bert.state_dict() for draw in (0, 1)]
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(drawn[0][name], checkpoint[name])
    assert not torch.equal(drawn[0][name], drawn[1][name])


@pytest.mark.parametrize("tokens", [4096, 20, 1], ids=["whole batch", "pieces", "single rows"])
def test_one_step_of_fine_tuning_is_the_stock_model_under_adamw(subject, monkeypatch, tokens):
    monkeypatch.setattr(tuning, "TOKENS_OF_A_PIECE", tokens)
    probe_args = ProbeArguments(tune_steps=1, tune_batch_size=8, tune_learning_rate=1e-2)
    task = toy_task(8)
    task.texts = [" ".join(text.split()[: 1 + row]) for row, text in enumerate(task.texts)]  # of several lengths
    rows = task.encoded(subject.tokenizer, 32)
    tuned = subject.load_classifier(2, 0, random=False)
    expected = subject.load_classifier(2, 0, random=False)
    fine_tune(tuned, rows, task.labels, subject, probe_args)
    assert classify(tuned, rows, subject).shape == (8, 2)

    batch = subject.tokenizer(task.texts, padding=True, return_tensors="pt")
    expected(**batch, labels=torch.from_numpy(task.labels)).loss.backward()
    nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
    matrices = [parameter for parameter in expected.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in expected.parameters() if parameter.ndim <= 1]
    torch.optim.AdamW(matrices, lr=1e-2, weight_decay=0.01).step()
    torch.optim.AdamW(vectors, lr=1e-2, weight_decay=0.0).step()
    gaps = [(one - other).abs().max() for one, other in zip(tuned.parameters(), expected.parameters(), strict=True)]
    moved = subject.load_classifier(2, 0, random=False).classifier.weight - tuned.classifier.weight
    assert moved.abs().max() > 5e-3
    # Adam's first step is the sign of the gradient: where that is noise (key biases), the two may differ.
    assert np.median([gap.item() for gap in gaps]) < 1e-5


def test_figures_of_two_and_three_classes():
    labels = np.array([0, 1, 1])
    assert metrics(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), labels) == (1.0, 1.0)
    assert metrics(np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0]]), labels)[0] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics(np.eye(3), np.array([0, 1, 2])) == (1.0, 1.0)


# ---- data and batches


def test_pairs_of_texts_and_a_sample_of_rows(tmp_path, subject):
    lines = "".join(f"{n % 2}\tw{n} w1\tw2 w{n}\n" for n in range(40))
    (tmp_path / "train.tsv").write_text("gold\tfirst\tsecond\n" + lines)
    probe_args = ProbeArguments(
        train_file=[str(tmp_path / "train.tsv")], text_column="first", text_pair_column="second",
        label_column="gold", max_rows=30, parts=["vocabulary"],
    )  # fmt: skip
    (task,) = read_tasks(probe_args)
    assert task.name == f"{tmp_path.name}-train"
    assert (len(task), len(task.pairs), len(task.labels), task.label_names) == (30, 30, 30, ("0", "1"))
    assert task.texts == sorted(task.texts, key=lambda text: int(text.split()[0][1:]))
    row = task.encoded(subject.tokenizer, 32)[0]
    number = int(task.texts[0].split()[0][1:])
    expected = subject.tokenizer(f"w{number} w1", f"w2 w{number}")
    assert row == {name: expected[name] for name in ("input_ids", "token_type_ids")}


@pytest.mark.parametrize(("part", "counts"), [("features", {"labels": [20]}), ("few_labels", {"tune_labels": 20})])
def test_tf_idf_sees_what_the_network_sees(subject, part, counts):
    """A word beyond the tokens of the network tells the label; [CLS], eight words, [SEP]."""
    task = toy_task(60)
    task.texts = [f"w10 w11 w12 w13 w14 w15 w16 w17 w{20 + label}" for label in task.labels]
    args = {"max_seq_length": 10, "random_draws": 1, "tune_steps": 1, "folds": 3, "parts": [part]}
    probe_args = ProbeArguments(train_file=["toy.tsv"], **args, **counts)
    found = ProbeRun(probe_args, subject, ProbeData([task], NO_TEXT, []), report=lambda _: None).run()[part]["toy"]
    values = found["scores"]["tfidf_words"]
    assert (values[20] if part == "features" else values) == pytest.approx([0.5] * 3)

    assert task.seen(subject.tokenizer, 11).tolist() == task.texts
    pairs = LabelledTask("pairs", ["w10 w11 w12"], ["w20 w21 w22 w23"], np.zeros(1), ("x",), np.zeros(1))
    ids = pairs.encoded(subject.tokenizer, 8)[0]["input_ids"]
    assert subject.tokenizer.decode(ids) == "[CLS] w10 w11 [SEP] w20 w21 w22 [SEP]"
    assert pairs.seen(subject.tokenizer, 8).tolist() == ["w10 w11\nw20 w21 w22"]


def test_rows_in_another_encoding(tmp_path):
    (tmp_path / "rows.tsv").write_bytes("label\ttext\nyes\tcafé one\nno\ttwo\n".encode("latin-1"))
    probe_args = ProbeArguments(train_file=[str(tmp_path / "rows.tsv")], encoding="latin-1", parts=["mlm"])
    assert read_tasks(probe_args)[0].texts == ["café one", "two"]


def test_each_task_has_its_own_name(tmp_path):
    """A result is kept by the name of its task."""
    paths = [tmp_path / "a/data.tsv", tmp_path / "b/data-2.tsv", tmp_path / "c/data.tsv", tmp_path / "d/data.tsv"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("label\ttext\nyes\tone\nno\ttwo\n")
    probe_args = ProbeArguments(train_file=list(map(str, paths)), parts=["vocabulary"])
    assert [task.name for task in read_tasks(probe_args)] == ["data", "data-2", "data-3", "data-4"]


def test_a_class_of_fewer_rows_than_folds_is_refused_as_the_rows_are_read(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\nyes\tone\nno\ttwo\n")
    with pytest.raises(InputError, match="a: a label has 1 rows that differ in their words, too few for 5 folds"):
        read_tasks(ProbeArguments(train_file=[str(tmp_path / "a.tsv")]))


def test_parameters_to_reset_are_checked_before_anything_is_computed(subject):
    check_reset(subject.config, ["bert.pooler", "bert.encoder.layer.1.", "classifier"])
    with pytest.raises(InputError, match=r"--tune_reset: no parameter's name begins with 'bert.poolr'"):
        check_reset(subject.config, ["bert.pooler", "bert.poolr"])


def test_a_task_of_too_few_rows_is_noted(subject):
    probe_args = ProbeArguments(train_file=["toy.tsv"], parts=["features", "few_labels"], labels=[80])
    found = ProbeRun(probe_args, subject, ProbeData([toy_task(40)], NO_TEXT, []), report=lambda _: None).run()
    assert (found["features"], found["few_labels"]) == ({}, {})
    assert found["notes"] == [
        "features: toy has too few rows to draw 80 of them",
        "few_labels: toy has too few rows to draw 100 of them",
    ]


def test_the_geometry_of_held_out_text_is_that_of_the_text_without_masks(subject):
    examples, rows = [], []
    for word in range(20, 26):
        ids = np.array([2, word, word + 7, word + 11, 3])
        rows.append({"input_ids": ids, "token_type_ids": np.zeros(5, np.int64)})
        labels = np.where(np.arange(5) == 2, ids, -100)
        examples.append(MaskedExample(np.where(labels == -100, ids, 4), rows[-1]["token_type_ids"], labels, 0))

    held_out = HeldOutText(examples, np.ones(99, np.int64), None, pairs=False)
    probe_args = ProbeArguments(validation_file=["text.txt"], parts=["geometry"])
    found = ProbeRun(probe_args, subject, ProbeData([], held_out, []), report=lambda _: None).run()
    assert found["geometry"]["checkpoint"] == probe_geometry(subject.load(), rows, subject)


def test_the_geometry_of_a_single_text_is_no_metric(subject):
    probe_args = ProbeArguments(train_file=["toy.tsv"], parts=["geometry"])
    found = ProbeRun(probe_args, subject, ProbeData([toy_task(1)], NO_TEXT, []), report=lambda _: None).run()
    assert "geometry" not in found
    assert found["notes"] == ["geometry: a single text cannot be compared with others"]


def test_held_out_rows_of_several_columns(subject, tmp_path):
    """The column of the held-out text is not that of the labelled rows; the error names the option that decides."""
    row = '{{"a": "w{0} w1 w2", "b": "w{0} w3. w4 w5."}}\n'
    (tmp_path / "text.jsonl").write_text("".join(row.format(number) for number in range(10, 20)))
    options = {"validation_file": [str(tmp_path / "text.jsonl")], "cache_dir": str(tmp_path / "cache")}
    with pytest.raises(InputError, match=r"which column holds the text\?; --validation_text_column, one of: a, b"):
        read_held_out(ProbeArguments(text_column="sms", **options), subject.tokenizer)
    lengths = {}
    for column in ("a", "b"):
        held_out = read_held_out(ProbeArguments(validation_text_column=column, **options), subject.tokenizer)
        lengths[column] = held_out.counts.sum()
    assert lengths == {"a": 30, "b": 60}  # with full stops


def test_batches_hold_every_row_once_and_stay_small():
    lengths = [5, 1, 9, 3, 9, 2, 30]
    batches = list(batches_by_length(lengths, tokens=20))
    assert sorted(np.concatenate(batches).tolist()) == list(range(7))
    assert all(len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= 20 for batch in batches)
    assert [sorted(batch.tolist()) for batch in batches] == [[0, 1, 3, 5], [2, 4], [6]]
