import numpy as np
import pytest
from helpers.corpora import Texts
from helpers.recipe_runs import recipe

from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.report import corpus_findings, measure_markup
from bert_hf.data.corpus.text_corpus import TextCorpus
from bert_hf.data.text.tokenization import train_tokenizer
from bert_hf.data.text.unknown import Unknown, unknown_characters

TOPICS = {
    "sea": "boat wave salt wind sail rope crew tide fish gull storm mast keel deck port",
    "kitchen": "bread flour oven knife plate sugar onion butter spoon kettle lemon honey pepper soup rice",
    "school": "teacher pupil lesson chalk book pencil desk exam class bell paper ruler grade poem map",
}


def a_document(rng: np.random.Generator, number: int) -> str:
    """Every document has a topic and a number."""
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

    def examined(documents):
        findings = corpus_findings(prepare([Texts(tuple(documents))], words, tmp_path / "c"), words)
        return [str(finding) for finding in findings if finding.remedy], "\n".join(map(str, findings))

    return examined


def test_good_text_has_no_remedies(texts, report):
    asks, everything = report(texts)
    assert asks == []
    assert "240 documents" in everything
    assert "0.000% of the tokens are unknown" in everything


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (lambda texts: [*texts, texts[3], texts[5]], "! 2 documents (0.8%) are duplicates"),
        (lambda texts: [*texts, "漢字 " * 400 + "\nAnd then."], "of the tokens are unknown"),
        (lambda texts: [*texts, "\n".join(texts * 2).replace("town", "city")], "the longest has"),
        (lambda texts: [*texts, *(f"Only the boat{i}." for i in range(90))], "of the documents have one sentence"),
        (lambda texts: texts[:4], "vocabulary entries occur"),
    ],
)  # fmt: skip
def test_each_fault_is_found(change, asked, texts, report):
    asks, everything = report(change(texts))
    assert any(asked in line for line in asks), everything


WORDS = "abc bca cab"  # one lower-case vocabulary


@pytest.mark.parametrize(
    ("text", "lost", "cause"),
    [
        ("abc" * 40 + " abc abc.", 120, Unknown.LONG),
        ("Abc bca. Cab.", 6, Unknown.CASE),
        ("abc bжa. жж", 5, Unknown.OTHERS),
    ],
)
def test_unknown_characters_have_their_cause(text, lost, cause):
    trained = train_tokenizer([f"{WORDS}."] * 9, vocab_size=40, do_lower_case=False)
    assert unknown_characters([text], trained) == {cause: lost}
    findings = corpus_findings(TextCorpus([text], trained), trained, [text])
    [line] = [str(finding) for finding in findings if "characters" in finding.what]
    assert line.startswith(f"! {lost / len(text.replace(' ', '')):.3%} of the characters are unknown, most of them in")
    assert cause.value in line


def test_sentences_of_many_documents_are_reported(texts, report):
    menu = "Home, news, contact and all the other pages of this site."
    asks, _ = report([f"{menu}\n{text}" for text in texts])
    assert [line for line in asks if "or more of 240 documents share: remove menus" in line]


def test_unknown_words_are_no_duplicates(words):
    documents = [f"{letter * 101}." for letter in "abcdefghijklmn"]
    asks = [finding.what for finding in corpus_findings(TextCorpus(documents, words), words) if finding.remedy]
    assert not [what for what in asks if "duplicates" in what or "share" in what]


def test_advice_that_the_run_cannot_follow_is_not_given(texts, words):
    documents = [*texts[:20], *(f"Only the boat{i}." for i in range(90)), texts[3]]
    corpus = TextCorpus(documents, words)
    findings = corpus_findings(corpus, words, nsp=False, may_train_vocabulary=False)
    assert [str(finding) for finding in findings if finding.remedy] == [
        "! 1 documents (0.9%) are duplicates: bert-hf prepare --deduplicate true leaves them out"
    ]
    more = corpus_findings(TextCorpus([*texts, texts[3]], words), words)  # one of 241
    assert not any(finding.remedy for finding in more)


def test_text_of_which_nothing_can_be_predicted_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(f"{'x' * 120} {'y' * 120}.\n{'z' * 101}" for _ in range(9)))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"uvw"]))
    place = ["--cache_dir", str(tmp_path / "cache"), "--output_dir", str(tmp_path / "run")]
    words = ["--config_name", "tiny", "--train_file", str(tmp_path / "a.txt"), "--max_steps", "2", *place]
    assert recipe("pretrain")([*words, "--tokenizer_name", str(tmp_path / "vocab.txt")]) == 2
    line = capsys.readouterr().err
    assert "a.txt: no token can be predicted, all are unknown: words of more than 100 characters" in line
    assert not (tmp_path / "run").exists()


