"""The paper's ablations by name, and sweeps of several panels in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dapl.config import read_yaml
from dapl.errors import DaplError, nearest
from dapl.sweep.space import Base, Panel, make_panel

NAMES = ("contrast", "fg_weight", "fg_threshold", "head_dim", "paper")

_DAPL = {"loss.foreground.weight": 0.0}
"""The paper's DAPL without FG."""

_PAPER: dict[str, dict[str, Any]] = {
    # The text names 0.01, 0.5 and "≥ 1.0"; what lies between and above is ours.
    "contrast": {
        "title": "Contrastive loss",
        "grid": {"loss.contrast.weight": [0.01, 0.1, 0.5, 1.0, 2.0, 5.0]},
        "fixed": _DAPL,
    },
    # "λ_fg ∈ [0.5, 25.0]", with 10 and 15 named.
    "fg_weight": {
        "title": "Foreground loss, τ_bg = 0.3",
        "grid": {"loss.foreground.weight": [0.5, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0]},
        "fixed": {"loss.foreground.threshold": 0.3},
    },
    # 0.01, 0.10, 0.20 and 0.25 are named; 0.3 is the λ_fg = 20 of the panel before.
    "fg_threshold": {
        "title": "Background threshold, λ_fg = 20",
        "grid": {"loss.foreground.threshold": [0.01, 0.05, 0.1, 0.2, 0.25, 0.3]},
        "fixed": {"loss.foreground.weight": 20.0},
    },
    # Rows of the main table.
    "head_dim": {"title": "Width of a head", "grid": {"model.head_dim": [8, 16, 32]}, "fixed": _DAPL},
}


def panels_of(ablation: str, base: Base) -> list[Panel]:
    """One of `NAMES`, or a YAML file such as those in configs/sweeps."""
    if ablation.endswith((".yaml", ".yml")):
        path = Path(ablation)
        return [_panel(path, name, entry, base) for name, entry in _entries(path).items()]
    if ablation not in NAMES:
        raise DaplError(f"--ablation: '{ablation}' is not known{nearest(ablation, NAMES)}")
    names = _PAPER if ablation == "paper" else (ablation,)
    return [_panel(None, name, _PAPER[name], base) for name in names]


def _entries(path: Path) -> dict[str, Any]:
    entries = read_yaml(path)
    if not entries:
        raise DaplError(f"{path}: names no sweep; it holds 'name: {{grid: {{field: [values]}}}}'.")
    return entries


def _panel(path: Path | None, name: str, entry: Any, base: Base) -> Panel:
    where = f"{path}: {name}"
    known = ("title", "grid", "search", "fixed")
    if not isinstance(entry, Mapping):
        raise DaplError(f"{where}: a sweep is a mapping of {', '.join(known)}.")
    for key, value in entry.items():
        if key not in known:
            raise DaplError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")
        if key != "title" and not isinstance(value, Mapping):
            raise DaplError(f"{where}: '{key}' is a mapping of fields, this is a {type(value).__name__}.")
    title = str(entry.get("title", name))
    try:
        return make_panel(name, title, entry.get("grid", {}), entry.get("search", {}), entry.get("fixed", {}), base)
    except DaplError as error:
        raise DaplError(f"{where}: {error}" if path else str(error)) from error
