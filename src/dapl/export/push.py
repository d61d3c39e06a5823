"""Upload an exported folder to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.utils import HFValidationError, validate_repo_id

from dapl.errors import DaplError
from dapl.export.layout import first_line


def check_push(name: str, formats: Sequence[str] = ("hub",)) -> None:
    """What can be known before anything is computed: the format, the name, and that somebody is logged in."""
    if "hub" not in formats:
        raise DaplError(f"--push {name}: the hub takes hub format; add it, --format {','.join((*formats, 'hub'))}.")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise DaplError(f"--push {name}: not a name of the hub, such as user/model ({error}).") from error
    if huggingface_hub.get_token() is None:
        raise DaplError(
            f"--push {name}: nobody is logged in to the hub; run `hf auth login`, or set HF_TOKEN to a token that may "
            "write. Without --push the folder is written all the same."
        )


def push_folder(folder: Path, name: str, private: bool = False) -> str:
    """Make the repository where there is none, upload everything in one commit, return its address."""
    check_push(name)
    api = huggingface_hub.HfApi(library_name="dapl")
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository.repo_id, commit_message="Export from dapl")
    except Exception as error:  # the hub client raises a class of its own for each way in which it can fail
        raise DaplError(
            f"--push {name}: the hub at {huggingface_hub.constants.ENDPOINT} did not take it ({type(error).__name__}: "
            f"{first_line(error)}); the folder {folder} is whole, `hf upload {name} {folder}` tries again."
        ) from error
    return str(repository)
