"""Configs from YAML and back: dotted overrides, the fields for the help text, errors that say what to do."""

from __future__ import annotations

import copy
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from dapl.common.errors import DaplError, nearest
from dapl.common.plugins import DATASET_GROUP, SYSTEM_GROUP, plugins
from dapl.common.reading import parse_yaml, read_text
from dapl.config.config import Config
from dapl.config.data import DataConfig
from dapl.config.model import ModelConfig
from dapl.config.section import Section, plugin_section
from dapl.config.training import Stage


def walk_types(annotation: Any) -> Iterator[type[Section]]:
    """Section classes within a field's type: itself, or the members of a union or list."""
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


_GROUPS = {"data": DATASET_GROUP, "model": SYSTEM_GROUP}
"""Fields whose section an installed package may bring."""


def describe_fields(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted name, default, description) of every field, for the help text and the documentation."""
    for name, field in section.model_fields.items():
        nested = list(walk_types(field.annotation))
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
            yield from _describe_option(option, dotted, ".<n>." if name == "schedule" else ".")
        for tag in plugins(_GROUPS[dotted]) if dotted in _GROUPS else ():
            try:
                if brought := plugin_section(_GROUPS[dotted], tag):
                    yield from _describe_option(brought, dotted, ".")
            except DaplError as error:  # one broken package must not take the help away
                yield f"{dotted} ({tag})", "", str(error)


def _describe_option(option: type[Section], dotted: str, separator: str) -> Iterator[tuple[str, str, str]]:
    yield f"{dotted} ({tag_values(option)[0]})", "", (option.__doc__ or "").strip().split("\n")[0]
    yield from describe_fields(option, f"{dotted}{separator}")


_SHOWN_ERRORS = 20
"""More would scroll the first ones away, and take long where thousands of fields are unknown."""


def load_config(path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file and lay dotted overrides over it, e.g. ``{"model.head_dim": 8}``."""
    values: dict[str, Any] = {} if path is None else read_config_file(Path(path))
    return parse_config(with_overrides(values, overrides or {}), source=str(path) if path is not None else "config")


