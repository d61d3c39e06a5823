"""Configs that ask for the impossible: each is refused in one sentence, before anything is allocated or started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapl.common.errors import DaplError
from dapl.common.reading import parse_yaml
from dapl.config import load_config

BILLION = 10**9
ABSURD = {
    "seed": 2**63,
    "data.classes": BILLION,
    "data.images_per_class": BILLION,
    "data.image_size": BILLION,
    "data.seed": 2**64,
    "data.validation_seed": -(2**64),
    "model.heads": BILLION,
    "model.head_dim": BILLION,
    "model.scale": float("inf"),
    "loss.cluster": float("nan"),
    "loss.contrast.negatives": BILLION,
    "schedule.0.epochs": BILLION,
    "schedule.0.batch_size": BILLION,
    "schedule.0.learning_rates.addon": 1e300,
    "schedule.1.learning_rates.addon": 10**400,
    "schedule.3.learning_rate": float("inf"),
    "runtime.devices": BILLION,
    "runtime.nodes": BILLION,
    "runtime.workers": BILLION,
    "runtime.evaluation_batch": BILLION,
    "cache.limit_gb": float("inf"),
    "cache.folder": "a\0b",
    "start": "x" * 20_000,
}


@pytest.mark.parametrize("field", ABSURD)
def test_an_absurd_value_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(DaplError, match=field.replace(".", r"\.")) as refused:
        load_config(None, {field: ABSURD[field]})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_sizes_that_are_absurd_together() -> None:
    with pytest.raises(DaplError, match="8,192,000 channels are more than"):
        load_config(None, {"model.heads": 1000, "model.head_dim": 8192})
    with pytest.raises(DaplError, match="images are more than the 10,000,000"):
        load_config(None, {"data.classes": 100_000, "data.images_per_class": 1000})


def test_superscripts_are_no_numbers() -> None:
    for field in ("schedule.².epochs", f"schedule.{'9' * 5000}.epochs", "schedule.٣.epochs"):
        with pytest.raises(DaplError, match="is no item of the list"):
            load_config(None, {field: 1})


def test_of_thousands_of_unknown_keys_some_are_named(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("\n".join(f"key{number}: 1" for number in range(3000)))
    with pytest.raises(DaplError) as refused:
        load_config(path)
    lines = str(refused.value).splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("and 2,980 more.")


NINE = ",".join(["*{}"] * 9)
BOMB = "a: &a [x]\n" + "".join(
    f"{new}: &{new} [{NINE.format(*old * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
TEXTS = {
    "an alias bomb": BOMB,
    "a value within itself": "data: &data {root: *data}",
    "deep nesting": "[" * 2000 + "]" * 2000,
    "no integer": "seed: !!int x",
    "no truth": "seed: !!bool maybe",
    "no date": "seed: 2001-99-99",
    "an object": "seed: !!python/object/apply:os.system [true]",
    "a long number": f"seed: {'9' * 5000}",
    "a long text": "x" * 2_000_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_yaml_that_is_a_trap_is_one_sentence(name: str) -> None:
    with pytest.raises(DaplError, match=r"^run\.yaml:") as refused:
        parse_yaml(TEXTS[name], "run.yaml")
    assert len(str(refused.value)) < 300


def test_aliases_that_mean_well_are_read() -> None:
    assert parse_yaml("a: &a {b: 1}\nc: *a", "run.yaml") == {"a": {"b": 1}, "c": {"b": 1}}
