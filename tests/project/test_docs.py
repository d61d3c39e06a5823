"""The documentation: the site builds without a dead link, and pages name files that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}


def build(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`make docs` without its set-up, from a copy of the configuration that builds into a folder of its own."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *more]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_the_docstrings(site: Path) -> None:
    for page in ROOT.glob("docs/**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / (name.with_name("index.html") if name.stem == "README" else name)).is_file(), name
    front_door = (site / "api" / "dapl.html").read_text(encoding="utf-8")
    assert all(f'id="dapl.{name}"' in front_door for name in ("load", "train", "evaluate", "load_config"))
    assert 'id="dapl.metrics.Coverage"' in (site / "api" / "metrics.html").read_text(encoding="utf-8")
    assert "Two commands" in (site / "start.html").read_text(encoding="utf-8")
    assert "A tour of dapl" in (site / "notebooks" / "tour.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_and_formulas_of_docstrings_are_code(site: Path) -> None:
    for page in (site / "api").glob("*.html"):
        shown = page.read_text(encoding="utf-8")
        assert "<blockquote>" not in shown, page
        assert ".. math::" not in shown, page


@pytest.mark.slow
def test_nothing_of_the_site_comes_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", page.read_text("utf-8")
        ), page


@pytest.mark.slow
@pytest.mark.parametrize("link", ["gone.md", "metrics.md#gone"])
def test_a_dead_link_fails(tmp_path: Path, link: str) -> None:
    pytest.importorskip("mkdocs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[A page]({link}).\n", encoding="utf-8")
    (tmp_path / "docs" / "metrics.md").write_text("# Metrics\n", encoding="utf-8")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = re.sub(r"^(?:hooks|nav|docs_dir|exclude_docs|plugins):.*?(?=^\S|\Z)", "", settings, flags=re.M | re.S)
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert link.split("#")[0] in done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXTS[page])
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    """`models/contract.py` is a file below src/dapl; `configs/…yaml`, `docs/…py` and `tests/…py` are from the top."""
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|yaml))[`:]", TEXTS[page])
    tops = (ROOT, ROOT / "src", ROOT / "src" / "dapl")
    assert [name for name in named if not any((top / name).is_file() for top in tops)] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """`dapl.metrics.registry`, and `from dapl.x import y` in its code: a renamed module is named anew."""
    named = set(re.findall(r"(?<![\w./-])dapl(?:\.[a-z_]+)+", TEXTS[page]))
    wrong = []
    for name in named:
        parts = name.split(".")[1:]
        folder = ROOT / "src" / "dapl" / parts[0]
        if folder.is_dir() and len(parts) > 1 and not any(_is_there(parts, length) for length in (2, 3)):
            wrong.append(name)
    assert wrong == []


def _is_there(parts: list[str], length: int) -> bool:
    """Whether the first parts are a module, or the last of them a name of the module above."""
    path = ROOT.joinpath("src", "dapl", *parts[:length])
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    above = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
    return above.is_file() and re.search(rf"\b{path.name}\b", above.read_text(encoding="utf-8")) is not None


def test_the_index_lists_every_page() -> None:
    index = TEXTS[ROOT / "docs" / "README.md"]
    pages = [page.name for page in ROOT.glob("docs/*.md") if page.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []
