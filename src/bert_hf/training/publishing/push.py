"""Pushes a finished run to the Hub."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
from huggingface_hub import CommitOperationAdd

from bert_hf.errors import InputError, first_line
from bert_hf.training.publishing.card import local_name

TIMEOUT = 60  # seconds without a byte; huggingface_hub has no limit


def push(
    folder: Path, repo_id: str, names: list[str], *, private: bool | None = None, revision: str | None = None
) -> str:
    """Upload files of a finished run, with a card that loads the model from there; return the address of the commit.

    Repository and branch are created where they do not exist. The token comes from `HF_TOKEN` or `hf auth login`,
    never from an argument.
    """
    with _hub_client(folder, repo_id):
        full_id = huggingface_hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision and revision != "main" and not revision.startswith("refs/"):
            huggingface_hub.create_branch(full_id, branch=revision, exist_ok=True)

        card = (folder / "README.md").read_text(encoding="utf-8")
        card = card.replace(f'"{local_name(folder)}"', f'"{full_id}"')
        files = {name: folder / name for name in names} | {"README.md": card.encode()}
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        message = "Upload a run of bert_hf"
        return str(huggingface_hub.create_commit(full_id, operations, commit_message=message, revision=revision))


@contextlib.contextmanager
def _hub_client(folder: Path, repo_id: str) -> Iterator[None]:
    """Context manager: give the Hub's client a timeout, and turn its errors into an `InputError`, naming `folder`.

    The new client has the class (httpx's or httpx2's) and the hooks (offline mode among them) of the present one.
    """
    stock = huggingface_hub.get_session()
    options: dict = {"event_hooks": stock.event_hooks, "follow_redirects": True, "timeout": TIMEOUT}
    huggingface_hub.set_client_factory(lambda: type(stock)(**options))
    try:
        yield
    except Exception as error:  # the client raises several unrelated types: its own, httpx's, OSError, RuntimeError
        remedy = f"the model is saved in {folder}; check `hf auth login`, your permissions and the network"
        raise InputError(f"the push failed: {first_line(error)}", where=repo_id, remedy=remedy) from None
