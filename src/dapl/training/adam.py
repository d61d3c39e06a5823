"""Adam without the compiler of torch, which its own loads for decorators that only matter where something is compiled.

To load it takes as long as torch itself: on a small run longer than the training.
"""

from __future__ import annotations

import inspect

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`, step by step the same numbers.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = Adam([weight], lr=0.5)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> round(weight.item(), 4)
    0.5
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
