"""Pushes a finished run to the Hub."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub

from bert_hf.errors import InputError, first_line

TIMEOUT = 60  # seconds without a byte; huggingface_hub has no limit


def create_repository(folder: Path, repo_id: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Create the repository and the branch of a run where they do not exist, and return the full id, USER/NAME."""
    with _hub(folder, repo_id):
        full_id = huggingface_hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision and revision != "main" and not revision.startswith("refs/"):
            huggingface_hub.create_branch(full_id, branch=revision, exist_ok=True)
        return full_id


def upload(folder: Path, repo_id: str, names: list[str], *, revision: str | None = None) -> str:
    """Upload files of a finished run into an existing repository, and return the address of the commit.

    The token comes from `HF_TOKEN` or `hf auth login`, never from an argument.
    """
    with _hub(folder, repo_id):
        commit = huggingface_hub.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message="Upload a run of bert_hf",
            allow_patterns=names,
        )
        return str(commit)


@contextlib.contextmanager
def _hub(folder: Path, repo_id: str) -> Iterator[None]:
    """Context manager: give the Hub's client a timeout, and turn its errors into an `InputError`.

    Its hooks are kept, among them offline mode. The class comes from the present client, because huggingface_hub 1
    uses httpx and 2 uses httpx2. A factory is set, because the client is closed after a failed connection.
    """
    stock = huggingface_hub.get_session()
    options: dict = {"event_hooks": stock.event_hooks, "follow_redirects": True, "timeout": TIMEOUT}
    huggingface_hub.set_client_factory(lambda: type(stock)(**options))
    try:
        yield
    except Exception as error:  # the client raises several unrelated types: its own, httpx's, OSError, RuntimeError
        raise InputError(
            f"the push failed: {first_line(error)}",
            where=repo_id,
            remedy=f"the model is saved in {folder}; check `hf auth login`, your permissions and the network",
        ) from None