def with_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The nested fields of a config with dotted ones laid over them.

    >>> with_overrides({"model": {"heads": 10}}, {"model.heads": 4, "seed": 1})
    {'model': {'heads': 4}, 'seed': 1}
    """
    changed = copy.deepcopy(dict(values))
    for dotted, value in overrides.items():
        _set(changed, dotted, copy.deepcopy(value))  # a later field may be set inside it
    return changed


def read_yaml(path: Path) -> dict[str, Any]:
    values = parse_yaml(read_text(path, "give a YAML config such as configs/cub20.yaml"), str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise DaplError(f"{path}: a config is a mapping of fields, this file holds a {type(values).__name__}.")
    return values


def read_config_file(path: Path, of: Sequence[Path] = ()) -> dict[str, Any]:
    """The fields of a config, laid over those of the files that its ``base`` names.

    ``base: ../common.yaml`` is one file, ``base: [one.yaml, two.yaml]`` several, each laid over those before it; paths
    are relative to the file that names them. Sections are merged field by field, lists and single values are replaced.
    ``of`` holds the files that led here.

    >>> read_config_file(Path("configs/cub200/dapl-8.yaml"))["model"]["head_dim"]  # doctest: +SKIP
    8
    """
    values = read_yaml(path)
    named = values.pop("base", [])
    bases = [named] if isinstance(named, str) else named
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise DaplError(f"{path}: base: is the path of a config or a list of paths, this is {named!r}.")
    merged: dict[str, Any] = {}
    for base in bases:
        file = path.parent / base
        if not file.is_file():
            raise DaplError(f"{path}: base: no such file {base}; paths are relative to the folder of this config.")
        if any(file.samefile(earlier) for earlier in (*of, path)):
            raise DaplError(f"{path}: base: {base} leads back to itself; a config cannot be its own base.")
        merged = _laid_over(merged, read_config_file(file, (*of, path)))
    return _laid_over(merged, values)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _laid_over(merged[name], value) if both else value
    return merged


def parse_config(values: Mapping[str, Any], source: str = "config") -> Config:
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [f"{source}: {line}" for line in dict.fromkeys(_explain(one) for one in found[:_SHOWN_ERRORS])]
        if len(found) > _SHOWN_ERRORS:
            lines.append(f"{source}: and {len(found) - _SHOWN_ERRORS:,} more.")
        raise DaplError("\n".join(lines)) from error
    except RecursionError as error:
        raise DaplError(f"{source}: is nested too deeply for a config; write it flat.") from error


def dump_config(config: Config) -> str:
    """The resolved config as YAML, every field written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _set(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key, where a number names an item of a list (``schedule.1.epochs``)."""
    *parents, last = dotted.split(".")
    target: Any = values
    if parents[:1] == ["schedule"] and "schedule" not in values:
        values["schedule"] = Config().model_dump(mode="json")["schedule"]
    if parents[:1] == ["data"] and "data" not in values and last != "name":
        values["data"] = {"name": "toybirds"}  # the default, of which a field is changed
    for depth, key in enumerate(parents):
        if isinstance(target, list):
            target = _item(target, key, dotted)
        else:
            if not isinstance(target.get(key), (dict, list)):
                target[key] = {}
            target = target[key]
        if not isinstance(target, (dict, list)):
            raise DaplError(f"--{dotted}: {'.'.join(parents[: depth + 1])} is a single value and has no fields.")
    if isinstance(target, list):
        _item(target, last, dotted)
        target[int(last)] = value
    else:
        target[last] = value


def _item(items: list[Any], key: str, dotted: str) -> Any:
    if not re.fullmatch("[0-9]{1,6}", key) or int(key) >= len(items):  # ² is a digit, too
        raise DaplError(f"--{dotted}: '{key}' is no item of the list; it has {len(items)}, counted from 0.")
    return items[int(key)]


def _explain(error: Any) -> str:
    """One of pydantic's errors as a sentence of ours."""
    location = tuple(error["loc"])
    field = ".".join(str(part) for index, part in enumerate(location) if not _is_tag(location, index))
    if error["type"] == "extra_forbidden":
        return f"unknown field '{_short(field)}'{nearest(str(location[-1]), _known_at(location[:-1]))}"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tag = error["ctx"]["discriminator"].strip("'")
        if error["type"] == "union_tag_not_found":
            return f"field '{field}.{tag}' is missing; it says which kind this is."
        known = [tag.strip(" '") for tag in error["ctx"]["expected_tags"].split(",")]
        known += plugins(_GROUPS[field]) if field in _GROUPS else ()
        return (
            f"field '{field}.{tag}': '{_short(error['ctx']['tag'])}' is not known{nearest(error['ctx']['tag'], known)}"
        )
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and not field:
        return message
    return f"field '{field}': {message[0].lower() + message[1:]} (got {reprlib.repr(error['input'])})."


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _is_tag(location: Sequence[Any], index: int) -> bool:
    """Whether this place of a location is not a key of the file but the kind that its section was read as."""
    if location[0] == "schedule":
        return index == 2
    field = Config.model_fields.get(location[0])
    return index == 1 and field is not None and field.discriminator is not None


def _known_at(location: Sequence[Any]) -> list[str]:
    """Names of the fields that a section may have, found by walking the models along an error's location."""
    section: Any = Config
    for part in location:
        field = section.model_fields.get(part)
        if field is not None and (options := list(walk_types(field.annotation))):
            candidates = options
            section = candidates[0]
        elif part in TAGS:
            section = next((s for s in candidates if part in tag_values(s)), section)
        elif location[0] in _GROUPS:
            section = plugin_section(_GROUPS[location[0]], part) or section
    return list(section.model_fields)


def data_config(data: Path, overrides: Mapping[str, Any] | None = None, sections: Sequence[str] = ("data",)) -> Config:
    """What the word DATA of a command stands for: a config, a folder of images, the folder of CUB, a COCO file, or the
    name of a data set.

    ``overrides`` are fields such as ``data.images``, of these sections, laid over what ``data`` says.
    """
    given = dict(overrides or {})
    for name in given:
        if name.split(".")[0] not in sections:
            raise DaplError(f"--{name}: only fields of {' and '.join(sections)} can be given here.")
    if data.suffix.lower() in (".yaml", ".yml"):
        return load_config(data, given)
    if data.is_dir():
        is_cub = (data / "images.txt").is_file() and (data / "classes.txt").is_file()
        return load_config(None, {"data.name": "cub" if is_cub else "folder", "data.root": str(data)} | given)
    if data.suffix.lower() == ".json":
        return load_config(None, {"data.name": "coco", "data.train": str(data)} | given)
    if not data.exists() and str(data) in _data_names():
        return load_config(None, {"data.name": str(data)} | given)
    what = "no config (.yaml), COCO file (.json) or folder" if data.exists() else "no such file or folder"
    raise DaplError(f"{data}: {what}; give a config, a folder of class folders, or a COCO JSON file.")


def _data_names() -> list[str]:
    """The names of the built-in data sets, and of those that installed packages bring."""
    built_in = [tag for section in walk_types(DataConfig) for tag in tag_values(section)]
    return [*built_in, *plugins(DATASET_GROUP)]
