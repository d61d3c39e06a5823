r"""Writes the table of docs/interventions.md from the files in docs/interventions, which come from runs like these:

dapl compare configs/toybirds/dapl.yaml configs/toybirds/protopnet.yaml configs/toybirds/blackbox.yaml
dapl interventions runs/compare/runs/dapl-seed0 --attribution own,gradcam --images 24
dapl interventions runs/compare/runs/protopnet-seed0 --attribution own,gradcam --images 24
dapl interventions runs/compare/runs/blackbox-seed0 --attribution gradcam,integrated_gradients --images 24
dapl train configs/toybirds/parts.yaml --out runs/parts --data.classes 5 --data.images_per_class 12 \
    --data.test_images_per_class 8 --data.image_size 128 --model.crop_size 64
dapl interventions runs/parts --attribution own,own_map --images 24

python docs/render_interventions.py                    # write the table and the drawing of the page anew
python docs/render_interventions.py RUN …              # keep RUN/interventions.json first
python docs/render_interventions.py --check            # exit code 1 if the page is out of date
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dapl.common.tables import Column, markdown

DOCS = Path(__file__).resolve().parent
KEPT, PAGE, DRAWING = DOCS / "interventions", DOCS / "interventions.md", DOCS / "images" / "interventions.jpg"
START, END = (f"<!-- made by docs/render_interventions.py: {end} -->" for end in ("start", "end"))
SUMMARIES = {"completeness": "Com", "correctness": "Cor = SD", "contrastivity": "Con = TS"}
CHECKS = {"csdc": "CSDC", "preservation": "PC", "deletion": "DC", "distractibility": "D"}
OF_MODEL = {"accuracy": "accuracy", "background_independence": "BI", "scene_independence": "same label elsewhere"}
COUNTED = {"csdc": "images that count for CSDC", "target_sensitivity": "for TS"}


def rendered() -> str:
    """What stands between the marks of the page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))]
    names = {"system": "system", "explanation": "explanation"} | SUMMARIES | CHECKS
    columns = [Column(name, heading) for name, heading in names.items()]
    table = markdown([row for one in found for row in _rows(one)], columns)
    models = [Column("system"), *(Column(name, heading) for name, heading in (OF_MODEL | COUNTED).items())]
    of_models = markdown([_model_row(one) for one in found], models)
    facts = found[0]["protocol"]
    below = f"{facts['images']} test images each; in brackets 95 % intervals over the images."
    return f"{START}\n\n{table}\n{of_models}\n{below}\n\n{END}"


def _rows(found: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, numbers in found["explanations"].items():
        cells = {score: _interval(numbers[score]) for score in SUMMARIES}
        cells |= {score: _value(numbers[score]) for score in CHECKS}
        yield {"system": found["protocol"]["system"], "explanation": name} | cells


def _model_row(found: dict[str, Any]) -> dict[str, str]:
    counts = {name: str(found["counts"][name]) for name in COUNTED}
    return (
        {"system": found["protocol"]["system"]} | {name: _interval(found["model"][name]) for name in OF_MODEL} | counts
    )


def _value(number: dict[str, float | None]) -> str:
    return "–" if number["value"] is None else f"{number['value']:.2f}"


def _interval(number: dict[str, float | None]) -> str:
    if number["value"] is None or number["low"] is None:
        return _value(number)
    return f"{number['value']:.2f} [{number['low']:.2f}, {number['high']:.2f}]"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + rendered() + after


def draw(path: Path = DRAWING) -> None:
    """Two birds, each as it is and with one thing changed."""
    import numpy as np
    from PIL import Image

    from dapl.data.toybirds import PARTS, THINGS, ToyBirds

    birds, rows = ToyBirds(classes=10, images_per_class=6, split="test"), []
    for index, lender in ((0, 4), (33, 2)):
        changes = [{}, *({"without": [part]} for part in ("beak", "wing", "crown", "breast"))]
        changes += [{"without": THINGS}, {"exchanged": {"wing": lender, "beak": lender}}, {"background": 1}]
        samples = [birds.draw(index, **change) for change in (*changes, {"without": PARTS})]
        rows.append(np.concatenate([sample.image.permute(1, 2, 0).numpy() for sample in samples], axis=1))
    sheet = Image.fromarray(np.concatenate(rows))
    sheet.resize((sheet.width * 2 // 3, sheet.height * 2 // 3), Image.Resampling.LANCZOS).save(path, quality=85)


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    for run in map(Path, arguments):
        system = json.loads((run / "interventions.json").read_text(encoding="utf-8"))["protocol"]["system"]
        KEPT.mkdir(exist_ok=True)
        shutil.copyfile(run / "interventions.json", KEPT / f"{system}.json")
    PAGE.write_text(page(), encoding="utf-8")
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
