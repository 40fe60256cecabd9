"""fluke's classes with those lines changed in which they differ from the papers; see docs/conformance.md."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from unittest import mock

import fluke.server
import numpy as np
import torch
from common import as_torch_adam, load, vector
from fluke.algorithms.ditto import DittoClient
from fluke.algorithms.fedavgm import FedAVGMServer
from fluke.algorithms.fedbn import FedBNClient
from fluke.algorithms.feddyn import FedDynClient, FedDynServer
from fluke.algorithms.fednova import FedNovaServer
from fluke.algorithms.fedopt import FedOptServer
from fluke.algorithms.pfedme import PFedMeClient, PFedMeOptimizer
from torch import nn


class FirstNorm(FedBNClient):
    """A client that comes later starts from the first BatchNorm, too, not from the average of the others'."""

    start: nn.Module | None = None

    def receive_model(self) -> None:
        first = self.model is None
        super().receive_model()
        if first:
            self.model.encoder[1].load_state_dict(self.start.encoder[1].state_dict())


class FirstReceived(DittoClient):
    """v_k starts from the first model that the client receives, not from the initial one."""

    def fit(self, override_local_epochs: int = 0) -> Any:
        if self.pers_optimizer is None:
            self.personalized_model.load_state_dict(self.model.state_dict())
        return super().fit(override_local_epochs)


class FullNova(FedNovaServer):
    """Adds (1 - sum of weights) w_t, since the weights do not sum to 1."""

    @torch.no_grad()
    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        before, p = vector(self.model), np.array(self._get_client_weights(eligible))
        super().aggregate(eligible, client_models)
        a = np.array([client.a for client in eligible])
        load(self.model, vector(self.model) + (1 - (p @ a) * (p / a).sum()) * before)


class FromTau(FedOptServer):
    """v starts at tau^2, and the average that the change is taken from has rate 1."""

    def _init_moments(self) -> None:
        super()._init_moments()
        self.v_t = {key: torch.full_like(v, self.hyper_params.tau**2) for key, v in self.v_t.items()}

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        average = fluke.server.aggregate_models
        rate_one = lambda model, models, weights, eta, inplace: average(model, models, weights, 1.0, inplace)  # noqa: E731
        with mock.patch("fluke.server.aggregate_models", rate_one):
            super().aggregate(eligible, client_models)


class TorchAdam(FromTau):
    """The average has rate 1, and bias is corrected, as torch's Adam does; v starts at 0."""

    def _init_moments(self) -> None:
        FedOptServer._init_moments(self)
        self.settings, self.number = dict(self.hyper_params), 0

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        self.number += 1
        s = {"server_lr": self.settings["lr"], "tau": self.settings["tau"]}
        s |= {"beta_1": self.settings["beta1"], "beta_2": self.settings["beta2"]}
        lr, tau = as_torch_adam(s, self.number)
        self.hyper_params.update(lr=lr, tau=tau)
        super().aggregate(eligible, client_models)


class FirstMomentum(FedAVGMServer):
    """The first round moves: the velocity is its change, not 0."""

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        if self.momentum_vector is None:
            self.momentum_vector = {key: torch.zeros_like(t) for key, t in self.model.state_dict().items()}
        super().aggregate(eligible, client_models)


class PaperDynClient(FedDynClient):
    """g_k moves by alpha (w_t - w_k) and enters the loss with its own sign, once; alpha is the same for all clients."""

    def _receive_weights(self) -> None:
        super()._receive_weights()
        self.weight = 1.0

    def receive_model(self) -> None:
        first = self.model is None
        sent = self.channel.receive(self.index, "server", msg_type="model").payload
        self.model = copy.deepcopy(sent[1]) if first else self.model
        self.model.load_state_dict(sent[1].state_dict())
        if first:
            self.prev_grads = torch.zeros(sum(p.numel() for p in self.model.parameters()), dtype=torch.float64)

    def fit(self, override_local_epochs: int = 0) -> float:
        before = self.prev_grads.clone()  # fluke's sum of alpha (w_t - w_k) becomes the authors' sum of w_k - w_t
        loss = super().fit(override_local_epochs)
        self.prev_grads = before - (self.prev_grads - before) / self.hyper_params.alpha
        return loss


class PaperDynServer(FedDynServer):
    """The correction is a mean over all clients, not over the cohort."""

    def aggregate(self, eligible: Sequence[Any], client_models: Any) -> None:
        super().aggregate(eligible, client_models)
        sums = [client.prev_grads for client in self.clients if client.prev_grads is not None]
        load(self.cld_mdl, vector(self.model) + sum(sums).numpy() / self.n_clients)


class Pulled(PFedMeOptimizer):
    """The pull is towards w; fluke passes theta's own parameters, so that theirs is 0."""

    anchor: list[torch.Tensor] | None = None

    def step(self, local_parameters: Any, closure: Any = None) -> None:
        super().step(self.anchor if self.anchor is not None else local_parameters, closure)


class PaperMe(PFedMeClient):
    """w starts at w_t in each turn and is what is sent; theta starts there, too."""

    def fit(self, override_local_epochs: int = 0) -> float:
        self.internal_model.load_state_dict(self.model.state_dict())
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
        self.optimizer.anchor = list(self.internal_model.parameters())
        kept = self.internal_model.load_state_dict
        self.internal_model.load_state_dict = lambda state: None  # fluke overwrites w by theta after training
        loss = super().fit(override_local_epochs)
        self.internal_model.load_state_dict = kept
        self.theta = copy.deepcopy(self.model)
        self.model.load_state_dict(self.internal_model.state_dict())
        return loss
