"""Cosine similarity through everything: training, projection, merging, metrics, explanation and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import dapl
from dapl.config import load_config
from dapl.export.export import images_of_test
from dapl.export.onnx_file import write_onnx
from dapl.runs.loading import load_run
from dapl.training.trainer import train

WARM_UP, PROJECT = {"stage": "warm_up", "epochs": 2, "batch_size": 8}, {"stage": "project"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "dapl": {
        "model.backbone.name": "test_mambaout",
        "model.heads": 3,
        "model.head_dim": 4,
        "loss.foreground.weight": 1.0,
        "schedule": [WARM_UP, PROJECT, {"stage": "last_layer", "epochs": 2}],
    },
    "protopshare": {
        "model.prototypes_per_class": 3,
        "model.width": 8,
        "schedule": [WARM_UP, PROJECT, {"stage": "merge", "steps": 1, "share": 0.4, "epochs": 1}],
    },
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_with_cosine_similarity(system: str, tiny_fields: dict[str, Any], tmp_path: Path) -> None:
    fields = {
        **tiny_fields,
        "model.system": system,
        "model.similarity": "cosine",
        "model.scale": 5.0,
        "cache.folder": str(tmp_path / "cache"),
        **SYSTEMS[system],
    }
    run = train(load_config(None, fields), tmp_path / "run", quiet=True)
    loaded = load_run(run)
    model: Any = loaded.model
    assert not torch.equal(model.prototypes.scale, torch.tensor(5.0))  # it has learned
    images = images_of_test(loaded.config)
    with torch.no_grad():
        output = model(images)
        # A prototype that is a patch of a training image has length 1, and no image can be nearer than it is itself.
        projected = [record.index for record in loaded.records if record.kept and record.image is not None]
        assert projected
        assert_close(model.prototypes.vectors[projected].norm(dim=1), torch.ones(len(projected)))
        assert output.scores.abs().max() <= model.prototypes.scale * (1 + 1e-5)
        assert model.activation_maps(images).min() >= 0
    result = dapl.evaluate(run, metrics="accuracy,coverage,background_bias", quiet=True)
    assert 0 <= result["background_bias"] <= 1  # the maps are not negative, so that a share can be taken of them
    found = dapl.load(run.folder).explain(images[0].permute(1, 2, 0).numpy())
    for evidence in found.classes:
        assert evidence.total == pytest.approx(float(output.logits[0, evidence.index]), abs=1e-4)
    if system == "dapl":  # writing takes longer than all the rest
        # Raises where ONNX Runtime says anything else than PyTorch, of logits, scores or maps, also of negative scores.
        assert max(write_onnx(tmp_path / "model.onnx", model, images, {}).values()) < 1e-4
