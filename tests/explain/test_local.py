"""`dapl explain` and what it writes: HTML, PNG and JSON say the same, the sums close in each, and the page opens."""

from __future__ import annotations

import doctest
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from dapl import load
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.explain.classifier import Classifier
from dapl.explain.draw import HEAT, blended, jpeg, overlay, overlay_strip, percentage, signed
from dapl.explain.local import LocalExplanation
from dapl.explain.parts import ModelRecords
from dapl.explain.patches import Patch, RunPatches
from dapl.runs.outlines import moved

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def explanation(classifier: Classifier, bird: Path) -> LocalExplanation:
    return classifier.explain(bird, top=2)


class Page(HTMLParser):
    """Values of the page's <data> elements by section and kind, its text, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[dict[str, list[float]]] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append((tag, found))
        self.references += [value or "" for name, value in attributes if name in ("href", "src", "srcset", "action")]
        if tag == "section":
            self.sections.append({})
        if tag == "data" and found.get("class"):
            self.sections[-1].setdefault(str(found["class"]), []).append(float(found["value"] or "nan"))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_json_closes_and_says_what_the_explanation_says(explanation: LocalExplanation, tmp_path: Path) -> None:
    written = json.loads(explanation.save(tmp_path / "x.json").read_text())
    assert written["image"] == "bird.png"
    assert written["predicted"] == explanation.predicted_name
    assert sum(written["probabilities"].values()) == pytest.approx(1)
    assert written["probabilities"].keys() == written["logits"].keys() == set(explanation.class_names)
    assert len(written["classes"]) == 2
    for evidence in written["classes"]:
        total = sum(row["contribution"] for row in evidence["prototypes"]) + evidence["rest"]["contribution"]
        assert total == pytest.approx(evidence["logit"], abs=1e-4)
        assert evidence["logit"] == written["logits"][evidence["class"]]
        assert len(evidence["prototypes"]) == 2
        assert evidence["rest"]["prototypes"] == 1
        for row in evidence["prototypes"]:
            assert row["similarity"] * row["weight"] == pytest.approx(row["contribution"])
            assert np.shape(row["map"]) == np.shape(row["attention"]) == (4, 4)
            assert np.max(row["map"]) == pytest.approx(row["similarity"], abs=1e-3)
            assert row["source"]["image"].startswith("train/")


def test_every_key_of_the_json_is_documented(explanation: LocalExplanation) -> None:
    def keys(value: object, inside: str = "") -> set[str]:
        if isinstance(value, dict) and inside not in ("probabilities", "logits"):
            return set(value) | {key for name, inner in value.items() for key in keys(inner, name)}
        return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()

    documented = set(re.findall(r"`(\w+)`", DOCS))
    assert keys(explanation.to_json()) <= documented


def test_html_closes_and_needs_no_network(explanation: LocalExplanation, tmp_path: Path) -> None:
    text = explanation.save(tmp_path / "x.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.sections) == 2
    for section, evidence in zip(page.sections, explanation.classes, strict=True):
        shown = sum(section["contribution"]) + sum(section["rest"])
        assert shown == pytest.approx(section["logit"][0], abs=1e-4)
        assert section["logit"] == [evidence.logit]
        assert section["contribution"] == [row.contribution for row in evidence.rows]
    assert page.references
    assert all(found.startswith(("data:image/", "#")) for found in page.references)
    assert not re.search(r"https?:|url\(|@import", text)
    assert "script" not in dict(page.tags)
    words = " ".join(page.text)
    assert explanation.predicted_name in words
    assert "prefers-color-scheme: dark" in words


def test_what_is_not_ours_is_escaped(classifier: Classifier, bird: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    names = [f"{evil}{number}" for number in range(3)]
    records = [replace(record, classes=[evil], image=evil) for record in classifier.known.records]
    model = Classifier(classifier.model, ModelRecords(names, records), 64, "stretch", about=evil)
    found = replace(model.explain(bird), name=evil)
    prediction = model.predict(bird)
    for shown in (found.html(), model._repr_html_(), prediction._repr_html_(), found._repr_html_()):
        assert evil not in shown
        assert "script" not in dict(Page(shown).tags)
    assert any(evil in text for text in Page(found.html()).text)
    assert json.loads(found.save(tmp_path / "x.json").read_text())["image"] == evil
    [(tag, frame)] = Page(found._repr_html_()).tags  # as a notebook shows it
    assert tag == "iframe"
    assert "sandbox" in frame
    assert frame["srcdoc"] == found.html()
    assert len(found._repr_html_()) < 1_000_000
    assert [tag for tag, _ in Page(prediction._repr_html_()).tags].count("tr") == 3


def test_png_shows_both_classes(
    explanation: LocalExplanation, classifier: Classifier, bird: Path, tmp_path: Path
) -> None:
    with Image.open(explanation.save(tmp_path / "two.png")) as two:
        two.load()
    with Image.open(classifier.explain(bird, explanation.predicted, 2).save(tmp_path / "one.png")) as one:
        one.load()
    assert two.format == "PNG"
    assert two.height == one.height
    assert two.width > 1.3 * one.width  # the large image and its names take as much room
    assert np.asarray(two).std() > 20  # not an empty sheet


def test_saving_elsewhere_or_otherwise_is_refused(explanation: LocalExplanation, tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"x\.pdf: an explanation is saved as \.html, \.png or \.json"):
        explanation.save(tmp_path / "x.pdf")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DaplError, match="cannot be written"):
        explanation.save(tmp_path / "file" / "x.json")


def test_switched_off_is_said(classifier: Classifier, bird: Path) -> None:
    before = classifier.explain(bird)
    row = before.classes[0].rows[0]
    after = classifier.explain(bird, before.classes[0].name, switched_off=[row.prototype])
    words = " ".join(Page(after.html()).text)
    assert "switched off" in words
    assert f"prototype {row.prototype}" in words
    evidence = next(e for e in after.to_json()["classes"] if e["class"] == before.classes[0].name)
    assert evidence["logit"] == pytest.approx(before.classes[0].logit - row.contribution, abs=1e-9)
    assert "switched off" in after.text()


def test_parts_are_those_measured_and_those_of_the_image(evaluated: Callable[[str], Path], bird: Path) -> None:
    classifier = load(evaluated("dapl"))
    known = classifier.sample("test/001/0001")
    assert known is not None
    sample, parts = known
    annotated = classifier.explain(sample, parts=parts)
    rows = [row for evidence in annotated.classes for row in evidence.rows]
    assert any(row.here in parts for row in rows)
    assert all((row.foreground is None) == (row.box is None) for row in rows)  # a flat map has no region
    plain = classifier.explain(bird)
    rows += [row for evidence in plain.classes for row in evidence.rows]
    assert all(row.here is None and row.foreground is None for evidence in plain.classes for row in evidence.rows)
    for row in rows:  # of a prototype the same is said, whatever the image is
        said = classifier.known.described(row.prototype)
        assert (row.part, row.background, row.on_object) == (said.name, said.background, said.on_object)
    assert classifier.sample("no such image") is None


def test_the_patch_is_the_training_image(classifier: Classifier, explanation: LocalExplanation) -> None:
    source = RunPatches(classifier.patches.config)  # type: ignore[attr-defined]
    without_cache = RunPatches(
        source.config.model_copy(update={"cache": source.config.cache.model_copy(update={"folder": "/nowhere"})})
    )
    record = explanation.classes[0].rows[0].record
    assert record is not None
    patch, decoded = source.patch(record), without_cache.patch(record)
    assert patch is not None
    assert decoded is not None
    sample = classifier.sample(record.image or "")
    assert sample is not None
    assert torch.equal(patch.image, classifier.pixels(sample[0].image))
    assert torch.equal(patch.image, decoded.image)
    assert patch.box == (None if record.box is None else tuple(record.box))
    assert patch.outline == record.outline
    assert source.patch(replace(record, image=None)) is None
    assert source.patch(replace(record, image="train/009/0000")) is None
    assert source.problem is None


@pytest.mark.parametrize(
    ("box", "view"),
    [
        ((0, 0, 10, 8), (0, 0, 45, 45)),
        ((90, 95, 100, 100), (55, 55, 100, 100)),
        ((10, 20, 70, 60), (0, 0, 96, 96)),
        ((0, 0, 100, 100), (0, 0, 100, 100)),
    ],
)
def test_a_close_up_holds_the_box(box: tuple[int, int, int, int], view: tuple[int, int, int, int]) -> None:
    image = torch.arange(100 * 100).view(1, 100, 100).expand(3, -1, -1)
    near = Patch(image, box, whole=True).close_up()
    left, top, right, bottom = view
    assert torch.equal(near.image, image[:, top:bottom, left:right])
    assert near.close_up() is near
    assert Patch(image, None, whole=True).close_up().image is image


def test_a_close_up_is_of_the_largest_island() -> None:
    image = torch.arange(100 * 100).view(1, 100, 100).expand(3, -1, -1)
    scattered = "M60 60L80 60 80 80 60 80ZM2 2L6 2 6 6Z"
    near = Patch(image, (2, 2, 80, 80), scattered, whole=True).close_up()
    assert near.image.shape == (3, 45, 45)
    assert near.outline == moved(scattered, 47, 47)


def test_overlays_are_seen_where_the_map_is_high() -> None:
    image = torch.full((3, 32, 32), 128, dtype=torch.uint8)
    heat = torch.zeros(32, 32)
    heat[:, 16:] = 1
    drawn = np.asarray(blended(image, heat, HEAT)).astype(int)
    assert drawn[16, 30].sum() > drawn[16, 2].sum() + 100
    assert overlay(heat).startswith(b"\x89PNG")
    assert overlay(torch.ones(7, 7)) != overlay(heat)  # a map of one value is no error
    flat, strip_of = torch.zeros(8, 8), torch.arange(64.0).view(8, 8)
    content, side = overlay_strip(torch.stack((strip_of, flat, strip_of.T)))
    strip = np.asarray(Image.open(io.BytesIO(content)))
    assert (side, strip.shape) == (8, (30, 10))
    for number, values in enumerate((strip_of, flat, strip_of.T)):  # each alone, with its edge repeated around it
        alone = np.asarray(Image.open(io.BytesIO(overlay(values))))
        assert np.array_equal(strip[10 * number : 10 * number + 10], np.pad(alone, 1, mode="edge"))
    assert jpeg(image).startswith(b"\xff\xd8")


def test_numbers_for_people() -> None:
    shown = [percentage(share) for share in (0, 1e-5, 0.0005, 0.5, 0.9996, 1)]
    assert shown == ["0.0%", "<0.1%", "0.1%", "50.0%", ">99.9%", "100.0%"]
    assert signed(-0.5) == "−0.500"


class TestCommand:
    def test_writes_what_it_is_asked_for(
        self,
        dapl_run: Path,
        bird: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        classifier: Classifier,
    ) -> None:
        out = tmp_path / "out"
        code = main(["explain", str(dapl_run), str(bird), "--format", "html,png,json", "--top", "2", "--out", str(out)])
        printed = capsys.readouterr()
        assert code == 0
        assert sorted(path.name for path in out.iterdir()) == ["bird.html", "bird.json", "bird.png"]
        assert classifier.predict(bird).class_name in printed.out
        assert all(str(out / f"bird.{kind}") in printed.out for kind in ("html", "png", "json"))
        assert printed.err == ""
        written = json.loads((out / "bird.json").read_text())
        assert [len(evidence["prototypes"]) for evidence in written["classes"]] == [2, 2]
        assert str(bird.parent) not in (out / "bird.html").read_text()  # no path of the machine

    def test_several_images_one_of_them_from_the_data(self, run: Path, bird: Path, classifier: Classifier) -> None:
        assert main(["explain", str(run), str(bird), str(bird), "test/002/0000", "--format", "json"]) == 0
        folder = run / "explanations"
        assert sorted(path.name for path in folder.iterdir()) == ["bird-2.json", "bird.json", "test-002-0000.json"]
        written = json.loads((folder / "test-002-0000.json").read_text())
        assert written["classes"][0]["prototypes"][0]["foreground"] is not None

    @pytest.mark.parametrize("by", ["name", "index"])
    def test_another_class(self, run: Path, bird: Path, classifier: Classifier, by: str) -> None:
        last = list(classifier.predict(bird).probabilities)[-1]
        word = last.upper() if by == "name" else str(classifier.classes.index(last))
        assert main(["explain", str(run), str(bird), "--class", word, "--format", "json"]) == 0
        written = json.loads((run / "explanations" / "bird.json").read_text())
        assert [evidence["class"] for evidence in written["classes"]] == [classifier.predict(bird).class_name, last]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["no.jpg"], "no.jpg: no such file"),
            (["{broken}"], "not an image, or its header is corrupt"),
            (["{bird}", "--class", "Penguin"], "no class 'Penguin'"),
            (["{bird}", "--class", "3"], "no class 3; there are 3"),
            (["{bird}", "--top", "0"], "--top is 0"),
            (["{bird}", "--format", "pdf"], "--format: 'pdf' is not known"),
            (["{bird}", "--format", ","], "--format: nothing is named"),
            (["{bird}", "--frobnicate", "1"], "takes no --frobnicate"),
        ],
    )
    def test_bad_input_gets_a_sentence(
        self,
        dapl_run: Path,
        bird: Path,
        tmp_path: Path,
        arguments: list[str],
        message: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 not much of an image")
        words = [word.format(bird=bird, broken=tmp_path / "broken.jpg") for word in arguments]
        assert main(["explain", str(dapl_run), *words, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert main(["explain", str(tmp_path), str(bird)]) == 2
        assert "not a run directory" in capsys.readouterr().err

    def test_without_the_training_data_it_explains_all_the_same(
        self, run: Path, bird: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = run / "config.yaml"
        data = "data:\n  name: cub\n  root: /no/such/folder\n  image_size: 64\nmodel:"
        config.write_text(re.sub(r"data:\n.*?\nmodel:", data, config.read_text(), flags=re.DOTALL))
        assert main(["explain", str(run), str(bird)]) == 0
        printed = capsys.readouterr()
        assert "without the training images of the prototypes" in printed.err
        assert "logit" in printed.out
        assert "no image" in (run / "explanations" / "bird.html").read_text()


def test_what_the_docs_show_runs(dapl_run: Path, bird: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(dapl_run, tmp_path / "runs" / "demo")
    shutil.copy(bird, tmp_path / "bird.png")
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "explain.md", None, 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.attempted > 8
    assert results.failed == 0, "".join(report)


def test_the_row_that_the_docs_work_by_hand_adds_up() -> None:
    text = " ".join(DOCS.split())
    terms, total = re.search(r"((?:[\d.]+ \+ )+[\d.]+) = ([\d.]+), the logit", text).groups()  # type: ignore[union-attr]
    assert sum(map(float, terms.split(" + "))) == pytest.approx(float(total), abs=5e-4)
    score, weight, product = re.search(r"([\d.]+) × ([\d.]+) = ([\d.]+)\.", text).groups()  # type: ignore[union-attr]
    assert float(score) * float(weight) == pytest.approx(float(product), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1500), ("dark", 1000), ("light", 390)])
def test_the_page_opens(
    chromium: Browser, classifier: Classifier, bird: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    found = classifier.explain(bird, top=3)
    path = found.save(tmp_path / "page.html")
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    page, messages, requests = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert messages == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert page.locator(".overview:visible").count() == 1, "the one that fits the screen"
    assert not page.locator(".heat").first.is_visible(), "only on demand"
    page.check("#heat")
    assert page.locator(".heat").first.is_visible()
    assert page.locator("tbody tr").count() == sum(len(evidence.rows) for evidence in found.classes)
    assert page.locator("h1").inner_text() == found.predicted_name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    images = page.locator("td.look:visible > svg")
    assert all(images.nth(n).bounding_box()["width"] > 60 for n in range(images.count()))
    red = page.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert (red < 60) == (scheme == "dark")
    context.close()
