"""Small text inputs and prepared corpora."""

from collections.abc import Iterator
from dataclasses import dataclass

from bert_hf.config.files import json_checksum
from bert_hf.data.text.readers import Piece, cut_pieces


@dataclass(frozen=True)
class Texts:
    """A source of documents in memory."""

    texts: tuple[str, ...]
    name: str = "texts"

    def checksum(self) -> str:
        return json_checksum(self.texts)

    def read(self) -> Iterator[Piece]:
        for text in self.texts:
            yield from cut_pieces(text)


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inputs(documents, count=4):
    return [Texts(tuple(documents[i::count]), f"{i}.txt") for i in range(count)]
