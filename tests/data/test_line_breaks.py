"""Hard-wrapped text gives the sentences of the text before it was wrapped."""

import textwrap

import numpy as np
import pytest

from bert_hf.config.arguments import TextArguments
from bert_hf.data.corpus.requested_corpus import text_sources
from bert_hf.data.text.encoding import split_sentences
from bert_hf.data.text.line_breaks import join_wrapped_lines, wrap_width
from bert_hf.data.text.readers import join_pieces


def paragraphs(seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = "boat wave salt wind sail rope crew tide fish gull storm mast keel deck port harbour lighthouse".split()
    sentences = [f"{' '.join(rng.choice(words, rng.integers(3, 20)))}.".capitalize() for _ in range(60)]
    return [" ".join(sentences[begin : begin + 6]) for begin in range(0, 60, 6)]


def sentences_of(path, **options) -> list[str]:
    [source] = text_sources(TextArguments(train_file=[str(path)], **options), [str(path)])
    return [sentence for text in join_pieces(source.read()) for sentence in split_sentences(text)]


@pytest.mark.parametrize("width", [40, 72, 100])
def test_wrapped_text_has_the_sentences_of_the_text_before(tmp_path, width, caplog):
    texts = paragraphs()
    (tmp_path / "book.txt").write_text("\n\n".join(textwrap.fill(text, width) for text in texts))
    expected = [sentence for text in texts for sentence in split_sentences(text)]
    assert sentences_of(tmp_path / "book.txt") == expected
    assert "break sentences, and are joined (--join_lines false keeps them)" in caplog.text
    assert len(sentences_of(tmp_path / "book.txt", join_lines=False)) > len(expected)
    assert len(sentences_of(tmp_path / "book.txt", sentence_per_line=True)) > len(expected)


def test_the_checksum_says_that_lines_are_joined(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(textwrap.fill(text, 72) for text in paragraphs()))
    sums = set()
    for join in (None, True, False):
        [source] = text_sources(TextArguments(join_lines=join), [str(tmp_path / "a.txt")])
        sums.add(source.checksum())
    assert len(sums) == 3


def lines(kind: str) -> str:
    rng = np.random.default_rng(1)
    sentences = [sentence for text in paragraphs() for sentence in split_sentences(text)]
    return {
        "a sentence per line": "\n".join(sentences),
        "a sentence per line without full stops": "\n".join(sentence.rstrip(".") for sentence in sentences),
        "a paragraph per line": "\n".join(paragraphs()),
        "verse": "\n".join(" ".join("o sea and ship and sky".split()[: rng.integers(2, 6)]) for _ in range(60)),
        "code": "\n".join(" " * int(rng.integers(0, 9)) + f"call({number}, {number})" for number in range(60)),
        "bases": "\n".join("".join(rng.choice(list("acgt"), 60)) for _ in range(60)),
        "log": "\n".join(f"[12:{n % 60:02}:07] worker {n} sent the request in {n % 9} ms" for n in range(60)),
        "wrapped, but few lines": textwrap.fill(paragraphs()[0], 72),
    }[kind]


@pytest.mark.parametrize("kind", [
    "a sentence per line", "a sentence per line without full stops", "a paragraph per line", "verse", "code", "bases",
    "log", "wrapped, but few lines",
])  # fmt: skip
def test_other_lines_are_kept(kind):
    assert wrap_width([lines(kind)]) is None


def test_files_of_few_lines_are_judged_together(tmp_path, caplog):
    for number, text in enumerate(paragraphs()):
        (tmp_path / f"{number}.txt").write_text(textwrap.fill(text, 72))
    text_sources(TextArguments(), [str(tmp_path)])
    assert "! 0.txt, 1.txt, 2.txt and 7 more: lines of up to 72 characters break sentences: pass" in caplog.text


def test_a_short_line_and_a_blank_line_end_a_paragraph():
    text = "The ship left at noon\nand came back. Nobody\nknew.\nThe end.\n\nA new part begins now\nand goes on."
    assert join_wrapped_lines(text, 24) == (
        "The ship left at noon and came back. Nobody knew.\nThe end.\n\nA new part begins now and goes on."
    )
    assert join_wrapped_lines("one\ntwo\n\nthree", 0) == "one two\n\nthree"
