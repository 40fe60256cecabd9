"""What clients cannot do: models, phases and further passes of their own, kept state, and modules that cannot be copied."""

from typing import Any

import torch
from algorithms import Following
from engine_runs import built, optimized, stepping, variant
from federations import Plain
from refusing import Refusal, fits
from sparse_gradients import SPARSE, Words
from torch import nn

import fl_lightning as fl
from fl_lightning.clients.answering import refuse_questions

MANUAL = {"automatic_optimization": property(lambda self: False, lambda self, _: None)}
HALVES = variant(
    configure_optimizers=lambda self: [torch.optim.SGD(self.net[k].parameters(), lr=0.1) for k in (0, 2)], **MANUAL
)
ITERATOR = variant(training_step=lambda self, dataloader_iter: None)
PRIVATE = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 0.5, noise_seed=7))
KEPT, PROXIMAL = fl.LocalTraining(optimizer_state="kept"), fl.LocalTraining(proximal_mu=0.1)
STACKED, LEAN = fl.LocalTraining(engine="stacked"), fl.LocalTraining(engine="fabric")
ENDLESS = variant(
    configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), 1 / self.trainer.estimated_stepping_batches)
)
CURVE = fl.CalibrationCurve(4)
FIRST = [fl.PersonalPart(names="net.0")]
HEAD = [fl.PersonalPart(names="net.2.*")]


class Named(Plain):
    """Its parts: two blocks, of which one is not called and one returns a tuple, and a part of one number per example."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(4, 8))
        self.memory, self.norm = nn.LSTM(8, 8), nn.Flatten(0)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        h, _ = self.memory(self.body(x))
        self.norm(h)
        return self.last(h)


class Switching(Plain):
    """Has another kind of optimizer in its second turn."""

    switched = False

    def on_train_epoch_end(self) -> None:
        self.switched = True

    def configure_optimizers(self) -> Any:
        return (torch.optim.Adagrad if self.switched else torch.optim.Adam)(self.parameters())


SCRIPTED = built(lambda self: self.net.__setitem__(0, torch.jit.script(self.net[0])))
LOWEST = built(
    lambda self: self.register_buffer("low", torch.tensor(torch.inf)),
    extreme_buffers={"low": "min"},
    on_train_batch_start=lambda self, batch, _: setattr(self, "low", torch.minimum(self.low, batch[0].min())),
)
"""Finds the smallest input, from infinity on."""
HIDDEN_LAYERS = built(
    lambda self: setattr(self, "heads", [nn.Linear(3, 3)]),
    forward=lambda self, x: self.heads[0](self.net(x)),
    configure_optimizers=lambda self: torch.optim.SGD([*self.parameters(), *self.heads[0].parameters()], lr=0.1),
)
"""Keeps layers in a list, which torch does not see, and trains them."""


class Remembering(torch.optim.SGD):
    """Keeps an object of the user's in its state."""

    def step(self, closure: Any = None) -> Any:
        self.state[self.param_groups[0]["params"][0]]["history"] = object()
        return super().step(closure)


def build_head(self) -> Any:
    """Build a layer, also after Lightning has called ``configure_optimizers``."""
    self.head = getattr(self, "head", nn.Linear(3, 3))
    return self.head


def creates_a_head(self, x, y, _):
    return nn.functional.cross_entropy(build_head(self)(self(x)), y)


def replacing(layer: Any) -> Any:
    """A module that replaces its first layer in training."""
    return variant(on_train_epoch_start=lambda self: self.net.__setitem__(0, layer(4, 8)))


