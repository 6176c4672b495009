import numpy as np
import pytest
import torch
from helpers.recipe_runs import recipe

from bert_hf.config.hardware import device_memory
from bert_hf.data.corpus import report as corpus_report
from bert_hf.data.corpus.length_charts import histogram
from bert_hf.data.corpus.planned_run import PlannedRun, planned_findings
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.repetitions import window_hashes
from bert_hf.data.corpus.report import corpus_findings
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.pair_shortcuts import shortcuts
from bert_hf.data.text import readers
from bert_hf.data.text.sources import Texts
from bert_hf.data.text.tokenization import train_tokenizer

TOPICS = {
    "sea": "boat wave salt wind sail rope crew tide fish gull storm mast keel deck port",
    "kitchen": "bread flour oven knife plate sugar onion butter spoon kettle lemon honey pepper soup rice",
    "school": "teacher pupil lesson chalk book pencil desk exam class bell paper ruler grade poem map",
}


def a_document(rng: np.random.Generator, number: int) -> str:
    """English enough for the language to be guessed; every document has a topic and a number."""
    words = list(TOPICS.values())[number % 3].split()
    lines = []
    for _ in range(rng.integers(4, 12)):
        first, second, third = rng.choice(words, 3, replace=False)
        lines.append(f"The {first} of town{number} was with the {second} when they found another {third} there.")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [a_document(rng, number) for number in range(240)]


@pytest.fixture(scope="module")
def words(texts):
    return train_tokenizer(texts, vocab_size=400)


@pytest.fixture
def report(words, tmp_path):
    """Examines texts; gives the findings that ask for something, and all of them."""

    def examined(documents, language="en", nsp=True, **more):
        corpus = prepare(
            [Texts(tuple(documents))], words, tmp_path / str(len(list(tmp_path.iterdir()))), language=language
        )
        examples = PreTrainingExamples(corpus, nsp=nsp)
        found = corpus_findings(corpus, examples, DataCollatorForPreTraining(words, nsp=nsp), **more)
        return [str(finding) for finding in found if finding.remedy], "\n".join(map(str, found))

    return examined


def test_good_text_has_no_remedies(texts, report):
    asks, everything = report(texts)
    assert asks == []
    assert "240 documents" in everything
    assert "0.000% of the tokens are unknown" in everything
    assert "en 100%" in everything


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (lambda texts: [*texts, texts[3], texts[5]], "! 2 documents (0.8%) equal an earlier one"),
        (lambda texts: [t + "\nSubscribe to the boat of town1 when they found it there." for t in texts], "239"),
        (lambda texts: [*texts, "We put a [MASK] and a [SEP] there.\nAnd then the [SEP]."], "[SEP] × 2"),
        (lambda texts: [*texts, "漢字 " * 400 + "\nAnd then."], "of the tokens are unknown"),
        (lambda texts: [*texts, "\n".join(texts * 2).replace("town", "city")], "the longest document holds"),
        (lambda texts: [*texts, *(f"Only the boat{i}." for i in range(90))], "of the documents have one sentence"),
        (lambda texts: texts[:4], "of the 400 pieces occur"),
    ],
)  # fmt: skip
def test_each_fault_is_found(change, asked, texts, report):
    asks, everything = report(change(texts))
    if asked == "239":  # boiler-plate
        assert "most often, 240 times: 'subscribe to the boat of town1" in everything
    assert any(asked in line for line in asks) or asked == "239", everything


def test_another_language_is_guessed(texts, report):
    german = [
        f"Das ist ein Haus mit der Nummer {i} und einem Garten.\nDie Kinder spielen dort nicht mehr."
        for i in range(40)
    ]
    asks, _ = report(texts, texts=german)
    assert asks == ["! language, as guessed from 40 documents: de 100%: the sentence splitter was told en: "
                    "prepare with --language de"]  # fmt: skip
    asks, _ = report(texts, texts=german * 4 + texts)
    assert "one vocabulary serves them all" in asks[0]


class Labelled:
    """Examples whose pairs give their label away, or not."""

    nsp = True

    def __init__(self, given_away_by: str, tokenizer):
        self.by, self.ids = given_away_by, np.arange(20, len(tokenizer))

    def __len__(self):
        return 1200

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        label = int(rng.integers(2))
        b = rng.choice(self.ids, 30 if self.by == "their lengths" and label else 20)
        if self.by == "the words of each" and label:
            b[:2] = self.ids[0]
        return {
            "segment_a": rng.choice(self.ids, 20),
            "segment_b": b,
            "next_sentence_label": label,
            "number": (0, 0, 0, index),
            "seed": 0,
            "max_seq_length": 128,
        }


