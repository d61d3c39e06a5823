"""Explanations as relevance of pixels, of every registered system."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dapl.common.errors import DaplError
from dapl.evaluation.interventions.subjects import OwnEvidence, attribution_of
from dapl.metrics.functional.regions import model_regions
from dapl.models.build import SYSTEMS
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import load_run

CLASSES = torch.tensor([0, 2])
PROTOTYPED = sorted(set(SYSTEMS) - {"blackbox"})


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model_of(trained: Callable[[str], Path]) -> Callable[[str], PrototypeModel]:
    return lambda system: load_run(trained(system)).model


@pytest.mark.parametrize("system", PROTOTYPED)
def test_own_evidence_is_what_each_prototype_adds_laid_on_its_region(system, model_of, images):
    model = model_of(system)
    found = OwnEvidence(model)(images, CLASSES)
    with torch.no_grad():
        output = model(images)
        maps = model.maps(output.embedding)
    weights = model.class_weights()
    for image, label in enumerate(CLASSES.tolist()):
        expected = torch.zeros(64, 64)
        for prototype in range(len(model.prototypes)):
            if not model.prototypes.membership[prototype, label] or not model.prototypes.kept[prototype]:
                continue
            region = model_regions(model, maps[image : image + 1, prototype : prototype + 1], 64)[0, 0]
            if region.any():
                adds = weights[prototype, label] * output.scores[image, prototype]
                expected += adds * region / region.sum()
        # float32 sums of a few numbers in another order
        assert torch.allclose(found[image], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("system", PROTOTYPED)
def test_the_relevance_of_whole_maps_sums_to_what_the_class_gets_from_its_prototypes(system, model_of, images):
    model = model_of(system)
    found = OwnEvidence(model, "map")(images, CLASSES).sum((1, 2))
    with torch.no_grad():
        scores = model(images).scores
    own = model.class_weights() * model.prototypes.membership
    expected = (scores @ own)[torch.arange(2), CLASSES]
    assert torch.allclose(found, expected, rtol=1e-4)  # float32, 4,096 pixels


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_gradients_explain_every_system(system, model_of, images):
    pytest.importorskip("captum")
    model = model_of(system)
    for name in ("gradcam", "integrated_gradients"):
        if name == "gradcam" and model.extractor is not model.backbone:
            with pytest.raises(DaplError, match="no single map of features"):
                attribution_of(name, model)
            continue
        found = attribution_of(name, model)(images, CLASSES)
        assert found.shape == (2, 64, 64)
        assert found.isfinite().all()
        assert not found.requires_grad


def test_grad_cam_is_its_equation(model_of, images):
    """ReLU of the sum over channels of the activation times the mean of its gradient, then bilinear on the pixels."""
    pytest.importorskip("captum")
    model = model_of("blackbox")
    found = attribution_of("gradcam", model)(images, CLASSES)
    features = model.backbone(images).detach().requires_grad_()
    logits = model.from_features(features).logits
    (gradient,) = torch.autograd.grad(logits[torch.arange(2), CLASSES].sum(), features)
    maps = (features * gradient.mean((2, 3), keepdim=True)).sum(1, keepdim=True).relu()
    expected = torch.nn.functional.interpolate(maps, (64, 64), mode="bilinear", align_corners=False)[:, 0]
    assert torch.allclose(found, expected.detach(), atol=1e-6)


def test_integrated_gradients_sum_to_the_logit_above_the_grey_image(model_of, images):
    """Completeness, their axiom; 32 steps of a rectangle rule on a network with kinks are right to a few percent."""
    pytest.importorskip("captum")
    from dapl.data.transforms import FILL

    model = model_of("blackbox")
    found = attribution_of("integrated_gradients", model)(images, CLASSES).sum((1, 2))
    grey = torch.tensor(FILL, dtype=torch.float32).view(1, 3, 1, 1).expand(2, -1, 64, 64) / 255
    with torch.no_grad():
        gained = (model(images).logits - model(grey).logits)[torch.arange(2), CLASSES]
    assert torch.allclose(found, gained, rtol=0.1, atol=0.02)


def test_the_black_box_has_no_explanation_of_its_own(model_of):
    with pytest.raises(DaplError, match="BlackBox has no prototypes"):
        attribution_of("own", model_of("blackbox"))


def test_an_unknown_attribution_is_refused(model_of):
    with pytest.raises(DaplError, match="'rise' is not known; give one of own, own_map, gradcam"):
        attribution_of("rise", model_of("blackbox"))


def test_without_captum_it_says_what_to_install(model_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(DaplError, match=r"need Captum .*; pip install 'dapl\[attribution\]'"):
        attribution_of("gradcam", model_of("blackbox"))
