"""The page in a real browser: no complaint, nothing cut off, light and dark, and nothing fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dapl.explain.classifier import Classifier

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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
    assert page.locator("tbody tr").count() == sum(len(evidence.rows) for evidence in found.classes)
    assert page.locator("h1").inner_text() == found.predicted_name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    images = page.locator("td.look svg")
    assert all(images.nth(n).bounding_box()["width"] > 60 for n in range(images.count()))
    red = page.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert (red < 60) == (scheme == "dark")
    context.close()
