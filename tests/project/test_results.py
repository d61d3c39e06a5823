"""The pages of results are what their templates and the kept numbers make, and no figure on them was typed."""

from __future__ import annotations

import doctest
import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> ModuleType:
    """A script of docs, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures, data, pages = script("results_figures"), script("results_data"), script("render_results")


def test_pages_are_up_to_date(capsys: pytest.CaptureFixture) -> None:
    """`make results` was run after the last change of a template or of a number."""
    assert pages.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("module", [figures, data, pages], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("kept", sorted((DOCS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_kept_files_are_of_a_known_kind_and_name_no_folder_of_a_machine(kept: Path) -> None:
    found = data.read(kept.stem)
    assert type(found) in data.KINDS.values()
    if not isinstance(found, data.Notes):
        assert {"command", "measured", "machine", "versions"} <= set(found.content)
    for folder in ("/home/", "/tmp/", "/root/", "/work/"):
        assert folder not in kept.read_text(encoding="utf-8"), folder


# --- a small comparison, written out ---------------------------------------------------------------------------------

COVERAGE = {"box": None, "ours": (0.70, 0.80, 0.90), "theirs": (0.50, 0.55, 0.60)}
ACCURACY = {"box": (0.88, 0.90, 0.89), "ours": (0.90, 0.91, 0.89), "theirs": (0.55, 0.60, 0.50)}


def number(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values), "values": list(values)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows, runs = [], []
    for name, accuracy in ACCURACY.items():
        row: dict[str, Any] = {"name": name, "system": "dapl", "seeds": 3, "accuracy": spread(accuracy)}
        numbers = [{"accuracy": number(value, 0.03)} for value in accuracy]
        if (coverage := COVERAGE[name]) is not None:
            row["coverage"] = spread(coverage)
            numbers = [found | {"coverage": number(v, 0.02)} for found, v in zip(numbers, coverage, strict=True)]
        rows.append(row)
        runs += [{"name": name, "seed": seed, "numbers": found} for seed, found in enumerate(numbers)]
    facts = {
        "command": "dapl compare configs/ours.yaml --out runs/small",
        "measured": "2026-11-16",
        "machine": {"processor": "Some CPU", "instructions": "AVX2", "threads": 1},
        "versions": {"dapl": "0.1.0", "torch": "2.13.0"},
        "images": {"train": 539, "validation": 60, "test": 579},
        "seeds": {"box": [0], "ours": [0, 1, 2], "theirs": [0, 1, 2]},
    }
    (tmp_path / "small.json").write_text(json.dumps({**facts, "rows": rows, "runs": runs}))
    return tmp_path


def rendered(folder: Path, text: str) -> str:
    template = folder / "page.md.jinja"
    template.write_text("{% set small = results('small') %}" + text, encoding="utf-8")
    return pages.render(template, pages.Figures(), folder).split("-->\n\n", 1)[1].rstrip("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{{ small.ours.accuracy }} and {{ small['ours'].coverage }}", "90.0 % and 0.800"),
        ("{{ small.ours.accuracy.spread }}", "90.0 ± 1.0 %"),
        ("{{ small.ours.coverage.listed }}; {{ small.ours.coverage.range }}", "0.700, 0.800 and 0.900; 0.700 to 0.900"),
        ("{{ small.ours.run(1).accuracy.interval }}", "91.0 % [88.0, 94.0]"),
        ("{{ small.best('coverage') }}", "ours"),
        ("{{ small.command }}", "    dapl compare configs/ours.yaml --out runs/small"),
        ("{% if results('gone') %}there{% else %}not measured{% endif %}", "not measured"),
        ("{{ small.has('ours', 'gone') }}", "False"),
        ("{{ small.seeds }}", "seeds 0, 1 and 2 (`box` seed 0)"),
        (
            "{{ small.table('name', 'accuracy', 'coverage', 'diversity', rows=['theirs', 'gone', 'box']) }}",
            "| system | accuracy (%) | Coverage |\n| --- | --- | --- |\n"
            "| theirs | 55.0~±~5.0 | 0.550~±~0.050 |\n| box | 89.0~±~1.0 | – |".replace("~", "\u00a0"),
        ),
    ],
)
def test_what_a_template_shows(text: str, shown: str, folder: Path) -> None:
    assert rendered(folder, text) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n{{ small.gone.accuracy }}", r"page.md.jinja, line 3: docs/results/small.json: there is no row gone"),
        ("{{ small.box.coverage }}", "box has no coverage"),
        ("{{ small.ours.run(7) }}", "ours has no seed 7"),
        ("{{ results('gone').table('name') }}", r"docs/results/gone.json: there is no such file"),
        ("a\n{{ claim(small.ours.coverage.mean < 0.5) }}", "line 2: what stands here no longer holds"),
        ("Coverage is 0.906.", "figures that were typed: line 1: '0.906'"),
        (
            "a\n{{ small.ours.accuracy }}\nand 89 % is ± 3 more, 22 points",
            "line 3: '89 %'; line 3: '± 3'; line 3: '22 points'",
        ),
        ("{{ 0.906 }}", "0.906"),
    ],
)
def test_what_is_refused(text: str, message: str, folder: Path) -> None:
    with pytest.raises(figures.ResultsError) as error:
        rendered(folder, text)
    assert message in str(error.value)


def test_constants_code_and_links_are_not_typed_figures() -> None:
    text = "τ = 0.2 and the 95 % interval\n\n    dapl x --tau 0.5\n\n`0.3` [x](a-0.4.md) on 200 classes"
    assert pages.typed_figures(text) == []


def test_a_difference_is_called_one_where_it_is_more_than_chance(folder: Path) -> None:
    """Against the definition written out: Student's t of the paired seeds, and the intervals of both rows."""
    small = data.read("small", folder)
    found = small.against("ours", "theirs", "coverage")
    ours, theirs = COVERAGE["ours"], COVERAGE["theirs"]
    assert ours is not None
    assert theirs is not None
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    seeds = 4.303 * statistics.stdev(pairs) / math.sqrt(3)
    assert found.value == pytest.approx(statistics.mean(pairs))
    assert found.chance == pytest.approx(math.sqrt(seeds**2 + 0.02**2 + 0.02**2))
    assert found.agrees("above") == "yes"
    assert found.agrees("below") == "no"
    box = small.against("ours", "box", "accuracy")
    assert str(box) == "1.0 points above"
    assert box.agrees("above") == box.agrees("below") == "not decided"
    assert "| box |" not in small.differences("accuracy", "box")
    assert "| ours | +1.0 ± 4.9 | yes |" in small.differences("accuracy", "box")
    assert "accuracy: `ours` above `box` | +1.0 ± 4.9 | not decided" in small.claims(
        ("ours", "above", "box", "accuracy")
    )


