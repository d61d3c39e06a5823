"""What the API answers, and that docs/serve.md says so."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from dapl import load
from dapl.data.images import MAX_PIXELS
from dapl.runs.loading import load_run
from dapl.runs.outlines import lines_of
from dapl.serve.app import bare_app, build_app
from dapl.serve.connections import HEADER_SECONDS, MOST_CONNECTIONS, STALLED_SECONDS, STOP_SECONDS
from dapl.serve.requests import FORMATS, MAX_BYTES, PLACES
from dapl.serve.state import REMEMBERED

from .conftest import SIZE, WITH_PROTOTYPES, Server, encoded, image, serving

TEXT = " ".join((Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("system", WITH_PROTOTYPES)
def test_contributions_add_up_to_the_logit_of_the_model(system: str, trained: Callable[[str], Path]) -> None:
    loaded = load_run(trained(system))
    with TestClient(build_app(loaded), base_url="http://localhost") as client:
        for top in (1, 3, 100):
            answer = client.post("/api/explain", content=encoded(image()), params={"top": top}).json()
            assert "predicted" in answer, answer
            file = io.BytesIO(encoded(image()))
            with torch.no_grad():  # distances are computed in another way where they are differentiated
                logits = loaded.model(load(trained(system)).pixels(Image.open(file)).unsqueeze(0)).logits[0]
            assert answer["predicted"] == int(logits.argmax())
            for one in answer["classes"]:
                listed = sum(row["contribution"] for row in one["rows"]) + one["rest"]["contribution"]
                assert listed == pytest.approx(one["logit"], abs=1e-4)
                assert one["total"] == pytest.approx(float(logits[one["index"]]), abs=1e-4)
                assert len(one["rows"]) <= top
                for row in one["rows"]:
                    assert row["contribution"] == pytest.approx(row["similarity"] * row["weight"], abs=1e-9)


@pytest.mark.parametrize("system", WITH_PROTOTYPES)
def test_switching_off_changes_the_logit_by_the_contribution(system: str, trained: Callable[[str], Path]) -> None:
    with TestClient(build_app(load_run(trained(system))), base_url="http://localhost") as client:
        before = client.post("/api/explain", params={"example": 1}).json()
        shown = [one["index"] for one in before["classes"]]
        gone = before["classes"][0]["rows"][0]
        after = client.post(
            "/api/explain", params={"example": 1, "class": shown, "switched_off": [gone["prototype"]]}
        ).json()
        one = after["classes"][0]
        assert gone["contribution"] != 0
        assert before["classes"][0]["logit"] - one["logit"] == pytest.approx(gone["contribution"], abs=1e-9)
        assert one["before"] == before["classes"][0]["logit"]
        assert one["rows"][0] | {"contribution": 0, "switched_off": True} == one["rows"][0]
        assert [row["prototype"] for row in one["rows"]] == [row["prototype"] for row in before["classes"][0]["rows"]]
        assert after["switched_off"] == [gone["prototype"]]
        assert after["predicted_before"] == before["predicted"]


def test_an_upload_gets_the_class_that_the_library_gives(client: httpx.Client, server: Server, tmp_path: Path) -> None:
    classifier = load(server.run)
    for seed in range(5):
        file = tmp_path / f"{seed}.png"
        file.write_bytes(encoded(image(seed)))
        answer = client.post("/api/explain", content=file.read_bytes()).json()
        expected = classifier.predict(file)
        assert answer["predicted"] == expected.class_index
        best = answer["ranking"][0]
        assert (best["name"], best["index"]) == (expected.class_name, expected.class_index)
        assert best["probability"] == pytest.approx(expected.probability, abs=1e-6)


def test_an_example_is_explained_as_the_library_explains_it(client: httpx.Client, server: Server) -> None:
    classifier = load(server.run)
    listed = client.get("/api/examples", params={"count": 100}).json()
    assert listed["total"] == len(listed["examples"]) == 15
    example = listed["examples"][5]
    found = classifier.sample(example["name"])
    assert found is not None
    sample, parts = found
    expected = classifier.explain(sample, parts=parts)
    answer = client.post("/api/explain", params={"example": example["index"]}).json()
    assert answer["image"]["label"] == sample.label == example["label"]
    assert answer["image"]["name"] == sample.name
    for one, evidence in zip(answer["classes"], expected.classes, strict=True):
        assert one["name"] == evidence.name
        for shown, row in zip(one["rows"], evidence.rows, strict=True):
            assert (shown["prototype"], shown["part"]) == (row.prototype, row.part)
            assert shown["box"] == (None if row.box is None else list(row.box))
            assert (shown["outline"], shown["colour"]) == (row.outline, row.colour)
            assert (shown["foreground"], shown["here"]) == (row.foreground, row.here)
            assert shown["background"] == row.background


def test_examples_of_a_class_and_in_turn(client: httpx.Client) -> None:
    first = client.get("/api/examples", params={"count": 3}).json()["examples"]
    assert [example["label"] for example in first] == [0, 1, 2]
    own = client.get("/api/examples", params={"of": 2, "start": 1, "count": 2}).json()
    assert own["total"] == 5
    assert [example["label"] for example in own["examples"]] == [2, 2]
    shown = Image.open(io.BytesIO(client.get(first[0]["image"]).content))
    assert (shown.format, shown.size) == ("JPEG", (SIZE, SIZE))


def test_every_image_that_an_answer_names_is_there(client: httpx.Client) -> None:
    answer = client.post("/api/explain", content=encoded(image(), "JPEG")).json()
    rows = [row for one in answer["classes"] for row in one["rows"]]
    assert all(row["attention"] for row in rows)
    for url in {answer["image"]["url"], *(row[layer] for row in rows for layer in ("heat", "attention"))}:
        response = client.get(url)
        shown = Image.open(io.BytesIO(response.content))
        assert response.headers["content-type"] == f"image/{shown.format.lower()}"  # type: ignore[union-attr]
    for row in rows:
        patch = Image.open(io.BytesIO(client.get(row["patch"]["image"]).content))
        assert patch.size == (row["patch"]["width"], row["patch"]["height"])
        for line in lines_of(row["patch"]["outline"] or ""):  # a map that is flat on its own image has no region
            assert all(x == x and y == y for x, y in line)


def test_an_image_is_asked_about_again_by_its_id(client: httpx.Client) -> None:
    first = client.post("/api/explain", content=encoded(image(3))).json()
    again = client.post("/api/explain", params={"image": first["image"]["id"]}).json()
    assert again == first
    gone = client.post("/api/explain", params={"image": "unknown"})
    assert (gone.status_code, "send it again" in gone.json()["detail"]) == (404, True)


def test_two_classes_of_choice(client: httpx.Client) -> None:
    answer = client.post("/api/explain", params={"example": 0, "class": [2, 0]}).json()
    assert [one["index"] for one in answer["classes"]] == [2, 0]
    once = client.post("/api/explain", params={"example": 0, "class": [1, 1]}).json()
    assert [one["index"] for one in once["classes"]] == [1]


def test_facts_classes_and_prototypes(client: httpx.Client, server: Server) -> None:
    loaded = load_run(server.run)
    facts = client.get("/api/run").json()
    assert (facts["system"], facts["classes"], facts["prototypes"], facts["heads"]) == ("dapl", 3, 9, 3)
    assert (facts["name"], facts["examples"], facts["note"]) == ("run", 15, None)
    classes = client.get("/api/classes").json()
    assert [one["name"] for one in classes] == loaded.classes
    assert [one["prototypes"] for one in classes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    found = client.get("/api/prototypes", params={"of": 1}).json()["prototypes"]
    assert [one["index"] for one in found] == [3, 4, 5]
    for one in found:
        record = loaded.records[one["index"]]
        assert one["source"]["image"] == record.image
        assert one["of"] == record.classes
        weights = loaded.model.class_weights()
        assert torch.allclose(torch.tensor(one["weights"]), weights[one["index"], 1:2])
        assert client.get(f"/api/prototypes/{one['index']}").json() == one


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("POST", "/api/explain?example=99", 404, "There is no example 99; there are 15, counted from 0."),
        ("POST", "/api/explain?example=0&class=3", 404, "There is no class 3; the model has 3, counted from 0."),
        ("POST", "/api/explain?example=0&switched_off=9", 404, "There is no prototype 9; the model has 9"),
        ("POST", "/api/explain?example=0&top=0", 422, "top: input should be greater than or equal to 1."),
        ("POST", "/api/explain?example=0&image=x", 409, "Name either an example or an image, not both."),
        ("POST", "/api/explain", 422, "The file is empty"),
        ("GET", "/api/prototypes/9", 404, "There is no prototype 9"),
        ("GET", "/api/prototypes/-1/patch.jpg", 404, "There is no prototype -1"),
        ("GET", "/api/prototypes?of=3", 404, "There is no class 3"),
        ("GET", "/api/examples/15/image.jpg", 404, "There is no example 15"),
        ("GET", "/api/images/example-0/heat-99.png", 404, "There is no such overlay"),
        ("DELETE", "/api/marks/2", 404, "Prototype 2 is not marked."),
        ("PUT", "/api/marks/9", 404, "There is no prototype 9"),
        ("GET", "/api/nothing", 404, "There is nothing at this address."),
        ("DELETE", "/api/run", 405, "This address does not take that method."),
        ("PATCH", "/api/marks/0", 405, "This address does not take that method."),
    ],
)
def test_what_cannot_be_met_is_said_in_one_sentence(
    client: httpx.Client, method: str, path: str, status: int, sentence: str
) -> None:
    client.post("/api/explain", params={"example": 0})
    response = client.request(method, path, **({"json": {"note": ""}} if method == "PUT" else {}))  # type: ignore[arg-type]
    assert response.status_code == status
    assert response.json()["detail"].startswith(sentence)
    assert "\n" not in response.json()["detail"]
    assert response.headers.get("allow") == {"/api/run": "GET", "/api/marks/0": "PUT, DELETE"}.get(path)


def test_marks_survive_a_restart(run: Path) -> None:
    with serving(run) as server, server.client() as client:
        assert client.get("/api/marks").json() == {"marks": []}
        client.put("/api/marks/4", json={"note": "sees the perch"})
        client.put("/api/marks/1", json={"note": " a <b>twin</b> "})
        client.put("/api/marks/5", json={})
        client.delete("/api/marks/5")
    assert not list(run.glob(".*.tmp"))
    with serving(run) as server, server.client() as client:
        marks = client.get("/api/marks").json()["marks"]
        assert [(mark["prototype"], mark["note"]) for mark in marks] == [(1, "a <b>twin</b>"), (4, "sees the perch")]
        noted = {one["index"]: one["note"] for one in client.get("/api/prototypes").json()["prototypes"]}
        assert noted == dict.fromkeys(range(9)) | {1: "a <b>twin</b>", 4: "sees the perch"}
        assert client.put("/api/marks/1", json={"note": "x" * 501}).status_code == 422
        client.put("/api/marks/1", json={"note": "changed"})
        assert client.get("/api/marks").json()["marks"][0]["note"] == "changed"


def test_without_the_data_there_are_no_examples_and_uploads_work(run: Path, tmp_path: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text().split("data:\n")
    rest = text[1][text[1].index("model:") :]
    data = f"data:\n  name: folder\n  image_size: {SIZE}\n  root: {tmp_path / 'nowhere'}\n"
    config.write_text(text[0] + data + rest)
    with serving(run) as server, server.client() as client:
        facts = client.get("/api/run").json()
        assert facts["examples"] == 0
        assert facts["note"].startswith("The images of this run's data are not at hand")
        answer = client.post("/api/explain", content=encoded(image())).json()
        assert all(row["patch"] is None for one in answer["classes"] for row in one["rows"])
        assert client.get("/api/prototypes/0/patch.jpg").status_code == 404
        assert client.post("/api/explain", params={"example": 0}).status_code == 404


def test_the_docs_list_every_address() -> None:
    listed = {
        (method, path)
        for methods, path in re.findall(r"\| ([A-Z, ]+) \| `(/[^`]+)` \|", TEXT)
        for method in methods.split(", ")
    }
    paths = bare_app().openapi()["paths"]
    assert listed == {(method.upper(), path) for path, methods in paths.items() for method in methods}


def test_the_docs_name_the_limits() -> None:
    assert f"at most {MAX_BYTES // 2**20} MB" in TEXT
    assert f"{MAX_PIXELS // 10**6} megapixels" in TEXT
    assert f"{PLACES} may wait" in TEXT
    assert f"the last {REMEMBERED} images" in TEXT
    assert f"a header has {HEADER_SECONDS:.0f} seconds" in TEXT
    assert f"not taken {STALLED_SECONDS:.0f}." in TEXT
    assert f"may be {MOST_CONNECTIONS} connections" in TEXT
    assert f"has {STOP_SECONDS} seconds to end" in TEXT
    for name in FORMATS:
        assert name.lower() in TEXT.lower()


def test_an_answer_says_what_of_the_image_the_model_saw(trained: Callable[[str], Path]) -> None:
    loaded = load_run(trained("dapl"))
    data = loaded.config.data.model_copy(update={"fit": "crop"})
    cropping = replace(loaded, config=loaded.config.model_copy(update={"data": data}))
    wide = Image.new("RGB", (100, 60), "teal")
    for one, said in ((loaded, ""), (cropping, "40 % of it, left and right, are cut off")):
        with TestClient(build_app(one), base_url="http://localhost") as client:
            seen = client.post("/api/explain", content=encoded(wide)).json()["image"]["seen"]
            assert said in seen
            assert bool(seen) == bool(said)
            example = client.post("/api/explain", params={"example": 1}).json()["image"]
            assert example["seen"] == "", "drawn birds are square"
