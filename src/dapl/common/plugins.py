"""Data sets and systems of other installed packages, found by Python's entry points. Imports no torch.

A package offers one with a line in its ``pyproject.toml`` that names a pair (section of the config, builder)::

    [project.entry-points."dapl.datasets"]
    leaves = "dapl_leaves:LEAVES"

Nothing of a package is imported before its name is used. A name that dapl has itself is never looked up here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from dapl.common.errors import DaplError, nearest

DATASET_GROUP, SYSTEM_GROUP = "dapl.datasets", "dapl.systems"
"""The groups of entry points; the tag of their sections is ``name`` and ``system``."""

Builder = Callable[..., Any]


class Plugin(NamedTuple):
    """What an entry point gives."""

    section: type
    """The pydantic class of its part of the config, with a literal ``name`` (data sets) or ``system`` (systems)."""
    builder: Builder
    """What makes the data set or the model from that section."""


def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; two packages that offer the same name are refused.

    >>> plugins("dapl.nothing")
    {}
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise DaplError(
                f"{entry.name}: both {_package(other)} and {_package(entry)} offer it as one of {group}; uninstall one."
            )
    return found


def load_plugin(group: str, name: str) -> Plugin | None:
    """The plug-in of that name; None where no installed package offers it."""
    entry = plugins(group).get(name)
    if entry is None:
        return None
    where = f"{name}: offered by the package {_package(entry)} as {entry.value} ({group})"
    try:
        given = entry.load()
    except Exception as error:  # whatever the package does when it is imported
        raise DaplError(f"{where}, but it cannot be loaded ({error!r}); mend or uninstall the package.") from error
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], type) and callable(given[1]):
        return Plugin(*given)
    raise DaplError(f"{where}, but it is no pair (section class, builder); see docs/extending.md.")


def find_builder(name: str, own: Mapping[str, Builder], group: str, field: str) -> Builder:
    """The builder of that name among dapl's ``own`` or the plug-ins of a group; ``field`` is named where there is none.

    >>> find_builder("birdz", {"birds": list, "cars": list}, "dapl.nothing", "data.name")
    Traceback (most recent call last):
    dapl.common.errors.DaplError: data.name: 'birdz' is not known; did you mean 'birds'?
    """
    if name in own:
        return own[name]
    plugin = load_plugin(group, name)
    if plugin is None:
        raise DaplError(f"{field}: '{name}' is not known{nearest(name, [*own, *plugins(group)])}")
    return plugin.builder


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module
