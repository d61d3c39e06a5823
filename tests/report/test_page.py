"""The page as files: whole, small, escaped, never over something that is not a report."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import load_config
from dapl.data.build import build_splits
from dapl.models.build import SYSTEMS
from dapl.report.collect import Report, collect
from dapl.report.page import Embedded, Linked, render, static_files, write_folder, write_single_file
from dapl.training.trainer import train

Reported = Callable[[str], tuple[Path, Report]]
BYTES_A_PROTOTYPE = 30e6 / 2000
EVIL = "<script>alert(1)<!--"


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_a_folder_has_all_that_its_page_names(reported: Reported, tmp_path: Path, system: str) -> None:
    page = write_folder(reported(system)[1], tmp_path / "report")
    html = page.read_text(encoding="utf-8")
    for name in re.findall(r'(?:href|src)="([^"#]+)"', html):
        assert name == "data:," or (page.parent / name).is_file(), name
    for file in reported(system)[1].images:
        Image.open(page.parent / "images" / file).verify()
    assert not re.search(r"(?:https?:)?//[a-z]", html), "nothing from a network"
    assert not re.search(r"\son[a-z]+=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))


def test_it_stays_small(reported: Reported, tmp_path: Path) -> None:
    """At the largest tiles; those of 2,000 prototypes are smaller."""
    _, report = reported("dapl")
    count = len(report.data["prototypes"])
    images = sum(map(len, report.images.values()))
    one = write_single_file(report, tmp_path / "report.html").stat().st_size
    fixed = len(render(report.data | {"prototypes": [], "classes": report.data["classes"]}, Embedded({})))
    assert images / count < 0.7 * BYTES_A_PROTOTYPE, "base64 adds a third"
    assert (one - fixed) / count < BYTES_A_PROTOTYPE


def test_one_file_holds_everything(reported: Reported, tmp_path: Path) -> None:
    _, report = reported("dapl")
    html = write_single_file(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:link[^>]*stylesheet|script[^>]*src)", html)
    for name, content in report.images.items():
        assert f'data-image="{name}">{base64.b64encode(content).decode()}<' in html


def test_an_older_report_is_replaced_and_nothing_else(reported: Reported, tmp_path: Path) -> None:
    _, report = reported("dapl")
    out = tmp_path / "report"
    write_folder(report, out)
    (out / "images" / "stale.jpg").write_bytes(b"old")
    write_folder(report, out)
    assert not (out / "images" / "stale.jpg").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"], "nothing half-made is left"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(DaplError, match="not a report"):
        write_folder(report, mine)
    assert (mine / "thesis.txt").read_text() == "all of it"
    with pytest.raises(DaplError, match="is a file"):
        write_folder(report, mine / "thesis.txt")
    with pytest.raises(DaplError, match="is a folder"):
        write_single_file(report, mine)


def test_a_failure_leaves_the_older_report(reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dapl.report.page as page

    _, report = reported("dapl")
    write_folder(report, tmp_path / "report")
    before = (tmp_path / "report" / "index.html").read_bytes()

    def fail(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "render", fail)
    with pytest.raises(DaplError, match="No space left"):
        write_folder(report, tmp_path / "report")
    assert (tmp_path / "report" / "index.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


@pytest.mark.parametrize("assets", [Linked(), Embedded({})], ids=["folder", "one file"])
def test_words_of_others_are_escaped(reported: Reported, assets: Linked | Embedded) -> None:
    _, report = reported("dapl")
    data = dict(report.data)
    data["classes"] = [one | {"name": f"{EVIL}{n}"} for n, one in enumerate(data["classes"])]
    data["run"] = data["parts"] = [EVIL]
    html = render(data, assets)
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_policy_lets_only_our_script_run(reported: Reported) -> None:
    _, report = reported("dapl")
    one = render(report.data, Embedded(report.images))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', one)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1]
    inside = re.search(r"<script>(.*?)</script>", one, flags=re.DOTALL)
    assert inside is not None
    assert inside[1].encode() == static_files()["report.js"], "the digest is of what stands there"


@pytest.fixture
def plain_run(tmp_path_factory: pytest.TempPathFactory, tiny_fields: dict[str, Any]) -> Path:
    """On a folder of images without masks and parts, with a class whose name is a tag."""
    folder = tmp_path_factory.mktemp("plain")
    birds = build_splits(load_config(None, tiny_fields).data).train
    for index, label in enumerate(birds.labels):
        path = folder / "images" / ["<b onclick=alert(1)>", "plain"][label % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(birds[index].image.permute(1, 2, 0).numpy()).save(path)
    fields = tiny_fields | {
        "data": {"name": "folder", "root": str(folder / "images"), "image_size": 64, "test_share": 0.4},
        "model.heads": 2,
        "model.head_dim": 4,
        "schedule": [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}],
        "cache.folder": str(folder / "cache"),
    }
    return train(load_config(None, fields), folder / "run", quiet=True).folder


def test_data_without_parts_and_masks(plain_run: Path, tmp_path: Path) -> None:
    report = collect(plain_run, quiet=True)
    assert report.data["heads"]["on_parts"] is None
    assert report.data["heads"]["overlap"] is not None
    assert all(entry["foreground"]["test"] is None for entry in report.data["prototypes"])
    assert all("background" not in entry["flags"] for entry in report.data["prototypes"])
    html = write_folder(report, tmp_path / "report").read_text(encoding="utf-8")
    assert "the data has no parts annotated" in html
    assert {one["text"] for one in report.data["strip"]} == {""}, "neither parts nor masks say anything"
    assert report.data["masks"] is None
    assert "<b onclick" not in html
    assert str(plain_run.parent) not in html, "data.root is a path of the machine"
    note = "The masks of 2 images were made by features"
    assert note in render({**report.data, "masks": note}, Linked())


def test_images_that_are_gone_are_said(run: Path) -> None:
    report = collect(run, quiet=True)
    from dapl.report import collect as module
    from dapl.report.collect import source_rows

    renamed = lambda records, names: source_rows([replace(r, image="gone.png") for r in records], names)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "source_rows", renamed)
        lost = collect(run, quiet=True)
    assert report.data["notes"] == []
    assert lost.data["notes"] == ["The training images of 9 prototypes are not at hand."]
    assert "not at hand" in render(lost.data, Linked())


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert (run / "report" / "index.html").is_file()
    assert f"{run}/report/index.html" in capsys.readouterr().out
    assert main(["report", str(run), "--single-file", "--out", str(tmp_path / "one.html"), "--pictures", "1"]) == 0
    assert (tmp_path / "one.html").is_file()
    assert "MB)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{tmp}/nothing"], "not a run directory"),
        (["{run}", "--images", "0"], "--images: is 0"),
        (["{run}", "--out", "{tmp}"], "not a report"),
        (["{run}", "--model.heads", "3"], "takes only fields of runtime, cache and data"),
    ],
)
def test_the_command_refuses(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["report", *(word.format(run=run, tmp=tmp_path) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_the_overview_says_what_of_its_image_the_model_saw(reported: Reported) -> None:
    _, report = reported("dapl")
    assert report.data["overview"]["seen"] == "", "drawn birds are square"
    assert 'class="seen"' not in render(report.data, Linked())
    said = "The model sees the centre square of the image: 40 % of it, left and right, are cut off."
    data = report.data | {"overview": report.data["overview"] | {"seen": said}}
    assert f'<span class="seen">{said}</span>' in render(data, Linked())
