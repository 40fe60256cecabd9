"""Refuse settings and modules with which an example has more influence than its clipped gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.compat.torch import is_batch_norm
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.options.privacy_account.checks import check_declared, check_own_metrics

if TYPE_CHECKING:
    from fl_lightning.settings.federation import FederationSettings

_NAME = "'federation.local.privacy'"


def check_settings(settings: FederationSettings) -> None:
    """Refuse settings of the other parts; see :meth:`OptionSettings.check_settings`."""
    local, strategy, route = settings.local, settings.strategy, settings.route
    if strategy.own_models:
        raise ConfigurationError(
            f"{type(strategy).__name__} trains a second model of each client, whose steps {_NAME} does not cover. Remove one "
            "of them."
        )
    rule = strategy.client_rule()
    if rule is not None and rule.reads_batches:
        raise ConfigurationError(
            f"{type(strategy).__name__} passes each batch through the module again, which {_NAME} does not cover. Remove one "
            "of them."
        )
    require(not local.side_by_side, "federation.local.engine", f"one of trainer, fabric, auto with {_NAME}", local.engine)
    batches = local.accumulate_grad_batches
    require(batches == 1, "federation.local.accumulate_grad_batches", f"1 with {_NAME}", batches)
    if route.reads_data:
        raise ConfigurationError(
            f"The route {type(route).__name__} evaluates clients' models on their training examples, or counts their labels, "
            f"which {_NAME} does not cover. Use another route, such as ServerRoute."
        )
    check_own_metrics(strategy, _NAME)
    check_declared(strategy, "examples", _NAME)


def check_module(precision: str, module: LightningModule) -> None:
    """Refuse a precision with which clipping is not exact, and a module in which examples' gradients are not separate.

    Raises:
        ConfigurationError: naming the precision or such layers, or if the module optimizes manually.
    """
    from opacus.validators import ModuleValidator

    allowed = ("32-true", "64-true", "bf16-mixed")
    require(precision in allowed, "federation.local.precision", f"one of {', '.join(allowed)} with {_NAME}", precision)
    found = [f"{name or type(part).__name__} ({type(part).__name__})" for name, part in module.named_modules() if _mixes(part)]
    found += [str(error) for error in ModuleValidator.validate(module) if not found and module.training]
    if not module.automatic_optimization:
        found.append(f"{type(module).__name__} optimizes manually")
    found += [
        f"{name or 'the loss'} ({type(part).__name__}: {why})"
        for name, part in module.named_modules()
        if (why := _no_mean(part))
    ]
    if found:
        raise ConfigurationError(
            f"{_NAME} cannot separate an example's gradient from the others: {'; '.join(found[:3])}. Use "
            "GroupNorm instead of BatchNorm, layers that Opacus supports (its DPLSTM for LSTM), 'federation.local.proximal_mu' "
            f"instead of ProximalLoss, and automatic optimization, or remove {_NAME}."
        )


def _no_mean(part: nn.Module) -> str:
    """Return why a loss is no mean over examples, in which one example would change the shares of the others."""
    reduction = getattr(part, "reduction", None)
    if not isinstance(reduction, str):  # which torch's losses have
        return ""
    if reduction != "mean":
        return f"reduction '{reduction}' instead of 'mean'"
    if getattr(part, "weight", None) is not None:
        return "class weights, by whose sum the loss is divided"
    return "'ignore_index', which changes the number of examples" if getattr(part, "ignore_index", -1) >= 0 else ""


def _mixes(part: nn.Module) -> bool:
    """Return whether a layer is BatchNorm, a recurrent layer that Opacus replaces, or a term whose gradient it would drop."""
    return (is_batch_norm(part) and part.training) or isinstance(part, nn.RNNBase | ProximalLoss)
