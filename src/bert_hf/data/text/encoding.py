"""Splits text into sentences and encodes them as token ids, in bulk: the inner loop of preparing a corpus.

The module imports neither torch nor transformers, so that worker processes start in a fraction of a second.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencex
from tokenizers import Tokenizer

from bert_hf.data.text.readers import Piece

MAX_SENTENCE_LENGTH = 1000  # characters; longer text without full stops is cut, at a space if there is one
LONG_LINE = 10_000  # characters of a line after which it is cut at an end of a sentence, for `sentencex`
GROUP = 1 << 18  # characters after which a group of pieces, which is encoded at once, ends
_REGION = re.compile(r"(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?$")  # script, region: sentencex has no rules for them
# Code of three letters → the code of two by which `sentencex` knows the language
_TWO_LETTERS = {
    pair[:3]: pair[4:]
    for pair in "afr-af amh-am ara-ar arb-ar asm-as aze-az bel-be ben-bn bod-bo bos-bs bul-bg cat-ca ces-cs cze-cs "
    "cmn-zh cym-cy dan-da deu-de ger-de div-dv dzo-dz ell-el gre-el eng-en est-et ekk-et eus-eu fas-fa pes-fa prs-fa "
    "fin-fi fra-fr fre-fr gle-ga glg-gl guj-gu heb-he hin-hi hrv-hr hun-hu hye-hy ind-id isl-is ita-it jpn-ja kan-kn "
    "kas-ks kat-ka kaz-kk khm-km kor-ko kur-ku lao-lo lav-lv lvs-lv lit-lt mal-ml mar-mr mkd-mk mon-mn khk-mn msa-ms "
    "zsm-ms mya-my nep-ne npi-ne nld-nl dut-nl nno-nn nob-nb nor-no ori-or ory-or pan-pa pol-pl por-pt pus-ps ron-ro "
    "rum-ro rus-ru san-sa sin-si slk-sk slv-sl snd-sd som-so spa-es sqi-sq srp-sr swa-sw swh-sw swe-sv tam-ta tel-te "
    "tgk-tg tgl-tl tha-th tir-ti tur-tr uig-ug ukr-uk urd-ur uzb-uz uzn-uz vie-vi yid-yi zho-zh chi-zh".split()
}
_SPACE_BEFORE_STOP = re.compile(r"(?<=[A-Z])\s++(?=\.)")  # as in "grade A ."; never goes back, however long the space
# The end of a sentence that no space follows, as in Chinese, Japanese and other scripts, with what closes it.
# (Possessive, so that a closing mark before a space does not become the beginning of the next part.)
_STOPS = "。．｡！？؟۔।॥။።"
_UNSPACED_END = re.compile(rf"(?:[{_STOPS}]|(?<=[^\x00-\x7f])[!?])[{_STOPS}!?]*+[\"'”’」』）》】〉]*+(?!\s)")


def split_sentences(text: str, language: str | None = "en") -> list[str]:
    """Return the sentences of a text.

    A line break always ends a sentence; within a line `sentencex` decides by the rules of the language (for an unknown
    code, of a related language or of English). A sentence of more than `MAX_SENTENCE_LENGTH` characters (text without
    full stops) is cut at the last space before that length, or at that length if there is none. Without a language a
    line of any length is a sentence: the format of the 2018 code.
    """
    if language is None:
        return [line.strip() for line in text.split("\n") if line.strip()]

    sentences = []
    for line in filter(str.strip, text.splitlines()):
        for part in _split_long_line(line):
            for sentence in _sentences_of_line(part, language):
                sentences.extend(_cut_long_sentence(sentence.strip()))
    return sentences


def _split_long_line(line: str) -> Iterator[str]:
    """Yield a line in parts, cut at the first sentence end after `LONG_LINE` characters that no space follows.

    `sentencex` (1.0.32) takes time that is quadratic in the number of sentences without a space between them.
    """
    begin = 0
    while end := _UNSPACED_END.search(line, begin + LONG_LINE - 1):
        yield line[begin : end.end()]
        begin = end.end()
    if begin < len(line):
        yield line[begin:]


@functools.lru_cache(maxsize=8)
def _sentencex_code(language: str) -> str:
    """Return the code by which `sentencex` knows the rules of a language: `de` for `deu` and for `de-Latn-AT`."""
    code, dash, subtags = language.partition("-")
    return _REGION.sub("", f"{_TWO_LETTERS.get(code, code)}{dash}{subtags}")


def _sentences_of_line(line: str, language: str) -> list[str]:
    """Return the sentences of a line, by the rules of a language."""
    # `sentencex` (1.0.32) panics where white space that is not ASCII is between a capital letter and a full stop
    line = _SPACE_BEFORE_STOP.sub(lambda space: space[0] if space[0].isascii() else " ", line)
    code = _sentencex_code(language)
    return sentencex.segment(code, line)  # pyright: ignore[reportAttributeAccessIssue] - has no stubs


def _cut_long_sentence(sentence: str) -> Iterator[str]:
    """Yield the sentence in parts of at most `MAX_SENTENCE_LENGTH` characters, cut at a space if there is one."""
    begin = 0
    while begin < len(sentence):
        end = begin + MAX_SENTENCE_LENGTH
        if end < len(sentence) and (space := sentence.rfind(" ", begin + 1, end)) > 0:
            end = space
        if part := sentence[begin:end].strip():
            yield part
        begin = end


@functools.lru_cache(maxsize=2)
def load_encoder(path: str | Path, version: str = "") -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, without truncation and padding; cached by path and `version`."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_sentences(tokenizer: Tokenizer, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids of all sentences, one after the other (int32), and how many each sentence has (int64)."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, lengths.sum()), lengths


class Encoded(NamedTuple):
    """A group of pieces of text as token ids, one after the other. P pieces, S sentences, T tokens."""

    ids: np.ndarray  # (T,) uint16 or int32
    sentence_lengths: np.ndarray  # (S,) int32: tokens, never 0
    sentence_counts: np.ndarray  # (P,) int64: sentences of each piece
    ends: np.ndarray  # (P,) bool: a document ends with the piece
    unknown: int  # how many of the ids are [UNK]


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return (n + 1,) int64: where each of n consecutive ranges of these lengths begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def sentences_per_document(sentence_counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return (D,) int64: the sentences of each document; 0 for one without text.

    Of three pieces with 2, 0 and 1 sentences; the first and the third end a document:

        sentence_counts   [2, 0, 1]     ends [True, False, True]
        document          [0, 1, 1]     of each piece
        result            [2, 1]
    """
    document = offsets_of(ends)[:-1]
    return np.bincount(document, sentence_counts).astype(np.int64)


