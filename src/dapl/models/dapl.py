"""DAPL: each attention head meets its own prototypes and no others, one for each class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.models.backbone import Backbone
from dapl.models.contract import Embedding, PrototypeModel
from dapl.models.protopnet import Init, regular_addon
from dapl.models.prototypes import Similarity, make_prototypes, one_class_each


class HeadAttention(nn.Module):
    """Equation 1: A = softmax(QKᵀ/√D1)V for each of N heads, with no output projection after it.

    Shapes: features B×D×H×W → B×N×D1×H×W with D = N·D1.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        width = heads * head_dim
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        height, width = features.shape[-2:]
        tokens = features.flatten(2).transpose(1, 2)  # B×HW×D
        query, key, value = (self._split(layer(tokens)) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value)  # scales by 1/√D1
        return attended.transpose(2, 3).unflatten(3, (height, width))

    def weights(self, features: Tensor) -> Tensor:
        """The attention itself, B×N×HW×HW: row l says from where location l took its values."""
        tokens = features.flatten(2).transpose(1, 2)
        query, key = self._split(self.query(tokens)), self._split(self.key(tokens))
        return (query @ key.transpose(2, 3) / self.head_dim**0.5).softmax(-1)

    def _split(self, tokens: Tensor) -> Tensor:
        """B×HW×D → B×N×HW×D1."""
        return tokens.unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)


class ClassWeights(nn.Module):
    """Equation 4: logit_c = Σ_h w[c,h]·s[c,h]; w starts at 1."""

    def __init__(self, classes: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(classes, heads))

    def forward(self, scores: Tensor) -> Tensor:
        """B×C×N → B×C."""
        return (scores * self.weight).sum(2)


class Dapl(PrototypeModel):
    """Add-on, multi-head attention without mixing of heads, one-to-one mapping, log or cosine similarity, class-wise
    weights.

    >>> import torch
    >>> from dapl.models import Dapl, create_backbone
    >>> model = Dapl(create_backbone("test_efficientnet", weights="random"), classes=3, heads=2, head_dim=4)
    >>> output = model(torch.rand(5, 3, 64, 64))
    >>> output.logits.shape, output.scores.shape
    (torch.Size([5, 3]), torch.Size([5, 6]))
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        heads: int,
        head_dim: int,
        epsilon: float = 1e-4,
        addon_init: Init = "fan_out",
        similarity: Similarity = "log",
        scale: float = 3.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.backbone = backbone
        self.addon = regular_addon(backbone.channels, heads * head_dim, addon_init)
        self.attention = HeadAttention(heads, head_dim)
        self.prototypes = make_prototypes(similarity, one_class_each(classes, heads), heads, head_dim, epsilon, scale)
        self.classifier = ClassWeights(classes, heads)

    def embed(self, features: Tensor) -> Embedding:
        tokens = self.addon(features)
        return Embedding(self.prototypes.comparable(self.attention(tokens)), tokens=tokens)

    def classify(self, scores: Tensor) -> Tensor:
        return self.classifier((scores * self.prototypes.kept).unflatten(1, (-1, self.heads)))

    def class_weights(self) -> Tensor:
        return self.weights_of_classes(torch.arange(self.classes, device=self.prototypes.kept.device))

    def weights_of_classes(self, classes: Tensor) -> Tensor:
        weights = (self.classifier.weight.flatten() * self.prototypes.kept).unsqueeze(1)
        return weights * self.prototypes.of_images(classes).T

    def attention_weights(self, features: Tensor) -> Tensor:
        """B×N×HW×HW: where the value at each location came from, which the activation map alone does not say."""
        return self.attention.weights(self.addon(features))

    def field_share(self, image_size: int) -> float:
        return 1.0  # attention takes the value at each location from all of them

    def evidence_maps(self, embedding: Embedding, prototypes: Tensor, locations: Tensor) -> Tensor:
        tokens = embedding.tokens
        assert tokens is not None
        images = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        attention = self.attention.weights(tokens)[images, self.prototypes.group_of[prototypes], locations]
        return attention.unflatten(2, tokens.shape[-2:])
