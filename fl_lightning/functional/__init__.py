"""Provide pure functions and small value classes on tensors, without Lightning or I/O."""

from fl_lightning.functional.class_weights import f1_class_weights, weighted_cross_entropy
from fl_lightning.functional.exact_sum import ExactSum
from fl_lightning.functional.grouping import balanced_groups, divergence_from_uniform
from fl_lightning.functional.labels import client_label_counts, earth_movers_distance, repeats, wrong_labels
from fl_lightning.functional.local_steps import StepCoefficients, control_change
from fl_lightning.functional.mixing import mix, ring_matrix, star_matrix
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.partition import Partition, iid_partition, scale_table, table_partition
from fl_lightning.functional.privacy import epsilon_of_clients, epsilon_of_examples
from fl_lightning.functional.proximal import add_proximal_gradient, proximal_term
from fl_lightning.functional.robust_loss import log_partition, most_likely, residual_counts, robust_loss
from fl_lightning.functional.scheduling import balanced_shares, cohort_size, draw_cohort
from fl_lightning.functional.seeding import derive_seed, generator, isolated_rng
from fl_lightning.functional.shapley import exact_shapley, monte_carlo_shapley
from fl_lightning.functional.sums import Grid, Sums, grid_of

__all__ = [
    "ExactSum",
    "Grid",
    "ModelState",
    "Partition",
    "StepCoefficients",
    "Sums",
    "add_proximal_gradient",
    "balanced_groups",
    "balanced_shares",
    "client_label_counts",
    "cohort_size",
    "control_change",
    "derive_seed",
    "divergence_from_uniform",
    "draw_cohort",
    "earth_movers_distance",
    "epsilon_of_clients",
    "epsilon_of_examples",
    "exact_shapley",
    "f1_class_weights",
    "generator",
    "grid_of",
    "iid_partition",
    "isolated_rng",
    "log_partition",
    "mix",
    "monte_carlo_shapley",
    "most_likely",
    "proximal_term",
    "repeats",
    "residual_counts",
    "ring_matrix",
    "robust_loss",
    "scale_table",
    "star_matrix",
    "table_partition",
    "weighted_cross_entropy",
    "wrong_labels",
]
