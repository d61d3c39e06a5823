"""Does the foreground loss do what it is for? Toy birds whose background betrays the class, with it and without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dapl.batches.run_data import RunData
from dapl.batches.sources import grid_masks, in_order
from dapl.common.progress import Reporter
from dapl.config import Config, load_config
from dapl.metrics.functional import background_bias
from dapl.processes.launch import make_processes
from dapl.runs.loading import load_run
from dapl.training.trainer import train


def config_of(weight: float, cache: Path) -> Config:
    rates = dict.fromkeys(("addon", "attention", "prototypes"), 0.01)
    warm_up = {"stage": "warm_up", "epochs": 45, "batch_size": 16, "decay": "cosine", "learning_rates": rates}
    fields = {
        "data": {"name": "toybirds", "classes": 4, "images_per_class": 12, "image_size": 96, "background_cue": 1.0},
        "data.test_images_per_class": 8,
        "model": {"backbone": {"name": "tf_efficientnet_lite0", "weights": "package"}, "heads": 4, "head_dim": 8},
        "loss": {"foreground": {"weight": weight, "over": "class"}},
        "schedule": [warm_up, *({"stage": stage} for stage in ("project", "last_layer", "prune", "last_layer"))],
        "cache": {"folder": str(cache)},
        "runtime": {"accelerator": "cpu", "workers": 0},
    }
    return load_config(None, fields)


@torch.no_grad()
def measured(folder: Path) -> tuple[float, float]:
    """Mean raw-map B over the test images and the kept prototypes of their class, and accuracy."""
    loaded = load_run(folder)
    run_data = RunData(loaded.config, make_processes(loaded.config), Reporter(quiet=True))
    source = run_data.images("test")
    biases, right = [], []
    for batch in source.batches(in_order(len(source), 16)):
        assert batch.images is not None
        assert batch.masks is not None
        output, named = loaded.model(batch.images), loaded.model.prototypes_of(batch.labels)[0]
        maps = loaded.model.maps(output.embedding, named)
        masks = grid_masks(batch.masks, maps.shape[-2:])
        biases.append(background_bias(maps, masks, loaded.model.prototypes.kept[named]))
        right.append(output.logits.argmax(1) == batch.labels)
    return torch.cat(biases).nanmean().item(), torch.cat(right).float().mean().item()


@pytest.mark.slow
def test_the_foreground_loss_lowers_the_background_bias_by_a_third(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = {}
        for weight in (0.0, 10.0):
            run = train(config_of(weight, tmp_path / "cache"), tmp_path / f"weight {weight}", quiet=True)
            results[weight] = measured(run.folder)
    finally:
        torch.set_num_threads(threads)
    print({weight: f"bias {bias:.3f}, accuracy {accuracy:.1%}" for weight, (bias, accuracy) in results.items()})
    (without, before), (with_loss, after) = results[0.0], results[10.0]
    assert with_loss <= without * 2 / 3
    assert min(before, after) >= 0.75, "a model that knows nothing of birds can have any bias"
