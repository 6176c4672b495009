"""Leftover markup is found, and text that only resembles markup is not."""

import html.parser
import inspect
import pydoc_data.topics

import pytest

from bert_hf.data.text.markup import find_markup

PLAIN = "The boats left the harbour at noon, and the crew sang until the wind turned. " * 20


@pytest.mark.parametrize(
    ("residue", "kind"),
    [
        ("<br>", "HTML tags"),
        ("<BR/>", "HTML tags"),
        ("</ref>", "HTML tags"),
        ('<ref name="india/studbook">', "HTML tags"),
        ('<a href="https://example.org/?a=1" target="_blank">', "HTML tags"),
        ("<!-- a comment -->", "HTML tags"),
        ("&lt;br&gt;", "HTML tags"),
        ("&amp;lt;br /&amp;gt;", "HTML tags"),
        ("&nbsp;", "HTML entities"),
        ("&amp;nbsp;", "HTML entities"),
        ("&#8211;", "HTML entities"),
        ("&#x2014;", "HTML entities"),
        ("{{cite web|url=x|title=y}}", "wiki templates"),
        ("{{Infobox ship\n| name = Vasa\n}}", "wiki templates"),
        ("{{#if:a|b}}", "wiki templates"),
        ("[[Stockholm]]", "wiki links"),
        ("[[File:Vasa.jpg|thumb|The ship]]", "wiki links"),
        ("\n== History ==\n", "wiki headings"),
        ("\n{| class=wikitable\n|-\n", "wiki tables"),
        ("formula_12", "placeholders"),
        ("codice_1", "placeholders"),
    ],
)
def test_each_kind_is_found(residue, kind):
    found = find_markup([PLAIN, f"Before {residue} after."])
    assert list(found.of_kind) == [kind]
    assert found.of_kind[kind] in (len(residue), len(residue.strip()), len(residue.strip().replace("\n", "")))
    assert (found.documents, found.with_markup) == (2, 1)


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
    found = find_markup([text])
    assert dict(found.of_kind) == {}
    assert str(found.finding()) == "  no HTML or wiki markup in the text"


def test_the_line_has_the_shares_and_an_example():
    documents = [PLAIN] * 8 + [PLAIN + "&lt;br&gt;" * 10] * 2
    line = str(find_markup(documents).finding())
    share = 200 / sum(map(len, documents))
    assert line == (
        f"! HTML or wiki markup in 20.0% of 10 documents, {share:.3%} of the characters (HTML tags {share:.3%}); "
        "e.g. '&lt;br&gt;': remove it before preparing: unescape entities, strip tags"
    )


@pytest.mark.parametrize(
    ("documents", "has_remedy"),
    [
        ([PLAIN + "<br>"] * 2 + [PLAIN] * 8, True),  # a tag in every fifth document
        ([PLAIN + "<br>"] + [PLAIN] * 19, False),  # a tag in one of twenty
        ([PLAIN * 20 + "&amp;"] * 10, False),  # each is a book with one tag in 30,000 characters
        ([PLAIN + "<td>x</td>" * 30] + [PLAIN] * 19, True),  # one table, as long as a fifth of its document
        ([PLAIN * 2], False),
    ],
)
def test_the_threshold_of_the_remedy(documents, has_remedy):
    assert bool(find_markup(documents).finding().remedy) == has_remedy


def test_documentation_of_code_needs_no_remedy():
    """Python's manual, and the source of its HTML parser, with tags in comments and strings."""
    documents = [*pydoc_data.topics.topics.values(), inspect.getsource(html.parser), inspect.getsource(html)]
    found = find_markup(documents)
    assert found.of_kind.total() > 0
    assert found.finding().remedy == ""


def test_markup_is_found_in_decoded_text():
    """A prepared corpus contains tokens; after decoding, every mark has spaces around it."""
    decoded = "the ship & lt ; br & gt ; left { { cite | a } } and [ [ file : x ] ] then < br / > formula _ 1 ."
    found = find_markup([decoded], decoded=True)
    assert set(found.examples) == {"&lt;br&gt;", "{{cite|a}}", "[[file : x]]", "<br/>", "formula_1"}
