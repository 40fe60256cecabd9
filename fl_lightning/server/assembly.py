"""How the parts of a federation are put together at the start of a fit."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.clients.evaluators import Evaluators
from fl_lightning.clients.inner_trainer import moves_batches
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.compat.lightning import detects_anomalies
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.server.checks.compatibility import check_batch_norm, check_convex, federated_data
from fl_lightning.server.checks.privacy import check_private_model
from fl_lightning.server.client_evaluation import ClientEvaluator
from fl_lightning.server.federation import Federation
from fl_lightning.server.run_state import RunState
from fl_lightning.server.sampling import ClientSampler
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import resolve_precision


def assemble(
    owner: FederationSettings, run: RunState, trainer: Trainer, module: LightningModule, client: LightningModule
) -> tuple[Federation, ClientSampler, ClientEvaluator]:
    """Put a federation together: on every rank, after a checkpoint has been read.

    Args:
        owner: the settings.
        run: what the run has kept so far.
        trainer: the user's.
        module: the user's.
        client: a copy of it for the clients.

    Returns:
        The parts that stay from round to round, who draws the rounds, and what evaluates at the clients.

    Raises:
        ConfigurationError: for a module that these settings cannot train.
    """
    device = trainer.strategy.root_device
    precision = resolve_precision(owner.local.precision, trainer.precision, device)
    logger, data, account = bool(trainer.loggers), federated_data(trainer), run.account
    if not moves_batches(module, data):  # its hooks expect batches where they were loaded
        data.place(device)
    account.begin(trainer, owner.transforms, owner.local.privacy, owner.seed)
    local = LocalTrainer(
        client,
        owner.local,
        precision,
        device,
        owner.seed,
        fast_dev_run=bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
        logger=logger,
        detect_anomaly=detects_anomalies(trainer),
        memory=run.memory,
        drop_single=check_batch_norm(module, data),
        deadline=owner.faults.deadline,
        secret=account.secret,
        cohort=cohort_size(data.num_clients, owner.clients_per_round),
    )
    if owner.local.engine == "auto" and run.engine is not None:  # a resumed run keeps the engine of its first round
        local.engine = run.engine
    inference, limit = trainer.validate_loop.inference_mode, trainer.limit_val_batches
    measures = Evaluators(data, precision, device, limit, logger, inference, owner.server_evaluation, owner.seed)
    server = ModelState(module)
    check_convex(owner.route, module, owner.local)
    check_private_model(owner.transforms, owner.local, precision, client, server)
    federation = Federation(
        trainer,
        owner.strategy,
        data,
        server,
        local,
        measures,
        owner.seed,
        owner.attackers,
        owner.transforms,
        owner.faults,
        owner.secure_aggregation,
        memory_limit=owner.memory_limit * 2**30,
        privacy=account,
    )
    secret = None if account.clients is None else account.secret
    rules = (owner.clients_per_round, owner.local, owner.availability, owner.faults, owner.seed)
    drawing = ClientSampler(data.num_clients, *rules, secret)
    evaluator = ClientEvaluator(owner.client_evaluation, federation, run.client_scores, owner.route.keeps_models)
    return federation, drawing, evaluator
