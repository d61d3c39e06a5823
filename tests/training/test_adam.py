"""Our Adam is torch's."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from dapl.training.adam import Adam


def _trained(kind: type[torch.optim.Adam], halfway: bool) -> tuple[dict, dict]:
    """Weights and state after six steps; ``halfway`` the optimizer is made anew from its state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.03, "base": 0.03, "weight_decay": 0.01},
        {"params": list(model[2].parameters()), "lr": 0.01, "base": 0.01},
    ]
    optimizer = kind(groups)
    for step in range(6):
        if halfway and step == 3:
            state = optimizer.state_dict()
            optimizer = kind(groups)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 5)).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * 0.9**step
        optimizer.step()
        assert torch.is_grad_enabled()
    return model.state_dict(), optimizer.state_dict()


def test_the_same_bits_as_the_optimizer_of_torch() -> None:
    expected = _trained(torch.optim.Adam, halfway=False)
    for halfway in (False, True):
        found = _trained(Adam, halfway)
        assert_close(found, expected, rtol=0, atol=0)