@pytest.mark.parametrize("by", ["their lengths", "the words of each", "nothing"])
def test_a_shortcut_is_found_by_its_name(by, words):
    found = shortcuts(Labelled(by, words), DataCollatorForPreTraining(words), np.ones(len(words)))
    asking = [finding.what for finding in found if finding.remedy]
    assert len(asking) == (by != "nothing")
    assert all(f"told by {by}" in what for what in asking)


def test_shared_words_tell_real_pairs(report):
    rng = np.random.default_rng(1)
    _, everything = report([a_document(rng, number) for number in range(600)])
    line = next(line for line in everything.splitlines() if "the words they share" in line)
    assert float(line.split("share: ")[1].split("%")[0]) > 85


def test_equal_hashes_mean_equal_ids(words, tmp_path):
    texts = [
        "the boat\nthe crew of",
        "the crew of\nthe boat",
        "the boat the\ncrew of",
        "the boat\nthe crew of",
        "boat",
    ]
    window = prepare([Texts(tuple(texts))], words, tmp_path / "c", language=None).window((0,))
    sentences, documents = window_hashes(window)
    ids = [window.ids(i, i + 1).tolist() for i in range(len(sentences))]
    whole = [[ids[s] for s in range(*ends)] for ends in zip(window.document_starts, window.document_ends, strict=True)]
    for things, values in ((ids, sentences), (whole, documents)):
        for a, value in zip(things, values, strict=True):
            assert [a == b for b in things] == (values == value).tolist()
    chosen = np.array([True, False, True, True, False])
    from bert_hf.data.corpus.store import Corpus

    some = Corpus.open(tmp_path / "c").subset({0: chosen}).window((0,))
    assert (window_hashes(some)[1] == documents[chosen]).all()


def test_what_the_planned_steps_mean(texts, words, tmp_path):
    corpus = prepare([Texts(tuple(texts))], words, tmp_path / "c")
    examples = PreTrainingExamples(corpus)
    window = corpus.window((0,))
    small = PlannedRun(1, len(examples), 10**6, 2, str(tmp_path / "not/yet"), 10**9)
    found = planned_findings(corpus, window, examples, small)
    assert [finding.remedy for finding in found] == ["", "", ""]
    assert "are 1.00 passes" in found[0].what
    assert "take 0.02 GB" in found[1].what
    large = planned_findings(corpus, window, examples, PlannedRun(50, len(examples), 10**13, 2, str(tmp_path), 10**9))
    assert all(finding.remedy for finding in large)
    assert "are 50.00 passes" in large[0].what


def test_memory_is_that_of_the_machine():
    assert 2**28 < device_memory(torch.device("cpu")) < 2**50


def test_a_histogram_has_a_bar_for_every_power_of_two():
    lines = list(histogram(np.array([4, 5, 7, 16, 17])))
    assert [line.split()[0] for line in lines] == ["4", "8", "16"]
    assert [line.count("█") for line in lines] == [40, 0, 27]
    assert [line.split()[-1] for line in lines] == ["3", "0", "2"]
    assert list(histogram(np.zeros(0, int))) == []


def test_check_writes_nothing_but_the_picture(texts, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    monkeypatch.chdir(tmp_path)
    flags = ["--check", "true", "--vocab_size", "400", "--cache_dir", str(tmp_path / "cache")]
    assert recipe("prepare")([*flags, "--train_file", "a.txt"]) == 0
    out = capsys.readouterr().out
    assert "240 documents" in out
    assert "tokens in a document:" in out
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "b.txt").write_text("The boat was there.\n" * 2_000)
    with monkeypatch.context() as patch:
        patch.setattr(readers, "PIECE", 1 << 14)  # the file is read in three pieces, as one of three megabytes
        assert recipe("prepare")([*flags, "--train_file", "b.txt", "--nsp", "false"]) == 0
    assert "! 1 documents were read for it: separate documents by blank lines" in capsys.readouterr().out
    (tmp_path / "b.txt").unlink()
    assert recipe("prepare")([*flags, "--train_file", "a.txt", "--output_dir", "pictures"]) == 0
    assert (tmp_path / "pictures/lengths.png").read_bytes().startswith(b"\x89PNG")
    assert recipe("prepare")([*flags[2:], "--train_file", "a.txt", "--output_dir", "pictures"]) == 0
    assert recipe("prepare")([*flags[2:], "--train_file", "a.txt", "--output_dir", "corpus"]) == 0
    capsys.readouterr()
    assert recipe("prepare")(["--check", "true", "--train_file", "corpus"]) == 0
    assert "240 documents" in capsys.readouterr().out


