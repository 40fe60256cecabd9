"""Pure functions and small value classes on tensors: no Lightning, no I/O."""

from fl_lightning.functional.class_weights import f1_class_weights, weighted_cross_entropy
from fl_lightning.functional.exact_sum import ExactSum, Sums
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.partition import iid_indices, scale_table, table_indices
from fl_lightning.functional.proximal import add_proximal_gradient, proximal_term
from fl_lightning.functional.scheduling import balanced_shares, cohort_size, draw_cohort
from fl_lightning.functional.seeding import derive_seed, generator, isolated_rng

__all__ = [
    "ExactSum",
    "ModelState",
    "Sums",
    "add_proximal_gradient",
    "balanced_shares",
    "cohort_size",
    "derive_seed",
    "draw_cohort",
    "f1_class_weights",
    "generator",
    "iid_indices",
    "isolated_rng",
    "proximal_term",
    "scale_table",
    "table_indices",
    "weighted_cross_entropy",
]