def batch_text_pieces(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Yield pieces in groups; a group ends when it has `GROUP` characters.

    A document of several pieces also ends its group, so that a shard, which consists of groups, can end after it.
    """
    group = []
    size = 0
    continued = False
    for piece in pieces:
        group.append(piece)
        size += len(piece.text) + 32  # so that many empty documents fill a group, too
        if size >= GROUP or (piece.ends and continued):
            yield tuple(group)
            group = []
            size = 0
        continued = not piece.ends

    if group:
        yield tuple(group)


def encode_group(group: tuple[Piece, ...], tokenizer: tuple[str, str] | Tokenizer, language: str | None) -> Encoded:
    """Split a group of pieces into sentences and encode them; sentences without tokens are left out.

    `tokenizer` may be the arguments of `load_encoder`: a worker process then loads it once for all of its groups.
    """
    encoder = tokenizer if isinstance(tokenizer, Tokenizer) else load_encoder(*tokenizer)
    sentences_of_pieces = [split_sentences(piece.text, language) for piece in group]
    ids, lengths = encode_sentences(encoder, list(itertools.chain.from_iterable(sentences_of_pieces)))
    filled = lengths > 0
    piece_of_sentence = np.repeat(np.arange(len(group)), list(map(len, sentences_of_pieces)))

    unknown_id, id_type = _unknown_id_and_type(encoder)
    return Encoded(
        ids=ids.astype(id_type),
        sentence_lengths=lengths[filled].astype(np.int32),
        sentence_counts=np.bincount(piece_of_sentence[filled], minlength=len(group)),
        ends=np.array([piece.ends for piece in group]),
        unknown=int((ids == unknown_id).sum()),
    )


@functools.lru_cache(maxsize=2)
def _unknown_id_and_type(tokenizer: Tokenizer) -> tuple[int | None, type]:
    """Return the id of the unknown token (None: there is none), and a type for ids: uint16 if they fit, else int32."""
    model = json.loads(tokenizer.to_str())["model"]
    ids = tokenizer.get_vocab()
    unknown_id = model.get("unk_id", ids.get(model.get("unk_token")))  # Unigram models have the id, others the token
    return unknown_id, np.uint16 if max(ids.values()) + 1 < 2**16 else np.int32


def skip_documents(pieces: Iterable[Piece], numbers: frozenset[int]) -> Iterator[Piece]:
    """Yield the pieces of all documents except those with these numbers (from 0, empty documents counted)."""
    number = 0
    for piece in pieces:
        if number not in numbers:
            yield piece
        number += piece.ends
