from bert_hf.data.text import default_corpus
from bert_hf.data.text.default_corpus import default_documents


def test_the_default_text_is_prose_and_imports_nothing(monkeypatch):
    monkeypatch.setattr(default_corpus, "DEFAULT_SHARE", 150_000)
    monkeypatch.setattr(default_corpus, "DEFAULT_PACKAGES", ())
    documents = default_documents.__wrapped__()
    assert documents == default_documents.__wrapped__()
    assert sum(map(len, documents)) >= 150_000
    paragraphs = [line for document in documents for line in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert not any(">>>" in line[:4] for line in paragraphs)
    assert all(len(line.split()) >= 8 for line in paragraphs)
