"""The paper's two settings, of birds and of faces, do one step, one projection and one evaluation on a CPU."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dapl.batches.sources import Batch
from dapl.common.seeds import generator
from dapl.config import JointStage, load_config
from dapl.models.build import build_model
from dapl.processes.interface import SingleProcess
from dapl.training.projection import project
from dapl.training.stages import FitEpoch, Objective, make_optimizer

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = 4


class Images:
    """Noise of the right size: costs what real images cost."""

    def __init__(self, size: int, classes: int) -> None:
        self.images = torch.randint(0, 256, (IMAGES, 3, size, size), dtype=torch.uint8, generator=generator("images"))
        self.masks = (torch.rand(IMAGES, size, size, generator=generator("masks")) > 0.3).to(torch.uint8)
        self.labels = torch.arange(IMAGES) * (classes // IMAGES)

    def __len__(self) -> int:
        return IMAGES

    def batches(self, order, seed: int = 0) -> Iterator[Batch]:
        for rows in order:
            yield Batch(rows, self.labels[rows], images=self.images[rows], masks=self.masks[rows])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cub200", 200), ("faceforensics", 5)])
def test_one_step_one_projection_one_evaluation(name: str, classes: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(CONFIGS / f"{name}-densenet161.yaml", {"model.backbone.weights": "random"})
    model = build_model(config.model, classes)
    assert model.prototypes.vectors.shape == (10 * classes, 16)
    processes, source = SingleProcess(), Images(config.data.image_size, classes)
    stage = next(stage for stage in config.schedule if isinstance(stage, JointStage))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    objective = Objective(model, config.loss)
    wrapped, optimizer = processes.setup(objective, make_optimizer(model, stage))
    epoch = FitEpoch(processes, wrapped, objective.draw_negatives, optimizer, stage, source, (0, 0), 0)
    [(_, terms)] = list(epoch.steps())
    assert {"cross_entropy", "cluster", "separation", "contrast", "foreground"} <= set(terms)
    moved = {name.split(".")[0] for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"backbone", "addon", "attention", "prototypes"}

    found = project(model, source.batches([torch.arange(IMAGES)]), 0.5, processes)
    owned = found.image >= 0
    assert owned.sum() == IMAGES * 10
    with torch.no_grad():
        output = model.eval()(source.images)
    assert output.logits.shape == (IMAGES, classes)
    # A projected prototype is a patch of its image: nothing in that image is nearer.
    distances = output.distances[found.image[owned], owned.nonzero().flatten()]
    assert distances.max() < 1e-5
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    with capsys.disabled():
        print(f"\npeak memory of the paper's setting on {name}, {IMAGES} images per step: {peak:.1f} GB")
