"""Valid files made invalid: bytes flipped, cut and repeated, values of JSON and YAML replaced, fields left out."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

NASTY: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e9, -1e9, 10**9, 10**30, 2**63, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "²", "\x00", "../../etc/passwd", "/dev/zero", "<script>alert(1)</script>", "\ud800", "9" * 5000),
    *("a" * 300, "a/" * 3000, "x" * 200_000, "NaN", "null", "[]", "{{7*7}}", "%s%n", "$HOME", "~", "-", "--help"),
    *([], {}, [[]], [None], [[[[[]]]]], {"a": {"a": {}}}, [1, 2, 3], ["x"] * 50, {"id": [1]}),
)


def broken_bytes(content: bytes, rng: random.Random) -> bytes:
    """Something else than what it was."""
    kind = rng.randrange(9)
    if not content or kind == 0:
        return rng.choice([b"", b"\x00", b"\xff\xfe", rng.randbytes(rng.randrange(1, 400))])
    at = rng.randrange(len(content))
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[at:]
    if kind == 3:
        length = rng.randrange(1, min(64, len(content)) + 1)
        return content[:at] + rng.randbytes(length) + content[at + length :]
    if kind == 4:
        return content[:at] + content[at : at + 40] * rng.randrange(2, 300) + content[at:]
    if kind == 5:
        return content[:at] + bytes(rng.randrange(1, 5000)) + content[at:]
    if kind == 6:  # sizes stand near the beginning of most formats
        at = rng.randrange(min(len(content), 64))
        return (
            content[:at]
            + struct.pack(rng.choice("<>") + "I", rng.choice([0, 2**31 - 1, 2**32 - 1]))
            + content[at + 4 :]
        )
    flipped = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def broken_value(value: Any, rng: random.Random, times: int = 1) -> Any:
    """A copy of nested dictionaries and lists in which something was replaced, left out, doubled or added."""
    value = copy.deepcopy(value)
    for _ in range(times):
        places = list(_places(value))
        if not places:
            return rng.choice(NASTY)
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind < 7:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
        elif kind == 7:
            del holder[key]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[rng.choice(["", "x", "²", "__class__", "a" * 300, "name", "id"])] = copy.deepcopy(holder[key])
    return value


def _places(value: Any) -> Any:
    inside: list[Any] = [value]
    while inside:
        holder = inside.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                inside.append(holder[key])


def broken_json(text: str, rng: random.Random) -> bytes:
    """Mostly well-formed, so that it comes further than the parser."""
    if rng.random() < 0.3:
        return broken_bytes(text.encode(), rng)
    broken = broken_value(json.loads(text), rng, rng.choice([1, 1, 2, 5]))
    return json.dumps(broken, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")


def broken_yaml(text: str, rng: random.Random) -> bytes:
    import yaml

    if rng.random() < 0.25:
        return broken_bytes(text.encode(), rng)
    if rng.random() < 0.1:
        return rng.choice(YAML_TRAPS).encode()
    broken = broken_value(yaml.safe_load(text), rng, rng.choice([1, 1, 2]))
    try:
        return yaml.safe_dump(broken, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")
    except yaml.YAMLError:
        return json.dumps(broken).encode()


YAML_TRAPS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "data: &data {root: *data}",
    "[" * 3000,
    "\n".join(f"key{number}: {number}" for number in range(5000)),
    "seed: !!python/object/apply:os.system ['touch pwned']",
    "seed: !!int x",
    "seed: 2001-99-99",
    "? [a, b]\n: c",
    "--- 1\n--- 2\n",
    "schedule: [{stage: warm_up, learning_rates: {addon: 1.0e+999}}]",
    "%YAML 9.9\n---\na: 1",
    "\t- a",
    "&a a: *b",
)


def broken_table(text: str, rng: random.Random) -> bytes:
    """Rows and fields of a CSV file."""
    kind = rng.randrange(8)
    lines = text.splitlines()
    row = rng.randrange(len(lines))
    fields = lines[row].split(",")
    if kind == 0:
        return broken_bytes(text.encode(), rng)
    if kind == 1:
        lines[row] = ",".join(fields[:-1])
    elif kind == 2:
        lines[row] = "x" * rng.choice([200, 200_000, 2_000_000])
    elif kind == 3:
        lines[row] = '"' + lines[row]
    elif kind == 4:
        lines.insert(row, lines[row])
    else:
        fields[rng.randrange(len(fields))] = str(rng.choice(NASTY))
        lines[row] = ",".join(fields)
    return "\n".join(lines).encode("utf-8", "surrogatepass")
