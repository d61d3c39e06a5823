"""What the word DATA of a command stands for: a config, a folder of pictures, the folder of CUB, or a COCO file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapl.config import Config, load_config
from dapl.errors import DaplError


def data_config(data: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """``overrides``: fields such as ``data.images``, laid over what ``data`` says."""
    given = dict(overrides or {})
    for name in given:
        if not name.startswith("data."):
            raise DaplError(f"--{name}: only fields of data can be given here.")
    if data.suffix.lower() in (".yaml", ".yml"):
        return load_config(data, given)
    if data.is_dir():
        is_cub = (data / "images.txt").is_file() and (data / "classes.txt").is_file()
        return load_config(None, {"data.name": "cub" if is_cub else "folder", "data.root": str(data)} | given)
    if data.suffix.lower() == ".json":
        return load_config(None, {"data.name": "coco", "data.train": str(data)} | given)
    what = "no config (.yaml), COCO file (.json) or folder" if data.exists() else "no such file or folder"
    raise DaplError(f"{data}: {what}; give a config, a folder of class folders, or a COCO JSON file.")
