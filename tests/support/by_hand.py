"""The algorithms once more, from the papers, in plain torch and numpy: what the package is compared with.

Nothing here knows the package. A model is its network; its tensors are taken apart into parameters and float buffers
(numpy, float64) and integer buffers.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from federations import SIZES, blobs
from torch.nn import functional as F

LR, B = 0.1, 5


@dataclass
class World:
    """Three clients of unequal sizes and the server's set; batches in order, without shuffling."""

    dtype: torch.dtype
    parts: list[np.ndarray] = field(default_factory=lambda: np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))
    held_out: list[np.ndarray] = field(default_factory=list)
    epochs: int = 2
    momentum: float = 0.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        self.x, self.y = blobs(sum(SIZES), 1, self.dtype)
        self.server = blobs(61, 2, self.dtype)
        self.sizes = np.array([len(part) for part in self.parts], dtype=float)

    def train(self, net, k, epochs=None, correction=None, examples=None, batch=B):
        """Local SGD on client k; returns the network and the number of steps."""
        client, steps = copy.deepcopy(net).train(), 0
        anchor = [p.detach().clone() for p in net.parameters()]
        velocity = [None] * len(anchor)
        x, y = (self.x[self.parts[k]], self.y[self.parts[k]]) if examples is None else examples
        for _ in range(self.epochs if epochs is None else epochs):
            for start in range(0, len(x), batch):
                loss = F.cross_entropy(client(x[start : start + batch]), y[start : start + batch])
                gradients = torch.autograd.grad(loss, list(client.parameters()))
                steps += 1
                with torch.no_grad():
                    for i, (p, g) in enumerate(zip(client.parameters(), gradients, strict=True)):
                        g = g + self.mu * (p - anchor[i])
                        if correction is not None:
                            g = g + correction[i]
                        if self.momentum:
                            velocity[i] = g if velocity[i] is None else self.momentum * velocity[i] + g
                            g = velocity[i]
                        p -= LR * g
        return client, steps

    def evaluate(self, net, measure: Callable, x, y) -> float:
        net = copy.deepcopy(net).eval()
        with torch.no_grad():
            return float(measure(net(x), y))

    def on_server(self, net, measure):
        return self.evaluate(net, measure, *self.server)

    def on_client(self, net, measure, k):
        return self.evaluate(net, measure, self.x[self.parts[k]], self.y[self.parts[k]])


def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean()  # torchmetrics, too, divides in float32


def flat(net):
    """Parameters, float buffers, integer buffers."""
    parameters = np.concatenate([p.detach().double().numpy().ravel() for p in net.parameters()])
    floats = [b.double().numpy().ravel() for b in net.buffers() if b.is_floating_point()]
    integers = [b.numpy().ravel() for b in net.buffers() if not b.is_floating_point()]
    empty = [np.zeros(0)]
    return parameters, np.concatenate(floats or empty), np.concatenate(integers or empty)


def build(net, parameters, floats, integers):
    """The network with these tensors."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for values, tensors in (
            (parameters, list(net.parameters())),
            (floats, [b for b in net.buffers() if b.is_floating_point()]),
            (integers, [b for b in net.buffers() if not b.is_floating_point()]),
        ):
            start = 0
            for tensor in tensors:
                piece = torch.as_tensor(values[start : start + tensor.numel()])
                tensor.copy_(piece.view_as(tensor))
                start += tensor.numel()
    return net


def averaged(net, clients, weights):
    """sum p_k w_k / sum p_k; integer buffers by maximum."""
    weights = np.asarray(weights, dtype=float)
    states = [flat(client) for client in clients]
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(clients), 1 / len(clients))
    parameters, floats = (np.einsum("k,kd->d", weights, np.stack([s[i] for s in states])) for i in (0, 1))
    return build(net, parameters, floats, np.max([s[2] for s in states], axis=0))


def like_parameters(net, vector):
    """A flat vector as tensors shaped like the parameters."""
    pieces, start = [], 0
    for p in net.parameters():
        pieces.append(torch.as_tensor(vector[start : start + p.numel()]).view_as(p).to(p.dtype))
        start += p.numel()
    return pieces