def test_markup_is_named_with_its_share(texts, tmp_path):
    dirty = [text + "\n{{cite web|url=x}} &lt;br&gt; &amp;nbsp;" for text in texts]
    tokenizer = train_tokenizer(dirty, vocab_size=400)
    collator = DataCollatorForPreTraining(tokenizer, nsp=False)
    for name, documents, share in (("dirty", dirty, "100.0%"), ("clean", texts, "")):
        corpus = prepare([Texts(tuple(documents))], tokenizer, tmp_path / name)
        for given in (documents, None):  # the text itself; decoded tokens
            found = corpus_findings(corpus, PreTrainingExamples(corpus, nsp=False), collator, texts=given)
            (line,) = [str(finding) for finding in found if "wiki markup" in finding.what]
            if share:
                assert line.startswith("! HTML or wiki markup in 100.0% of 2"), line
                assert "wiki templates" in line
                assert "HTML tags" in line
            else:
                assert line == "  no HTML or wiki markup in the text"


def test_what_the_tokenizer_loses_is_reported(texts, tmp_path):
    """Of raw text: how many characters, and which. Of a prepared corpus: that its script needs the marks."""
    from paragraphs import PARAGRAPHS

    hindi = [PARAGRAPHS["hi"] + f"\n{text}" for text in texts[:60]]
    lines = {}
    for strip in (None, True):
        tokenizer = train_tokenizer(hindi, vocab_size=800, strip_accents=strip)
        corpus = prepare([Texts(tuple(hindi))], tokenizer, tmp_path / str(strip), language="hi")
        collator = DataCollatorForPreTraining(tokenizer, nsp=False)
        for raw in (hindi, None):
            found = corpus_findings(corpus, PreTrainingExamples(corpus, nsp=False), collator, texts=raw)
            lines[strip, raw is None] = "\n".join(map(str, found))
    assert "round trip equal up to case; 0 of" in lines[None, False]
    assert "round trip not equal" in lines[True, False]
    assert "(Devanagari 2,760)" in lines[True, False]
    assert "removes the marks of every script" not in lines[None, True]
    assert "! the tokenizer removes the marks of every script, and" in lines[True, True]


def test_check_says_what_it_does_with_accents(tmp_path, capsys):
    from paragraphs import PARAGRAPHS

    from bert_hf.config.arguments import CorpusArguments, ExampleArguments, TokenizerArguments

    (tmp_path / "a.txt").write_text("\n\n".join([PARAGRAPHS["ja"]] * 3))
    text = CorpusArguments(train_file=[str(tmp_path / "a.txt")], language="ja")
    arguments = (TokenizerArguments(vocab_size=300), text, ExampleArguments(nsp=False))
    lines = list(corpus_report.report_lines(*arguments))
    assert "  accents are kept, for --language ja" in lines
    assert "  round trip equal up to case; 0 of 432 characters (0.000%) are lost" in lines


class UnevenLengths(Labelled):
    """In half of the NOT_NEXT pairs B has 15 or 25 tokens, elsewhere 14, 20 or 26: mean and variance are the same."""

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        label = int(rng.integers(2))
        length = int(rng.choice([15, 25])) if label and rng.random() < 0.5 else int(rng.choice([14, 20, 26]))
        return {**super().__getitem__(index), "segment_b": rng.choice(self.ids, length), "next_sentence_label": label}


def test_uneven_lengths_that_tell_the_label_are_found(words):
    found = shortcuts(UnevenLengths("nothing", words), DataCollatorForPreTraining(words), np.ones(len(words)))
    asking = [finding.what for finding in found if finding.remedy]
    assert len(asking) == 1
    assert "told by their lengths" in asking[0]
