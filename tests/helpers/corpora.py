"""Small text inputs and prepared corpora."""

from bert_hf.data.text.sources import Texts


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inputs(documents, count=4):
    return [Texts(tuple(documents[i::count]), f"{i}.txt") for i in range(count)]
