"""A model as a plain function of pixels, without what only training needs: what the ONNX file computes."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from dapl.models.contract import PrototypeModel


class InferenceGraph(nn.Module):
    """images float B×3×S×S in [0, 1] → logits B×C, scores B×P, activation maps B×P×H×W.

    A system without prototypes has no maps; its scores are whatever its classifier reads.

    Distances are taken in double precision: ‖z‖² − 2z·p + ‖p‖² of floats is off by about 1e-6, and the log similarity
    turns 1e-6 near a distance of 0 into 1e-2. One matrix product in double precision costs less than all differences
    z − p would, and a score is the maximum of its map by construction.
    """

    def __init__(self, model: PrototypeModel) -> None:
        """The model itself is left as it is."""
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        self.compared = _with_double_prototypes(self.model)

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("logits", "scores", "maps")[: 3 if len(self.model.prototypes) else 2]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.model.backbone(images)
        if len(self.model.prototypes) == 0:
            output = self.model.from_features(features)
            return output.logits, output.scores
        maps = self.compared.maps(self.model.embed(features)).float()
        scores = maps.flatten(2).amax(2)
        return self.model.classify(scores), scores, maps


def _with_double_prototypes(model: PrototypeModel) -> PrototypeModel:
    """The same modules but for the prototypes, which are a copy in double precision."""
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    twin.prototypes = copy.deepcopy(model.prototypes).double()
    return twin
