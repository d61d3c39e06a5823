"""Everything that a user imports says how it is used; that the examples are right is checked where they stand."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

MODULES = [
    "dapl",
    "dapl.data.sample",
    "dapl.data.toybirds",
    "dapl.evaluation",
    "dapl.explain.classifier",
    "dapl.export.hub",
    "dapl.metrics",
    "dapl.metrics.functional",
    "dapl.metrics.registry",
    "dapl.models",
    "dapl.runs.loading",
    "dapl.runs.run",
    "dapl.training.losses",
]


def public(module: ModuleType) -> dict[str, object]:
    """The functions and classes that are to be had there: those of ``__all__``, or those of the module and below it.

    Without named tuples: the function that returns one shows it.
    """
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and (hasattr(module, "__all__") or value.__module__.startswith(module.__name__))
        and not (inspect.isclass(value) and issubclass(value, tuple))
    }


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_an_example(name: str) -> None:
    found = public(importlib.import_module(name))
    assert found
    assert [each for each, value in found.items() if ">>>" not in (inspect.getdoc(value) or "")] == []