def test_rows_of_chance_have_no_runs(folder: Path) -> None:
    content = {"rows": {"noise": {"coverage": 0.975, "diversity": 0.736}, "one place": {"coverage": 0.4}}}
    (folder / "chance.json").write_text(json.dumps(content))
    text = "{{ results('chance').noise.coverage }}\n\n{{ results('chance').table('name', 'coverage', 'diversity') }}"
    assert rendered(folder, text).splitlines()[-2:] == ["| noise | 0.975 | 0.736 |", "| one place | 0.400 | – |"]
    assert rendered(folder, text).startswith("0.975\n")


def test_a_comparison_may_carry_chance_and_shows_its_other_metrics(folder: Path) -> None:
    kept = folder / "small.json"
    content = json.loads(kept.read_text())
    assert not data.read("small", folder).chance
    kept.write_text(json.dumps({**content, "chance": {"prototypes": 10, "rows": {"noise": {"coverage": 0.975}}}}))
    assert rendered(folder, "{{ small.chance.noise.coverage }}") == "0.975"
    tables = rendered(folder, "{{ small.companions(without=['accuracy']) }}\n\n{{ small.companions([], width=1) }}")
    first, second, third = tables.split("\n\n")
    assert first == third
    assert [line.split(" |")[0] for line in first.splitlines()[2:]] == ["| ours", "| theirs"]
    assert [line.split(" |")[0] for line in second.splitlines()[2:]] == ["| box", "| ours", "| theirs"]