REFUSALS = [
    # a model of each client's own
    fits("which the route FedCyclic does not support", strategy=fl.Ditto(), route=fl.FedCyclic()),
    fits("keep parts of its own, but Ditto keeps a complete model of each client's own", strategy=fl.Ditto(), personal=FIRST),
    fits("'federation.attackers.discard_global' gives", strategy=fl.PFedMe(), attackers=fl.Attackers(discard_global=[1])),
    fits("Ditto trains a second model ... 'federation.local.privacy' does not cover", strategy=fl.Ditto(), local=PRIVATE),
    fits("pFedMe counts the steps of one optimizer", strategy=fl.PFedMe(), module=HALVES),
    # further passes
    fits("'federation.strategy.representation' is 'nte.2', ... Did you mean net.2? It has: net, ", strategy=fl.MOON("nte.2")),
    fits("is '0', which is the name of 3 parts of Named: net.0, body.0, idle.0. Write", strategy=fl.MOON("0"), module=Named),
    fits("output of 'idle.0' of Named, but 'training_step' does not call this part.", strategy=fl.MOON("idle.0"), module=Named),
    fits("of 'memory' of Named, which has the type tuple, but it needs", strategy=fl.MOON("memory"), module=Named),
    fits("of 'norm' of Named, which has the shape (40,), but it", strategy=fl.MOON("norm"), module=Named),
    fits("ModelContrast, a part of ... but Variant optimizes manually", strategy=fl.MOON("net.2"), module=variant(**MANUAL)),
    fits("the module again, but Variant.training_step takes 'dataloader_iter'", strategy=fl.APFL(), module=ITERATOR),
    fits("MOON trains ... which 'federation.local.privacy' does not cover", strategy=fl.MOON("net.2"), local=PRIVATE),
    fits("so 'federation.local.gradient_clip_val' (1.0)", strategy=fl.APFL(), local=fl.LocalTraining(gradient_clip_val=1.0)),
    fits("with one optimizer, but LBFGS treats all parameters as", strategy=fl.APFL(), module=optimized(torch.optim.LBFGS)),
    fits("training changes the frozen tensor 'target.weight', of which", strategy=fl.APFL(), module=Following),
    # phases
    fits("FedRep needs a head of each client, but 'federation.personal' is empty", strategy=fl.FedRep()),
    fits("needs 2 local epochs or more, but", strategy=fl.FedRep(), personal=HEAD, local=fl.LocalTraining()),
    fits("matches every parameter, so FedBABU has nothing", strategy=fl.FedBABU(), personal=[fl.PersonalPart(names="*")]),
    # a training without an end
    *(
        fits("'trainer.max_epochs' is -1, so ... no end", module=ENDLESS, rounds=-1, local=one)
        for one in (fl.LocalTraining(), LEAN)
    ),
    # what clients keep, and tensors that training creates, resizes or hides
    fits("FedNova has no rule for momentum from earlier rounds", strategy=fl.FedNova(), local=KEPT),
    fits("optimizers are other ones (Adagrad of ... than in the client's last turn", module=Switching, local=KEPT, rounds=2),
    fits("Remembering keeps 'history' (a object) from turn to turn, but", module=optimized(Remembering), local=KEPT, rounds=2),
    fits("'client_state' names 'thing', which holds a type", module=variant(client_state="thing", thing={"a": [object]})),
    fits("'client_state' of Variant names 'queu', but after a client's training the", module=variant(client_state=("queu",))),
    fits("Training created the parameter 'head.weight' of Variant, which the global", module=stepping(creates_a_head)),
    fits("Variant builds 'head.weight' in 'on_fit_start', after Lightning has called", module=variant(on_fit_start=build_head)),
    fits("Training replaced the layer of 'net.0.weight' of Variant", module=replacing(nn.Linear)),
    fits("Cannot copy 'net.0.weight' of Variant ... torch.jit.script", module=SCRIPTED),
    fits("optimizers of Variant train 2 tensors that it does not contain, the first of shape (3,", module=HIDDEN_LAYERS),
    fits("Training changes 'low' ... FedMedian does not cover such tensors", module=LOWEST, strategy=fl.FedMedian()),
    fits("ProximalRule, ... but SparseAdam needs sparse gradients. Use Adam, or", module=SPARSE, local=PROXIMAL),
    fits("Stacked clients do not support Embedding with sparse gradients", module=Words, local=STACKED),
    Refusal(
        lambda: CURVE.update(torch.tensor([-1.0]), torch.tensor([1])),
        "CalibrationCurve needs probabilities, but got numbers from -",
    ),
    Refusal(lambda: refuse_questions({}), "No metric may be asked for here by its class"),
    fits("'trainer.reload_dataloaders_every_n_epochs' is 1, but ... Remove it", flags={"reload_dataloaders_every_n_epochs": 1}),
]
