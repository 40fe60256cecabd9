"""Federations of five clients that may train at speeds of their own."""

import torch
from federations import Blobs, Consecutive, Plain, federate, weights

from fl_lightning import FederationCallback, LocalTraining

FIVE = (7, 22, 12, 9, 12)
FABRIC = LocalTraining(engine="fabric", max_epochs=2)


def fitted(rounds=3, module=None, callbacks=(), **settings):
    torch.manual_seed(5)
    module = module() if module else Plain(batchnorm=True, momentum=0.9)
    settings.setdefault("local", FABRIC)
    run = federate(module, rounds, *callbacks, data=Blobs(n=sum(FIVE)), partitioner=Consecutive(FIVE), **settings)
    return weights(module), run


class Missed(FederationCallback):
    """Keeps the round and the client of what did not arrive."""

    def __init__(self):
        self.clients = []

    def on_client_failed(self, trainer, pl_module, failure):
        self.clients.append((failure.round_idx, failure.client))