def test_rows_that_were_not_measured_again_are_those_of_the_history(folder: Path) -> None:
    earlier = {"columns": ["system", "Coverage"], "rows": [["ours", "0.9"], ["gone", "0.4"]]}
    (folder / "history.json").write_text(json.dumps({"entries": {"small": earlier}}))
    text = "{% set h = results('history') %}{{ h.table('small', h.absent('small', small)) }}"
    assert rendered(folder, text) == "| system | Coverage |\n| --- | --- |\n| gone | 0.4 |"
    assert rendered(folder, "{{ results('history').cell('small', 'ours', 'Coverage') }}") == "0.9"
    with pytest.raises(figures.ResultsError, match="small has no cell 'Diversity' of 'ours'"):
        rendered(folder, "{{ results('history').cell('small', 'ours', 'Diversity') }}")


def test_student_has_its_quantiles() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom, quantile in figures.STUDENT.items():
        assert quantile == pytest.approx(stats.t.ppf(0.975, freedom), abs=5e-4)  # as a table prints it


def test_a_figure_knows_what_it_was_drawn_from(folder: Path, tmp_path: Path) -> None:
    figures = pages.Figures()
    image, digest = tmp_path / "some.png", data.read("small", folder).digest
    figures._ask("some.png", digest, "alt", lambda path: Image.new("RGB", (4, 4)).save(path))
    assert figures.stale(tmp_path) == ["some.png"]
    assert figures.draw(tmp_path) == [image]
    assert pages.drawn_from(image) == digest
    assert figures.stale(tmp_path) == []
    figures._ask("some.png", "other numbers", "alt", lambda path: None)
    assert figures.stale(tmp_path) == ["some.png"]


def test_changed_numbers_make_the_check_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (folder / "page.md.jinja").write_text("{{ results('small').ours.coverage }}", encoding="utf-8")
    monkeypatch.setattr(pages, "DOCS", folder)
    monkeypatch.setattr(pages, "ROOT", folder)
    monkeypatch.setattr(pages, "templates", lambda: [folder / "page.md.jinja"])
    monkeypatch.setattr(pages, "render", lambda path, figures, render=pages.render: render(path, figures, folder))
    assert pages.main([]) == 0
    assert pages.main(["--check"]) == 0
    kept = folder / "small.json"
    kept.write_text(
        kept.read_text().replace('"mean": 0.8', '"mean": 0.7').replace("[0.7, 0.8, 0.9]", "[0.6, 0.7, 0.8]")
    )
    assert pages.main(["--check"]) == 1
    assert "out of date: page.md" in capsys.readouterr().err


def test_what_is_kept_has_the_folders_of_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"command": f"dapl sweep {pages.ROOT}/configs/cub20.yaml --out /tmp/x", "config": "/tmp/y/cub20.yaml"}
    (tmp_path / "sweep.json").write_text(json.dumps({**written, "sweeps": {}, "rows": []}))
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(pages, "read", lambda name: data.read(name, tmp_path / "results"))
    assert pages.main(["keep", "ablations", str(tmp_path / "sweep.json")]) == 0
    kept = json.loads((tmp_path / "results" / "ablations.json").read_text())
    assert kept["command"] == "dapl sweep configs/cub20.yaml --out runs/ablations"
    assert kept["config"] == "cub20.yaml"
    (tmp_path / "other.json").write_text("{}")
    assert pages.main(["keep", "other", str(tmp_path / "other.json")]) == 2
