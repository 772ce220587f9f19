"""A repository on the HuggingFace hub: fetched into the hub's own cache, which other tools share."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from edgeforge.checkpoint.folder import open_folder
from edgeforge.checkpoint.opened import CONFIG, Checkpoint
from edgeforge.errors import CheckpointError

# Config, tokenizer, template and weights as safetensors: no pickles, no code, no weights of other frameworks.
_WANTED = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "model*.safetensors"]
_UNWANTED = ["*/*"]
_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_RETRY = "try again; what has arrived is kept"


@dataclass(frozen=True)
class HubId:
    """A repository, and the branch, tag or commit of it (None: the default branch as it is now)."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse(text: str) -> HubId | None:
    """`org/name` or `org/name@revision`; None when the text has another form."""
    match = _ID.fullmatch(text)
    return HubId(match["id"], match["revision"]) if match else None


def open_repository(wanted: HubId) -> Checkpoint:
    """Fetches what the cache lacks, and opens the snapshot.

    Raises:
        CheckpointError: not there, not allowed, no network and not in the cache, no safetensors (a hub's pickles are
            never fetched).
    """
    folder = Path(_fetch(wanted))
    if not any(folder.glob("*.safetensors")) and (folder / CONFIG).exists():
        raise CheckpointError(
            f"{wanted} on the hub holds no model*.safetensors, and weights of other kinds are not fetched from there",
            f"look for a revision or a repository that has them; for pickles that you trust: `{_download(wanted)}`, "
            "then give DIR as the model, with --allow-pickle",
        )
    opened = open_folder(folder, allow_pickle=False)
    return dataclasses.replace(
        opened, name=wanted.repository.rpartition("/")[2], source=wanted.repository, revision=folder.name
    )


def _fetch(wanted: HubId) -> str:
    """The snapshot's folder, named by the commit."""
    from httpx2 import HTTPError
    from huggingface_hub import constants, errors, snapshot_download

    try:
        return snapshot_download(
            wanted.repository, revision=wanted.revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{wanted} on the hub is gated: its owner has to let you in",
            f"ask for access at {constants.ENDPOINT}/{wanted.repository}, then `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no {wanted.repository}: no such folder, and on the hub no repository that you may see",
            "check the spelling; for a private repository `hf auth login` (or set HF_TOKEN)",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{wanted.repository} on the hub has no revision {wanted.revision!r}",
            "give a branch, a tag or a full commit hash, or leave @... away",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(wanted, error, constants.HF_HUB_OFFLINE) from error
    except (HTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{wanted} could not be fetched from the hub: {reason}", _RETRY) from error


def _download(wanted: HubId) -> str:
    at = f" --revision {wanted.revision}" if wanted.revision else ""
    return f"hf download {wanted.repository}{at} --local-dir DIR"


def _unreachable(wanted: HubId, error: Exception, offline: bool) -> CheckpointError:
    from huggingface_hub.errors import IncompleteSnapshotError

    if isinstance(error, IncompleteSnapshotError):
        lack = "only a part of it is in the hub's cache here"
    else:
        lack = "there is no such folder, and it is not in the hub's cache here"
    why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
    return CheckpointError(
        f"{wanted}: {lack}, and {why}",
        f"on a connected machine `{_download(wanted)}`, then give DIR as the model"
        + ("; or unset HF_HUB_OFFLINE" if offline else ""),
    )