def test_check_writes_nothing(texts, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    monkeypatch.chdir(tmp_path)
    flags = ["--check", "true", "--vocab_size", "400", "--cache_dir", str(tmp_path / "cache")]
    assert recipe("prepare")([*flags, "--train_file", "a.txt"]) == 0
    out = capsys.readouterr().out
    assert "240 documents" in out
    assert "documents have one sentence" in out
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert recipe("prepare")([*flags[2:], "--train_file", "a.txt", "--output_dir", "corpus"]) == 0
    capsys.readouterr()
    assert recipe("prepare")(["--check", "true", "--train_file", "corpus"]) == 0
    assert "240 documents" in capsys.readouterr().out


def test_check_examines_the_documents_that_are_trained_on(texts, tmp_path, capsys, monkeypatch):
    """A document of several pieces is one document, so that what it does to the pairs is measured."""
    monkeypatch.setattr("bert_hf.data.text.readers.PIECE", 2000)
    (tmp_path / "a.txt").write_text("\n\n".join([*texts[:80], "\n".join(texts)]))
    flags = ["--train_file", str(tmp_path / "a.txt"), "--vocab_size", "400", "--cache_dir", str(tmp_path / "cache")]
    assert recipe("prepare")(["--check", "true", *flags]) == 0
    out = capsys.readouterr().out
    assert "  81 documents" in out
    assert "the longest has 7" in out
    assert recipe("prepare")([*flags, "--output_dir", str(tmp_path / "out")]) == 0
    assert "81 documents" in capsys.readouterr().out


PLAIN = "The boats left the harbour at noon, and the crew sang until the wind turned. " * 20


@pytest.mark.parametrize(
    "residue",
    [
        "<br>",
        '<ref name="india/studbook">',
        '<a href="https://example.org/?a=1" target="_blank">',
        "<!-- a comment -->",
        "&amp;nbsp;",
        "&#8211;",
        "&#x2014;",
        "{{cite web|url=x|title=y}}",
        "{{Infobox ship\n| name = Vasa\n}}",
        "{{#if:a|b}}",
        "[[File:Vasa.jpg|thumb|The ship]]",
        "\n== History ==\n",
        "\n{| class=wikitable\n|-\n",
        "formula_12",
        "\n12\t",
    ],
)
def test_each_kind_of_markup_is_found(residue):
    text = measure_markup([PLAIN, f"Before {residue} after."]).what
    example = residue.strip().partition("\n|-")[0][:60]
    assert text.endswith(f"of the characters are HTML or wiki markup, most often {example!r}")


@pytest.mark.parametrize(
    "text",
    [
        "if a < b and c > d: return List<T>, vector<int>, Option<String>",
        "#include <stdio.h> and Map<K, V> or <stdin>, <module>, <lambda>; see <https://example.org> or <me@here.org>",
        "np.array([[1, 2], [3, 4]]) and [[0.5]] and x[[1, 2]]",
        "{{ name }} in Jinja, {{0}} in a format string, {{}} and ${x}",
        "Title\n=====\n\nA === B == C; x == y and y == z\n| a | b |\n|---|---|\n",
        "AT&T; R&D, a & b; fish & chips; &c. Tom&Jerry;",
        "formula_a, the formula 12 and my_formula_12x",
        "I <3 you, 3 < 4 > 2, <- arrow -> and <> or ><",
    ],
)
def test_text_that_resembles_markup_is_not_found(text):
    assert str(measure_markup([text])) == "  no HTML or wiki markup in the text"


def test_much_markup_asks_for_a_clean_up(texts, words, tmp_path):
    assert measure_markup([PLAIN + "<br>" * 5] * 10).remedy
    assert not measure_markup([PLAIN * 20 + "&amp;"] * 10).remedy  # one tag in 30,000 characters, as in a book

    # In a prepared corpus, decoding puts spaces around every mark
    dirty = [text + "\n{{cite web|url=x}} <br> &nbsp;" for text in texts]
    tokenizer = train_tokenizer(dirty, vocab_size=400)
    line = str(corpus_findings(prepare([Texts(tuple(dirty))], tokenizer, tmp_path / "c"), tokenizer)[-1])
    assert line.startswith("! 4.7")
    assert "of the characters are HTML or wiki markup" in line
