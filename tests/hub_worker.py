"""Pushes a small run through the real client and loads it back; prints what it saw as JSON.

    HF_ENDPOINT=… HF_TOKEN=… python tests/hub_worker.py FOLDER

A process of its own, because huggingface_hub reads HF_ENDPOINT when it is imported.
"""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForPreTraining, AutoTokenizer, BertForPreTraining

from bert_hf.errors import InputError
from bert_hf.training.publishing import push


def refusal(folder, repo) -> str:
    try:
        push.push(folder, repo, ["README.md"])
    except InputError as error:
        return str(error)
    return "pushed"


def main(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".pt"]
    seen = {"address": push.push(folder, "tiny", names, revision="new")}
    for revision in ("new", "main", "refs/pr/1"):  # again, as for a resumed run
        push.push(folder, "me/tiny", ["README.md"], revision=revision)
    local = BertForPreTraining.from_pretrained(folder)
    pushed = AutoModelForPreTraining.from_pretrained("me/tiny")
    tensors = pushed.state_dict()
    seen["equal"] = all(torch.equal(value, tensors[name]) for name, value in local.state_dict().items())
    text = "w1 w2 w3"
    seen["ids"] = AutoTokenizer.from_pretrained("me/tiny")(text) == AutoTokenizer.from_pretrained(folder)(text)
    push.TIMEOUT = 1
    seen["stalled"] = refusal(folder, "me/stalled")
    os.environ["HF_TOKEN"] = "hf_reader"
    seen["no rights"] = refusal(folder, "me/other")
    print("SEEN " + json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
