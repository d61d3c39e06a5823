"""The page in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dapl import load

from .conftest import Server, encoded, image, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect

Open = Callable[..., "Page"]


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """``open_page(url)``; at the end no page may have complained or asked another machine for anything."""
    contexts, problems = [], []

    def make(url: str, ready: str = "body[data-ready]", **options) -> Page:
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else 0)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((url.rpartition("/")[0], "data:", "blob:"))
                else problems.append(f"asked for {request.url}")
            ),
        )
        page.goto(url)
        expect(page.locator(ready).first).to_be_attached(timeout=60_000)
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


def logit(page: Page, card: int = 0) -> float:
    return float(page.locator("section.class").nth(card).locator(".logit").get_attribute("value") or "nan")


def contributions(page: Page, card: int = 0) -> list[float]:
    found = page.locator("section.class").nth(card).locator(".contribution").all()
    return [float(one.get_attribute("value") or "nan") for one in found]


def settled(page: Page) -> None:
    expect(page.locator("#answer")).not_to_have_attribute("aria-busy", "true", timeout=30_000)


def finished(page: Page) -> None:
    """Before the server ends: images may still be on their way."""
    page.wait_for_load_state("networkidle")
    page.close()


def test_an_upload_gets_the_class_that_the_library_gives(server: Server, open_page: Open, tmp_path: Path) -> None:
    classifier = load(server.run)
    page = open_page(server.url + "/")
    for seed in range(3):
        file = tmp_path / f"{seed}.png"
        file.write_bytes(encoded(image(seed)))
        page.set_input_files("#file", file)
        expected = classifier.explain(file)
        expect(page.locator("#predicted")).to_have_text(expected.predicted_name)
        expect(page.locator("section.class")).to_have_count(2)
        expect(page.locator("section.class .logit").first).to_have_attribute("value", repr(expected.classes[0].logit))
        for card, evidence in enumerate(expected.classes):
            rest = page.locator("section.class").nth(card).locator(".rest")
            left = float(rest.get_attribute("value") or 0) if rest.count() else 0.0
            assert sum(contributions(page, card)) + left == pytest.approx(evidence.logit, abs=1e-4)


def test_dropped_and_pasted_images(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/")
    give = """([bytes, kind]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "a.png", {type: "image/png"}));
        const event = kind === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
                                      : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
        document.body.dispatchEvent(event);
    }"""
    page.evaluate(give, [list(encoded(image(1))), "drop"])
    expect(page.locator("#predicted")).to_be_visible()
    settled(page)
    first = logit(page)
    page.evaluate(give, [list(encoded(image(2))), "paste"])
    expect(page.locator("section.class .logit").first).not_to_have_attribute("value", repr(first))


def test_switching_off_changes_the_logit_by_exactly_the_contribution(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/#example=1")
    expect(page.locator("section.class")).to_have_count(2)
    before, parts = logit(page), contributions(page)
    assert parts[0] != 0
    switch = page.locator("section.class").first.get_by_role("switch").first
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")
    assert before - logit(page) == pytest.approx(parts[0], abs=1e-9)
    assert contributions(page) == [0, *parts[1:]]
    shown = page.locator("section.class").first.locator(".change").inner_text()
    assert shown.strip() == f"({-parts[0]:+.3f})".replace("-", "−")
    expect(page.locator("#switched")).to_contain_text("is switched off")
    page.locator("#reset").click()
    expect(switch).to_have_attribute("aria-checked", "true")
    assert (logit(page), contributions(page)) == (before, parts)
    expect(page.locator("#reset")).to_be_disabled()


def test_taking_every_reason_away_changes_the_prediction(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/#example=0")
    name = page.locator("#predicted").inner_text()
    card = page.locator("section.class").first
    for switch in card.get_by_role("switch").all():
        switch.click()
        expect(switch).to_have_attribute("aria-checked", "false")
    settled(page)
    assert logit(page) == pytest.approx(0, abs=1e-9)
    expect(page.locator("#predicted")).not_to_have_text(name)
    expect(page.locator("#switched")).to_contain_text(f"the prediction was {name}")
    expect(card.locator("h2")).to_have_text(name)  # the reasons stay where they are


def test_hovering_shows_the_region(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/#example=2")
    view = page.locator("#view")
    expect(view.locator("image")).to_have_count(1)
    rows = page.locator("section.class").first.locator(".row")
    outlined = rows.locator(".look .outline").count()
    assert outlined > 1
    expect(view.locator(".outline")).to_have_count(outlined)  # all of the predicted class
    row = rows.filter(has=page.locator(".look .outline")).nth(1)
    prototype = row.get_attribute("data-prototype")
    row.hover()
    expect(view).to_have_attribute("data-prototype", prototype or "")
    expect(view.locator(".outline")).to_have_count(1)
    expect(view.locator("image")).to_have_count(1)  # heat is shown on demand only
    page.get_by_label("heat").check(force=True)
    row.hover()
    expect(view.locator("image")).to_have_count(2)
    assert f"heat-{prototype}.png" in (view.locator("image").nth(1).get_attribute("href") or "")
    page.get_by_label("attention").check(force=True)
    row.hover()
    assert f"attention-{prototype}.png" in (view.locator("image").nth(1).get_attribute("href") or "")
    page.mouse.move(0, 0)
    expect(view.locator("image")).to_have_count(1)
    row.locator("button.look").click()
    page.mouse.move(0, 0)
    page.locator("#choose").hover()
    expect(view).to_have_attribute("data-prototype", prototype or "")


def test_the_page_opens_with_an_image_already_explained(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/")
    expect(page.locator("#predicted")).to_be_visible()
    expect(page.locator("section.class")).to_have_count(2)
    assert page.locator("#names li").count() > 0, "what is outlined is named"
    expect(page.locator("#examples button[aria-pressed=true]")).to_have_count(1)
    # The longest share that there is stands on one line, within its column.
    tall, wide = page.evaluate(
        """() => {
            const shown = document.querySelector(".ranking li > span:last-child");
            const before = shown.getBoundingClientRect().height;
            shown.textContent = "> 99.9 %";
            return [shown.getBoundingClientRect().height - before, shown.scrollWidth - shown.clientWidth];
        }"""
    )
    assert (tall, wide) == (0, 0)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_two_runs_side_by_side(
    evaluated: Callable[[str], Path], open_page: Open, width: int, scheme: str, tmp_path: Path
) -> None:
    runs = [evaluated("parts"), evaluated("protopnet")]
    with serving(*runs) as server:
        page = open_page(server.url + "/", viewport={"width": width, "height": 900}, color_scheme=scheme)
        columns = page.locator(".run")
        expect(columns).to_have_count(2)
        boxes = [columns.nth(n).bounding_box() for n in range(2)]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert (boxes[0]["y"] == boxes[1]["y"]) == (width > 800), "side by side, or below each other on a phone"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "null" not in page.locator("#runs").inner_text()
        file = tmp_path / "bird.png"
        file.write_bytes(encoded(image(5)))
        page.set_input_files("#file", file)
        expect(page.locator("body")).to_have_attribute("data-answered", "file")
        for place, folder in enumerate(runs):
            found = load(folder).explain(file)
            expect(columns.nth(place).locator(".said b")).to_have_text(found.predicted_name)
            shown = columns.nth(place).locator(".contribution").all()
            values = [float(one.get_attribute("value") or "nan") for one in shown]
            assert values == [row.contribution for row in found.classes[0].rows]
            warned = columns.nth(place).locator(".warning").count()
            assert bool(warned) == (found.warning is not None)
        with server.client() as client:
            assert client.get("/2/api/run").json()["system"] == "protopnet"
            assert client.get("/2/api/prototypes/0").json()["patch"].startswith("/2/api/")
            assert client.post("/1/api/explain", content=encoded(image(6))).status_code == 200
        page.get_by_role("link", name=runs[1].name).last.click()
        expect(page.locator("body[data-ready]")).to_be_attached(timeout=30_000)
        expect(page.locator("#predicted")).to_be_visible()
        finished(page)


def test_two_classes_are_compared(server: Server, open_page: Open) -> None:
    page = open_page(server.url + "/#example=3")
    names = load(server.run).classes
    page.select_option("#first", "2")
    page.select_option("#second", "0")
    expect(page.locator("section.class h2")).to_have_text([names[2], names[0]])
    page.select_option("#second", "")
    expect(page.locator("section.class h2")).to_have_text([names[2]])


def test_marks_survive_a_restart_and_are_text(run: Path, open_page: Open) -> None:
    note = "<img src=x onerror=alert(1)> a twin"
    with serving(run) as server:
        page = open_page(server.url + "/#example=1")
        row = page.locator("section.class .row").first
        prototype = row.get_attribute("data-prototype")
        row.locator("button.flag").click()
        row.get_by_role("textbox").fill(note)
        row.get_by_role("button", name="Mark as bad", exact=True).click()
        expect(row.locator(".chip", has_text="marked: ")).to_have_text(f"marked: {note}")
        finished(page)
    with serving(run) as server:
        page = open_page(server.url + "/#example=1")
        row = page.locator(f"section.class .row[data-prototype='{prototype}']").first
        expect(row.locator(".chip", has_text="marked: ")).to_have_text(f"marked: {note}")
        expect(page.locator("#marked-title")).to_have_text("Marked as bad: 1")
        page.locator("#marked summary").click()
        page.get_by_role("button", name=f"Take the mark of prototype {prototype} away").click()
        expect(row.locator(".chip", has_text="marked: ")).to_be_hidden()
        expect(page.locator("#marked")).to_be_hidden()
        finished(page)
    assert '"marks": []' in (run / "marks.json").read_text()


def test_keyboard_only(run: Path, open_page: Open) -> None:
    """From an example to a switched off prototype, a mark, and back, without a mouse."""
    with serving(run) as server:
        page = open_page(server.url + "/")

        def tab_to(selector: str, limit: int = 60) -> None:
            for _ in range(limit):
                page.keyboard.press("Tab")
                if page.locator(f"{selector}:focus").count():
                    return
            pytest.fail(f"{selector} cannot be reached with Tab")

        tab_to("#file")
        tab_to("#examples button")
        page.keyboard.press("Enter")
        expect(page.locator("#predicted")).to_be_visible()
        settled(page)
        before, parts = logit(page), contributions(page)
        tab_to("button.look")
        row = page.locator("section.class .row").first
        expect(page.locator("#view")).to_have_attribute("data-prototype", row.get_attribute("data-prototype") or "")
        page.keyboard.press("ArrowDown")
        second = page.locator("section.class .row").nth(1)
        expect(page.locator("#view")).to_have_attribute("data-prototype", second.get_attribute("data-prototype") or "")
        page.keyboard.press("ArrowUp")
        tab_to("button.switch")
        page.keyboard.press("Space")
        expect(row.get_by_role("switch")).to_have_attribute("aria-checked", "false")
        assert before - logit(page) == pytest.approx(parts[0], abs=1e-9)
        expect(row.get_by_role("switch")).to_be_focused()
        tab_to("button.flag")
        page.keyboard.press("Enter")
        page.keyboard.type("by keyboard")
        page.keyboard.press("Enter")
        expect(row.locator(".chip", has_text="marked: by keyboard")).to_be_visible()
        expect(row.locator("button.flag")).to_be_focused()
        page.locator("#switched").scroll_into_view_if_needed()
        for _ in range(60):
            page.keyboard.press("Shift+Tab")
            if page.locator("#reset:focus").count():
                break
        page.keyboard.press("Enter")
        expect(row.get_by_role("switch")).to_have_attribute("aria-checked", "true")
        assert logit(page) == before
        finished(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(scheme: str, server: Server, open_page: Open) -> None:
    """Contrast of at least 4.5 : 1 for all text that is shown (WCAG AA)."""
    page = open_page(server.url + "/#example=1", color_scheme=scheme)
    page.locator("section.class").first.get_by_role("switch").first.click()
    expect(page.locator("#switches")).to_have_class("switches active")
    page.locator(".how summary").click()
    page.wait_for_timeout(400)  # transitions
    low = page.evaluate("""() => {
        const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const rgba = (colour) => {
            canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data];
        };
        const luminance = (c) => c.slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const over = (top, below) => top.map((v, i) => i === 3 ? 255 : (v * top[3] + below[i] * (255 - top[3])) / 255);
        const ground = (element) => element === null ? [255, 255, 255, 255]
            : over(rgba(getComputedStyle(element).backgroundColor), ground(element.parentElement));
        const found = [];
        for (const element of document.querySelectorAll("body *")) {
            const text = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
            if (!text || !element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
            if (element.closest(".unseen, .skip, button:disabled, option")) continue;
            const behind = ground(element);
            const [a, b] = [luminance(over(rgba(getComputedStyle(element).color), behind)), luminance(behind)];
            const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (contrast < 4.5) found.push(`${element.tagName}.${element.className}: ${contrast.toFixed(2)}`);
        }
        return [...new Set(found)];
    }""")
    assert low == []


def test_nothing_is_cut_off_on_a_phone(server: Server, open_page: Open) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    page = open_page(server.url + "/#example=1", **options)
    expect(page.locator("section.class")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    row = page.locator("section.class .row").first
    row.scroll_into_view_if_needed()
    row.locator("button.look").tap()
    expect(page.locator("#view")).to_have_attribute("data-prototype", row.get_attribute("data-prototype") or "")
    expect(page.locator("#stage")).to_be_in_viewport(ratio=0.9)
    row.get_by_role("switch").tap()
    expect(row.get_by_role("switch")).to_have_attribute("aria-checked", "false")


def test_the_report_is_live_and_takes_marks(run: Path, open_page: Open) -> None:
    with serving(run) as server:
        with server.client() as client:
            assert "The report is being made" in client.get("/report").text
        page = open_page(server.url + "/report", ready="#wall article, #prototypes article")
        expect(page.locator("body[data-ready]")).to_be_attached()
        button = page.get_by_role("button", name="Mark prototype 3 as bad").first
        button.click()
        expect(page.get_by_role("button", name="Take the mark of prototype 3 away").first).to_be_visible()
        with server.client() as client:
            assert [mark["prototype"] for mark in client.get("/api/marks").json()["marks"]] == [3]
            html = client.get("/report").text  # the client looks for paths of this machine in it
            assert "Content-Security-Policy" in html
            assert client.get("/report/images/../../config.yaml").status_code == 404
        page.reload()
        expect(page.get_by_role("button", name="Take the mark of prototype 3 away").first).to_be_visible()
        page.get_by_role("link", name="Ask it about an image").click()
        expect(page.locator("#marked-title")).to_have_text("Marked as bad: 1")
        finished(page)


def test_a_file_that_is_no_image_is_said(server: Server, open_page: Open, tmp_path: Path) -> None:
    page = open_page(server.url + "/#example=1")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "large.png").write_bytes(bytes(10 * 2**20 + 1))
    page.set_input_files("#file", tmp_path / "empty.png")
    expect(page.get_by_role("alert")).to_contain_text("The file is empty")
    page.set_input_files("#file", tmp_path / "large.png")
    expect(page.get_by_role("alert")).to_contain_text("larger than 10 MB")
