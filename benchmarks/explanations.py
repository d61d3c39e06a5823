"""What an explanation costs beside the bare model pass over the same image.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.explanations       # CUB-20; toy birds without DAPL_CUB

Both start from the pixels of one image. The model has fresh heads, and its prototypes come from the first training
images: what an explanation costs does not depend on what was learned. The training patches of prototypes are the same
for every image, and a classifier keeps them once they were drawn: the page is measured with them at hand, as from the
second image of a class on, and with all of them drawn anew. Pass and page have one thread each; with more of them the
pass is faster and what comes after it is not, which the last lines show.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.timing import Ratio, ratio, show, threads
from dapl.config import Config, CubData, ToyBirdsData, parse_config
from dapl.data.build import build_splits
from dapl.data.sample import Splits
from dapl.data.transforms import fit
from dapl.explain.classifier import Classifier
from dapl.explain.evidence import explain
from dapl.explain.parts import ModelRecords
from dapl.explain.patches import RunPatches
from dapl.models.build import build_model
from dapl.runs.checkpoint import fresh_records

LIMIT, TURNS = 1.5, 41


def ratios() -> Iterator[Ratio]:
    config = Config(data=CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData())
    splits = build_splits(config.data)
    classes = list(splits.test.classes)
    ours = parse_config({"model": {"system": "parts", "backbone": {"stages": [-2, "head"]}}}).model
    backbone = config.model.backbone.model_copy(update={"name": "densenet161", "weights": "random"})
    paper = config.model_copy(update={"model": config.model.model_copy(update={"backbone": backbone})})
    with threads(1):
        yield from _ratios(config, splits, classes, "")
        yield from _ratios(config.model_copy(update={"model": ours}), splits, classes, ", parts")
        many = [f"class {number}" for number in range(200)]
        yield from _ratios(paper, splits, many, ", DenseNet-161 and 200 classes")
    if (all_of_them := torch.get_num_threads()) > 1:
        yield from _ratios(config, splits, classes, f", {all_of_them} threads")


def _ratios(config: Config, splits: Splits, classes: list[str], which: str) -> Iterator[Ratio]:
    size, train = config.data.image_size, splits.train
    model = build_model(config.model, len(classes)).eval().requires_grad_(False)
    box = [size // 4, size // 4, size // 2, size // 2]
    records = [
        replace(record, image=train.names[record.index % len(train)], location=[2, 2], box=box)
        for record in fresh_records(model, classes)
    ]
    known = ModelRecords(classes, records)
    classifier = Classifier(model, known, size, config.data.fit, patches=RunPatches(config))
    image = fit(splits.test[0], size, config.data.fit).image.as_subclass(Tensor)

    @torch.no_grad()
    def bare() -> None:
        model(image.unsqueeze(0))

    beside = f"bare model pass{which}"
    what = f"contributions, maps, regions and attention of 2 × 10 prototypes on one {config.data.name} image"
    yield ratio(what, beside, f"limit {LIMIT:g}", lambda: explain(model, image, known), bare, TURNS)
    with TemporaryDirectory() as folder:
        numbers = count()

        def page() -> None:
            # Each has a file of its own, as the pages of many images have: to replace one that was just written waits
            # until its content is on its way to the disk.
            classifier.explain(image).save(Path(folder) / f"{next(numbers)}.html")

        what = "the same with parts and training patches, written as a page"
        yield ratio(what, beside, f"limit {LIMIT:g}", page, bare, TURNS)

        def first_page() -> None:
            classifier.patches.shown.clear()
            page()

        yield ratio(f"{what}, all its training patches drawn anew", beside, "", first_page, bare, TURNS)


if __name__ == "__main__":
    sys.exit(any(found.goal and found.value > LIMIT for found in show(ratios())))
