"""The black box on the same backbone: what a classifier that owes no reasons reaches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dapl.models.backbone import Backbone
from dapl.models.contract import Embedding, Output, PrototypeModel
from dapl.models.prototypes import Prototypes


class BlackBox(PrototypeModel):
    """Global average pooling and a linear layer. It has no prototypes; its scores are the pooled channels and a 1.

    The constant carries the bias, so that logit_c = Σ_j scores_j · class_weights[j, c] here too.

    >>> import torch
    >>> from dapl.models import BlackBox, create_backbone
    >>> model = BlackBox(create_backbone("test_efficientnet", weights="random"), classes=3)
    >>> len(model.prototypes), model(torch.rand(5, 3, 64, 64)).logits.shape
    (0, torch.Size([5, 3]))
    """

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.prototypes = Prototypes(torch.zeros(0, classes, dtype=torch.bool), groups=1, width=backbone.channels)
        self.classifier = nn.Linear(backbone.channels + 1, classes, bias=False)
        with torch.no_grad():
            self.classifier.weight[:, -1] = 0

    @property
    def score_count(self) -> int:
        return self.classifier.in_features

    def embed(self, features: Tensor) -> Embedding:
        return Embedding(features.unsqueeze(1))

    def from_features(self, features: Tensor) -> Output:
        pooled = features.float().mean((2, 3))
        scores = torch.cat([pooled, torch.ones_like(pooled[:, :1])], dim=1)
        nothing = scores[:, :0]
        return Output(self.classify(scores), scores, nothing, nothing.long(), self.embed(features))

    def classify(self, scores: Tensor) -> Tensor:
        return self.classifier(scores)

    def class_weights(self) -> Tensor:
        return self.classifier.weight.T

    def components(self) -> dict[str, nn.Module]:
        return {"backbone": self.backbone, "classifier": self.classifier}
