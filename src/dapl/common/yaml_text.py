"""YAML from strangers: text that nests, repeats itself or names what is not there is refused, not expanded."""

from __future__ import annotations

from typing import Any

import yaml

from dapl.common.errors import DaplError

LARGEST = 1 << 20
"""Characters of a config; larger text is none, and would take minutes to read."""
_MOST_NODES = 100_000
"""Values of a config with its aliases written out. Nine lines of nine aliases each would be 400 million."""


def parse_yaml(text: str, where: str) -> Any:
    """The value that a text says; where it says none, a sentence that begins with ``where``.

    >>> parse_yaml("{classes: 3, fit: &fit crop, again: *fit}", "config")
    {'classes': 3, 'fit': 'crop', 'again': 'crop'}
    >>> parse_yaml("[1, 2", "config")
    Traceback (most recent call last):
    dapl.common.errors.DaplError: config: line 1 is not YAML (expected ',' or ']', but got '<stream end>').
    """
    if len(text) > LARGEST:
        raise DaplError(f"{where}: is not a config: it has {len(text):,} characters, and none has {LARGEST:,}.")
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            count = _count(node, {})
            if count > _MOST_NODES:
                raise DaplError(f"{where}: its aliases stand for more than {_MOST_NODES:,} values; write fewer.")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise DaplError(f"{where}:{line} is not YAML ({getattr(error, 'problem', None) or error}).") from error
    except RecursionError as error:
        raise DaplError(f"{where}: is nested too deeply for a config; write it flat.") from error
    except DaplError:
        raise
    except Exception as error:  # PyYAML's constructors raise nearly anything: `!!int x`, a month 13, `!!bool maybe`
        raise DaplError(f"{where}: has a value that is none of its type ({error}).") from error


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes below and including this one, an alias counted as what it stands for; a node within itself is endless."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1  # while it is looked at
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count(child, known) for child in children)
    return known[id(node)]
