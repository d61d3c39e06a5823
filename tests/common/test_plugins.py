"""Data sets and systems of other packages: a real package, installed by pip, is trained on; broken ones are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.common.plugins import DATASET_GROUP, load_plugin, plugins
from dapl.config import describe_fields, dump_config, parse_config

PACKAGE = '''
from typing import Literal

from pydantic import Field, field_validator

from dapl.config import DataSection, ProtoPNetModel


class StripesData(DataSection):
    """Striped squares."""

    name: Literal["stripes"] = "stripes"
    count: int = Field(description="Images per class.")

    @field_validator("count")
    @classmethod
    def _even(cls, count):
        if count % 2:
            raise ValueError("the count is odd")
        return count


class WideModel(ProtoPNetModel):
    """A ProtoPNet by another name."""

    system: Literal["wide"] = "wide"


def build_stripes(config):
    from dapl.data.toybirds import ToyBirds

    size = config.image_size
    return ToyBirds(2, config.count, size), ToyBirds(2, config.count, size, split="test")


def build_wide(config, classes):
    from dapl.models.backbone import create_backbone
    from dapl.models.protopnet import ProtoPNet

    backbone = create_backbone(**config.backbone.model_dump())
    return ProtoPNet(backbone, classes, config.prototypes_per_class, config.width)


STRIPES, WIDE = (StripesData, build_stripes), (WideModel, build_wide)
NO_PAIR = StripesData
NO_SECTION = (dict, build_stripes)
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "dapl-stripes"
version = "1.0"

[tool.setuptools]
py-modules = ["dapl_stripes"]

[project.entry-points."dapl.datasets"]
stripes = "dapl_stripes:STRIPES"
no_pair = "dapl_stripes:NO_PAIR"
no_section = "dapl_stripes:NO_SECTION"
lost = "dapl_stripes_lost:LOST"

[project.entry-points."dapl.systems"]
wide = "dapl_stripes:WIDE"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed the package."""
    project = tmp_path_factory.mktemp("dapl-stripes")
    (project / "dapl_stripes.py").write_text(PACKAGE)
    (project / "pyproject.toml").write_text(PROJECT)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(project / "site"), str(project)]
    subprocess.run(command, check=True, capture_output=True)
    return project / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "dapl_stripes", raising=False)


@pytest.mark.usefixtures("installed")
def test_train_and_evaluate_by_the_names_that_the_package_gives(
    tmp_path: Path, tiny_fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_fields | {
        "data": {"name": "stripes", "count": 4, "image_size": 32, "validation_share": 0.25},
        "model": tiny_fields["model"] | {"system": "wide", "width": 8, "prototypes_per_class": 2},
        "schedule": [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}],
        "cache": {"folder": str(tmp_path / "cache")},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]) == 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["data"]["count"], written["model"]["system"]) == (4, "wide")
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "coverage" in json.loads((tmp_path / "run" / "metrics.json").read_text())["numbers"]
    assert "stripes, test: 8 images" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_the_section_is_read_written_and_checked_as_those_of_dapl() -> None:
    config = parse_config({"data": {"name": "stripes", "count": 2}})
    assert parse_config(yaml.safe_load(dump_config(config))) == config
    assert parse_config({"data": config.data}).data is config.data
    for fields, message in (
        ({"count": 3}, "field 'data.count': the count is odd"),
        ({}, "field 'data.count': field required"),
        ({"count": 2, "cuont": 3}, "unknown field 'data.cuont'; did you mean 'count'"),
    ):
        with pytest.raises(DaplError, match=message):
            parse_config({"data": {"name": "stripes", **fields}})


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_lists_what_packages_bring() -> None:
    with pytest.raises(DaplError, match="'stripe' is not known; did you mean 'stripes'"):
        parse_config({"data": {"name": "stripe"}})
    with pytest.raises(DaplError, match=r"known: toybirds, cub, .*, stripes"):
        parse_config({"data": {"name": "qqq"}})


def test_without_the_package_its_name_is_not_known() -> None:
    assert plugins(DATASET_GROUP) == {}
    with pytest.raises(DaplError, match="'stripes' is not known; known: toybirds"):
        parse_config({"data": {"name": "stripes", "count": 2}})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lost", r"lost: offered by the package dapl-stripes as dapl_stripes_lost:LOST .*cannot be loaded"),
        ("no_pair", r"no_pair: .*dapl-stripes.* no pair \(section class, builder\)"),
        ("no_section", "no_section: its section dict is no dapl.config.Section"),
    ],
)
def test_a_broken_plugin_names_its_package(name: str, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        parse_config({"data": {"name": name}})
    assert parse_config({"data": {"name": "stripes", "count": 2}}).data.image_size == 224  # others still work


@pytest.mark.usefixtures("installed")
def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[dapl.datasets]\nstripes = other:STRIPES\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DaplError, match=r"stripes: both .* offer it as one of dapl.datasets; uninstall one") as error:
        load_plugin(DATASET_GROUP, "stripes")
    assert "other" in str(error.value)
    assert "dapl-stripes" in str(error.value)


@pytest.mark.usefixtures("installed")
def test_the_help_tells_its_fields_and_what_cannot_be_loaded() -> None:
    described = {name: text for name, _, text in describe_fields()}
    assert described["data (stripes)"] == "Striped squares."
    assert described["model (wide)"] == "A ProtoPNet by another name."
    assert described["data.count"] == "Images per class."
    assert "dapl-stripes" in described["data (lost)"]
