"""The page in a real Chromium: from disk, without a network, by mouse and by keyboard."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.report import repeated

from dapl.models.build import SYSTEMS
from dapl.report.collect import Report
from dapl.report.page import write_folder, write_single_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Reported = Callable[[str], tuple[Path, Report]]
EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


@dataclass
class Opened:
    """A page and all that went wrong or out."""

    page: Page
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def cards(self) -> list[str]:
        return self.page.locator("#wall article h4").all_inner_texts()

    def count(self) -> str:
        return self.page.locator("form.tools output").inner_text()

    def until(self, script: str) -> None:
        """Wait for it to be true; playwright's own way evaluates inside the page, which its policy forbids."""
        for _ in range(100):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never true: {script}")

    def choose(self, name: str, value: str) -> None:
        self.page.select_option(f"form.tools [name={name}]", value)


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """``opened(report)``: written to a folder (or one file) and opened; at the end nothing may have failed."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800})
    made: list[Opened] = []

    def make(report: Report, single: bool = False, after: str = "") -> Opened:
        file = write_single_file(report, tmp_path / "one.html") if single else write_folder(report, tmp_path / "report")
        one = Opened(context.new_page())
        one.page.on("console", lambda message: one.problems.append(message.text))
        one.page.on("pageerror", lambda error: one.problems.append(str(error)))
        one.page.on("request", lambda request: one.asked.append(request.url))
        one.page.on("requestfailed", lambda request: one.problems.append(request.url))
        one.page.goto(file.as_uri() + after)
        made.append(one)
        return one

    yield make
    for one in made:
        assert one.problems == []
        assert all(url.startswith(("file://", "data:")) for url in one.asked)
    context.close()


@pytest.mark.parametrize("single", [False, True], ids=["folder", "one file"])
@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_it_opens_from_disk(opened: Callable[..., Opened], reported: Reported, system: str, single: bool) -> None:
    _, report = reported(system)
    one = opened(report, single)
    entries = report.data["prototypes"]
    assert one.page.locator("#numbers tbody tr").count() == len(report.data["numbers"]["rows"])
    if not entries:
        assert "This model has no prototypes" in one.page.inner_text("main")
        assert one.page.locator("#prototypes, #heads, #offenders").count() == 0
        return
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in entries]
    assert one.page.locator("article.removed").count() == sum(not entry["kept"] for entry in entries)
    one.page.locator("#wall article").last.scroll_into_view_if_needed()
    one.until("[...document.querySelectorAll('#wall > :last-child .photo')].every(i => i.style.backgroundImage)")
    assert one.page.locator("#wall > :last-child .photo").count() == 4
    for reason in {entry["reason"] for entry in entries if entry["reason"]}:
        assert reason in one.page.inner_text("#wall")


def test_tiles_show_their_image(opened: Callable[..., Opened], reported: Reported) -> None:
    """What Chromium paints in a tile is the tile of the sheet, not its neighbour."""
    import io

    import numpy as np
    from PIL import Image

    _, report = reported("dapl")
    one = opened(report)
    entry = report.data["prototypes"][4]
    photos = report.data["classes"][entry["class"]]["photos"]
    row, column = divmod(entry["tests"][2]["tile"], photos["columns"])
    sheet = Image.open(io.BytesIO(report.images[photos["file"]]))
    side = photos["side"]
    left, top, right, bottom = (share * side / report.data["size"] for share in entry["tests"][2]["view"])
    place = (column * side + left, row * side + top, column * side + right, row * side + bottom)
    wanted = sheet.crop(tuple(map(round, place))).resize((32, 32))  # the region, enlarged
    one.page.uncheck("[name=outlines]")
    tile = one.page.locator("#wall article").nth(4).locator(".tests .tile").nth(2)
    tile.scroll_into_view_if_needed()
    one.until(
        "[...document.querySelectorAll('#wall article:nth-of-type(5) .photo')].every(i => i.style.backgroundImage)"
    )
    one.page.wait_for_timeout(300)
    shown = Image.open(io.BytesIO(tile.screenshot())).convert("RGB").resize((32, 32))
    difference = np.abs(np.asarray(shown, dtype=int) - np.asarray(wanted.convert("RGB"), dtype=int))[4:-4, 4:-4]
    assert difference.mean() < 12


def test_filters_and_search(opened: Callable[..., Opened], reported: Reported) -> None:
    _, report = reported("protopshare")
    entries = report.data["prototypes"]
    one = opened(report)
    unique = len({entry["prototype"] for entry in entries})
    removed = len({entry["prototype"] for entry in entries if not entry["kept"]})
    assert one.count() == f"{unique} of {unique} prototypes, of which {removed} were removed"
    one.choose("class", "1")
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in entries if entry["class"] == 1]
    one.choose("class", "")
    one.choose("flag", "removed")
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in entries if not entry["kept"]]
    assert "flag=removed" in one.page.url
    one.choose("flag", "")
    part = report.data["parts"][0]
    one.choose("part", part)
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in entries if part in entry["names"]]
    one.page.click("#clear")
    assert len(one.cards()) == len(entries)
    one.page.fill("[name=q]", "#3")
    assert set(one.cards()) == {"Prototype 3"}
    one.page.fill("[name=q]", report.data["classes"][2]["name"].upper())
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in entries if 2 in entry["classes"]]
    one.page.fill("[name=q]", "no such thing")
    assert one.cards() == []
    assert "No prototype is like this" in one.page.inner_text("#wall")


def test_offenders_lead_to_the_wall(opened: Callable[..., Opened], reported: Reported) -> None:
    _, report = reported("dapl")
    one = opened(report)
    flag = next(flag for flag, worst in report.data["offenders"].items() if worst)
    assert one.page.locator(f"[data-offenders={flag}] li").count() == len(report.data["offenders"][flag])
    one.page.locator(f"[data-offenders={flag}] button").first.click()
    first = report.data["prototypes"][report.data["offenders"][flag][0]["entry"]]
    assert one.page.locator("dialog h2").inner_text().startswith(f"Prototype {first['prototype']} ")
    one.page.keyboard.press("Escape")
    one.page.click(f"[data-show-flag={flag}]")
    flagged = [entry for entry in report.data["prototypes"] if flag in entry["flags"]]
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in flagged]


def test_order_and_a_link_to_a_selection(opened: Callable[..., Opened], reported: Reported) -> None:
    _, report = reported("dapl")
    one = opened(report, after="#?class=2&sort=foreground")
    own = [entry for entry in report.data["prototypes"] if entry["class"] == 2 and entry["kept"]]
    own.sort(key=lambda entry: entry["on_object"])
    assert one.cards() == [f"Prototype {entry['prototype']}" for entry in own]


def test_keyboard_only(opened: Callable[..., Opened], reported: Reported) -> None:
    _, report = reported("dapl")
    one = opened(report)
    keys, page = one.page.keyboard, one.page
    keys.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    keys.press("/")
    keys.type(report.data["classes"][1]["name"])
    expected = [f"Prototype {entry['prototype']}" for entry in report.data["prototypes"] if entry["class"] == 1]
    assert one.cards() == expected
    for _ in range(30):
        keys.press("Tab")
        if page.evaluate("document.activeElement.closest('#wall') !== null"):
            break
    assert page.evaluate("document.activeElement.textContent") == expected[0]
    keys.press("Enter")
    heading = page.locator("dialog h2")
    assert heading.inner_text().startswith(f"{expected[0]} ")
    keys.press("ArrowRight")
    assert heading.inner_text().startswith(f"{expected[1]} ")
    keys.press("ArrowLeft")
    keys.press("ArrowLeft")
    assert heading.inner_text().startswith(f"{expected[0]} "), "there is none before the first"
    keys.press("Escape")
    assert not page.evaluate("document.getElementById('details').open")
    assert page.evaluate("document.activeElement.textContent") == expected[0], "focus goes back"


def test_the_details_add_up(opened: Callable[..., Opened], reported: Reported) -> None:
    _, report = reported("dapl")
    entry = report.data["prototypes"][0]
    one = opened(report)
    one.page.click("#wall article h4 button")
    text = one.page.locator("dialog figcaption").nth(1).inner_text().replace("−", "-")
    found = re.match(r"(-?[\d.]+) × (-?[\d.]+) = (-?[\d.]+)", text)
    assert found is not None
    score, weight, contribution = map(float, found.groups())
    assert score == pytest.approx(entry["tests"][0]["score"], abs=1e-3)
    assert weight == pytest.approx(entry["weight"], abs=1e-3)
    assert contribution == pytest.approx(score * weight, abs=2e-3)


def test_a_map_without_a_region_says_so(opened: Callable[..., Opened], reported: Reported) -> None:
    report = copy.deepcopy(reported("dapl")[1])
    report.data["prototypes"][0]["tests"][0]["outline"] = None
    one = opened(report)
    assert one.page.locator("#wall article").first.locator(".alike-nowhere").count() == 1
    one.page.click("#wall article h4 button")
    captions = one.page.locator("dialog figcaption")
    assert "nothing is outlined" in captions.nth(1).inner_text()
    assert "nothing is outlined" not in captions.nth(2).inner_text()


def test_images_are_fetched_when_they_come_near(opened: Callable[..., Opened], reported: Reported) -> None:
    report = repeated(reported("dapl")[1], 40)
    one = opened(report)
    one.page.wait_for_timeout(300)

    def sheets() -> int:
        return len({url for url in one.asked if "/images/" in url})

    def asked_for(enough: Callable[[], bool]) -> bool:
        for _ in range(100):
            if enough():
                return True
            one.page.wait_for_timeout(50)
        return False

    first = sheets()
    assert len(report.images) == 241
    assert first < 40, "only what is near the screen"
    drawn = one.page.locator("#wall article").count()
    assert drawn < 100, "not all of the 360 cards"
    one.page.click("#more")
    assert one.page.locator("#wall article").count() == 2 * drawn
    one.page.locator("#wall article").last.scroll_into_view_if_needed()
    assert asked_for(lambda: sheets() > first)
    assert sheets() < 240
    one.choose("class", "119")
    assert asked_for(lambda: any("119-photos.jpg" in url for url in one.asked))


def test_prototypes_come_before_training(opened: Callable[..., Opened], reported: Reported) -> None:
    """What it looks at first, then the worst, then all, then numbers and training; warnings and groups on top."""
    report = repeated(reported("dapl")[1], 1)
    report.data["warnings"] = ["79% of what the reasons rest on lies off the object."]
    group = {"heads": [0, 2], "classes": [0, 1], "prototypes": [0, 2, 3, 5], "names": ["wing", "face"]}
    report.data["groups"] = [group]
    one = opened(report)
    order = one.page.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert order == ["looks", "offenders", "prototypes", "heads", "numbers", "confusion", "model"]
    top = one.page.evaluate("[...document.querySelector('main').children].slice(0, 2).map(e => e.className)")
    assert top == ["note warning", "amber"]
    assert "heads 0, 2: wing and face" in one.page.inner_text(".amber")
    red = one.page.locator("#wall .chip.warn", has_text="same spot").count()
    assert red == 0, "counted on top, not flagged card by card in red"
    assert one.page.locator(".overview.named").is_visible()
    assert one.page.locator("#strip .head").count() == len(report.data["strip"])
    assert not one.page.locator(".heat").first.is_visible(), "only on demand"
    assert one.page.locator("#wall .outline path.edge").first.is_visible()


@pytest.mark.parametrize("single", [False, True], ids=["folder", "one file"])
def test_names_are_never_code(opened: Callable[..., Opened], reported: Reported, single: bool) -> None:
    report = repeated(reported("dapl")[1], 1)
    for one in report.data["classes"]:
        one["name"] = EVIL
        for test in one["tests"]:
            test["image"] = EVIL
    for entry in report.data["prototypes"]:
        entry["part"] = entry["reason"] = EVIL
        entry["names"] = [EVIL]
        entry["source"]["image"] = EVIL
    for label in report.data["overview"]["labels"]:
        label["text"] = EVIL
    report.data.update({"run": EVIL, "parts": [EVIL], "notes": [EVIL]})
    shown = opened(report, single)
    shown.page.click("#wall article h4 button")
    shown.page.wait_for_timeout(100)
    assert shown.page.evaluate("window.hit") is None
    assert EVIL in shown.page.locator("#wall h3").first.inner_text()
    assert EVIL in shown.page.title()


def test_it_fits_a_phone_and_the_dark(chromium: Browser, reported: Reported, tmp_path: Path) -> None:
    page_file = write_folder(reported("dapl")[1], tmp_path / "report")
    grounds = []
    for scheme in ("light", "dark"):
        context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(page_file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
    assert grounds[0] != grounds[1]


def test_everything_has_a_name(opened: Callable[..., Opened], reported: Reported) -> None:
    """For those who do not see it: images, controls and tables say what they are."""
    one = opened(reported("dapl")[1])
    nameless = one.page.evaluate(
        """() => [...document.querySelectorAll('[role=img], input, select, button, [role=region]')].filter(e =>
            !(e.getAttribute('aria-label') || e.closest('label')?.textContent.trim() || e.textContent.trim()))
            .map(e => e.outerHTML)"""
    )
    assert nameless == []
    levels = one.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
