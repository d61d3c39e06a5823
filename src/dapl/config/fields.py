"""Which fields the sections have: for the help text, and for errors that name the nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic.fields import FieldInfo

from dapl.config.data import DataConfig
from dapl.config.model import ModelConfig
from dapl.config.schedule import Stage
from dapl.config.section import Section
from dapl.config.sections import Config


def sections_of(field: FieldInfo) -> tuple[type[Section], ...]:
    """Section classes within a field's type: itself, or the members of a union or list."""
    return tuple(walk_types(field.annotation))


def walk_types(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from walk_types(argument)


def tag_values(section: type[Section]) -> tuple[str, ...]:
    for name in ("name", "system", "stage"):
        if name in section.model_fields and (values := get_args(section.model_fields[name].annotation)):
            return values
    return ()


TAGS = {
    value
    for union in (DataConfig, Stage, ModelConfig)
    for section in walk_types(union)
    for value in tag_values(section)
}


def describe_fields(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted name, default, description) of every field, for the help text and the documentation."""
    for name, field in section.model_fields.items():
        nested = sections_of(field)
        dotted = f"{prefix}{name}"
        if not nested:
            default = field.get_default(call_default_factory=True)
            shown = "" if field.is_required() else yaml.safe_dump(default, default_flow_style=True).split("\n")[0]
            yield dotted, shown, field.description or f"one of {', '.join(get_args(field.annotation))}"
            continue
        if len(nested) == 1:
            yield from describe_fields(nested[0], f"{dotted}.")
            continue
        for option in nested:
            separator = ".<n>." if name == "schedule" else "."
            tag = tag_values(option)[0]
            yield f"{dotted} ({tag})", "", (option.__doc__ or "").strip().split("\n")[0]
            yield from describe_fields(option, f"{dotted}{separator}")
