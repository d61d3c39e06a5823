"""What is blurred out, where heads see crops: the pixels of the crop, and no others."""

import torch

from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.views import ModelView
from dapl.models import Parts, create_backbone
from dapl.models.contract import square_pixels


@torch.no_grad()
def test_the_evidence_of_a_crop_is_its_square() -> None:
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False)
    model, size = Parts(backbone, classes=2, heads=3, head_dim=4, crop_size=32).eval(), 64
    squares = torch.tensor([[[0.5, 0.5, 0.25], [0.2, 0.3, 0.3], [0.7, 0.6, 0.5]]])
    view = object.__new__(ModelView)
    view.model, view.size, view.protocol, view.named = model, size, EvaluationProtocol(), torch.tensor([[5, 3, 4]])
    seen, where = torch.rand(1, 3, backbone.stage_channels[-1]), torch.rand(1, 3, 4, 4)
    view.output = model.from_features((seen, where, squares))  # type: ignore[misc]
    for number, head in enumerate((2, 0, 1)):  # prototype j is of head j mod 3
        left, top, right, bottom = square_pixels(squares[0, head], size).tolist()
        expected = torch.zeros(size, size, dtype=torch.bool)
        for y in range(top, bottom):
            for x in range(left, right):
                expected[y, x] = True
        assert torch.equal(view._evidence[0, number], expected)
