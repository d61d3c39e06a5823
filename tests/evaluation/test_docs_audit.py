"""What docs/audit.md shows runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def write_protopnet(path: Path) -> None:
    """A state dict of an original ProtoPNet: 3 classes × 2 prototypes of width 8 on a ResNet-18, random weights."""
    import torchvision

    network = torchvision.models.resnet18(weights=None).state_dict()
    state = {f"features.{name}": tensor for name, tensor in network.items() if not name.startswith("fc.")}
    state |= {"prototype_vectors": torch.rand(6, 8, 1, 1), "ones": torch.ones(6, 8, 1, 1)}
    state |= {"add_on_layers.0.weight": torch.randn(8, 512, 1, 1), "add_on_layers.0.bias": torch.zeros(8)}
    state |= {"add_on_layers.2.weight": torch.randn(8, 8, 1, 1), "add_on_layers.2.bias": torch.zeros(8)}
    state["last_layer.weight"] = 1.5 * torch.eye(3).repeat_interleave(2, dim=1) - 0.5
    torch.save(state, path)


def test_the_code_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_protopnet(tmp_path / "ppnet.pth")
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.failed == 0, "".join(report)
