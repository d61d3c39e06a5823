"""Makes the image of docs/what-the-numbers-mean.md, and its numbers: regions of trivial maps and of models on one bird.

    python docs/numbers_image.py RUN [RUN …] [--class NAME] [--image N]

RUNs are finished runs on CUB, named as they are to be shown. The photographs of CUB are not ours to show: what is drawn
is the shape of the bird, from its segmentation, with the discs of its parts. The numbers of the image go to
docs/results/one-image.json; the image carries the digest of that file.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from render_results import DOCS, FOLDER, stamp
from results_data import read
from torch import Tensor

from dapl.batches.run_data import RunData
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.data.sample import class_index
from dapl.evaluation.chance import trivial_batches
from dapl.evaluation.ground_truth import GroundTruth, SplitGroundTruth
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.trivial import TRIVIAL
from dapl.experiments.comparison_figures import new_figure, save_figure
from dapl.metrics import functional as F
from dapl.metrics.functional.regions import model_regions
from dapl.processes.launch import make_processes
from dapl.runs.loading import load_run
from dapl.runs.provenance import provenance

SHOWN = ("random discs in the image", "random discs in the mask", "smooth noise in the mask")
NAME = "one-image"
FILE = DOCS / "images" / "what-the-numbers-mean.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--class", dest="label", default="0")
    parser.add_argument("--image", type=int, default=0)
    arguments = parser.parse_args()
    config = load_run(arguments.runs[0]).config
    run_data, protocol = RunData(config, make_processes(config), Reporter(quiet=True)), EvaluationProtocol()
    test = run_data.dataset("test")
    label = class_index(list(test.classes), arguments.label)
    index = [place for place, one in enumerate(test.labels) if one == label][arguments.image]
    truth = SplitGroundTruth(run_data, "test", protocol)
    batch = next(trivial_batches(truth, torch.tensor([index]), prototypes=10))
    size = config.data.image_size
    regions = {
        one.name: F.activation_regions(one.maps(batch), None, protocol.percentile)[0]
        for one in TRIVIAL
        if one.name in SHOWN
    }
    image = run_data.images("test")[index, 0][0]
    for run in arguments.runs:
        regions[run.name.rpartition("-seed")[0] or run.name] = regions_of(run, image, label, size, protocol)
    rows = {name: numbers_of(found, batch.truth, protocol) for name, found in regions.items()}
    words = ["python", "docs/numbers_image.py", *(f"runs/{run.name}" for run in arguments.runs)]
    words += ["--class", str(test.classes[label]), "--image", str(arguments.image)]
    facts: dict[str, Any] = {**provenance(()), "command": shlex.join(words)}
    facts |= {"image": test.names[index], "class": str(test.classes[label])}
    write_json(FOLDER / f"{NAME}.json", {**facts, "protocol": protocol.to_json(), "rows": rows})
    draw(regions, rows, batch.truth)
    print(json.dumps(rows, indent=1))


@torch.inference_mode()
def regions_of(run: Path, image: Tensor, label: int, size: int, protocol: EvaluationProtocol) -> Tensor:
    """bool M×S×S: the regions of the prototypes of the class."""
    model = load_run(run).model
    named, kept = model.prototypes_of(torch.tensor([label]))
    embedding = model(image.unsqueeze(0)).embedding
    return model_regions(model, model.maps(embedding, named[0][kept[0]]), size, protocol.percentile)[0]


def numbers_of(regions: Tensor, truth: GroundTruth, protocol: EvaluationProtocol) -> dict[str, float]:
    """The numbers of one image: regions bool M×S×S."""
    assert truth.parts is not None
    assert truth.visible is not None
    assert truth.masks is not None
    parts, visible = truth.parts[0], truth.visible[0]
    assigned = F.assign(F.overlap(regions, parts), protocol.tau, visible)
    background = F.region_background_share(regions, truth.masks[0].bool())
    return {
        "coverage": F.coverage(assigned, visible).item(),
        "diversity": F.diversity(regions, assigned, visible).item(),
        "region_background_share": background.nanmean().item(),
    }


def draw(regions: dict[str, Tensor], rows: dict[str, dict[str, float]], truth: GroundTruth) -> None:
    columns = 3
    figure = new_figure(9.6, 3.55 * -(-len(regions) // columns))
    figure.get_layout_engine().set(h_pad=0.12)  # type: ignore[union-attr]
    panels = figure.subplots(-(-len(regions) // columns), columns, squeeze=False).flatten()
    for axes, (name, found) in zip(panels, regions.items(), strict=False):
        _panel(axes, found, truth)
        numbers = rows[name]
        axes.set_title(name, fontsize=11, fontweight="bold", loc="left")
        text = f"Coverage {numbers['coverage']:.2f}   Diversity {numbers['diversity']:.2f}"
        axes.set_xlabel(
            f"{text}\non background {100 * numbers['region_background_share']:.0f} %", fontsize=9, loc="left"
        )
    for axes in panels[len(regions) :]:
        axes.set_visible(False)
    save_figure(figure, FILE, dpi=88)
    stamp(FILE, read(NAME).digest)


def _panel(axes: Axes, regions: Tensor, truth: GroundTruth) -> None:
    assert truth.parts is not None
    assert truth.masks is not None
    bird = truth.masks[0].bool().numpy()
    axes.imshow(np.where(bird[..., None], 205, 250).astype(np.uint8).repeat(3, axis=2), interpolation="nearest")
    for part in truth.parts[0]:
        if part.any():
            axes.contour(part.float().numpy(), levels=[0.5], colors=["#ffffff"], linewidths=1.0)
    wheel = matplotlib.colormaps["tab10"]
    for number, region in enumerate(regions):
        if region.any():
            colour = wheel(number % 10)
            layer = np.zeros((*region.shape, 4))
            layer[region.numpy()] = to_rgba(colour, 0.28)
            axes.imshow(layer, interpolation="nearest")
            axes.contour(np.pad(region.float().numpy(), 1)[1:-1, 1:-1], levels=[0.5], colors=[colour], linewidths=1.4)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#cccccc")


if __name__ == "__main__":
    main()
