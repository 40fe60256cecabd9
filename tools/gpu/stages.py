"""Which checks a stage has. Imports nothing heavy: the process that starts the checks must outlive them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        stage: its stage.
        name: unique among all.
        function: ``module:function`` in this folder; it takes a Setting and Findings.
        limit: seconds after which it is stopped.
        alone: whether nothing else may run at the same time, as for a measurement.
    """

    stage: str
    name: str
    function: str
    limit: float = 120.0
    alone: bool = False


def _checks(stage: str, *rows: tuple[str, str, float], alone: bool = False) -> list[Check]:
    return [Check(stage, name, function, limit, alone) for name, function, limit in rows]


STAGES: dict[str, list[Check]] = {
    "correctness": _checks(
        "correctness",
        ("environment", "environment:environment", 90),
        ("suite", "suite:suite", 240),
        ("adafed_mnist", "mixed_precision:adafed_mnist", 240),
        ("scaled_steps", "mixed_precision:scaled_steps", 90),
        ("proximal", "mixed_precision:proximal", 120),
        ("against_cpu", "algorithms_on_device:against_cpu", 240),
        ("class_weights", "state_on_device:class_weights", 90),
        ("images", "state_on_device:images", 90),
        ("augmentation", "state_on_device:augmentation", 90),
        ("kept_features", "state_on_device:kept_features", 90),
        ("checkpoint_moves", "resuming:checkpoint_moves", 180),
        ("resume_bits", "resuming:resume_bits", 240),
        ("nccl_one_rank", "ranks:one_rank", 150),
        ("gloo_two_ranks", "ranks:two_ranks", 180),
        ("memory_by_clients", "memory:by_clients", 120),
        ("out_of_memory", "memory:exhausted", 60),
        ("lora", "adapters:lora", 120),
    ),
    "speed": [
        *_checks("speed", ("speed environment", "environment:environment", 90)),
        *_checks(
            "speed",
            ("S: hand again", "timing:measurement", 60),
            ("S: stacked", "timing:measurement", 60),
            ("S: fabric", "timing:measurement", 90),
            ("S: trainer", "timing:measurement", 90),
            ("profile: fabric", "timing:profile", 100),
            ("profile: stacked", "timing:profile", 100),
            ("W bf16: plain Lightning", "timing:measurement", 60),
            ("W bf16: trainer", "timing:measurement", 60),
            ("W bf16: fabric", "timing:measurement", 60),
            ("W float32: fabric", "timing:measurement", 60),
            ("L bf16: trainer", "timing:measurement", 60),
            ("L bf16: fabric", "timing:measurement", 60),
            ("L float32: fabric", "timing:measurement", 60),
            ("side_by_side", "side_by_side:ranks_on_one_device", 120),
            ("S: stacked, compiled", "timing:measurement", 150),
            ("S: stacked, CUDA graphs", "timing:measurement", 150),
            ("profile: stacked, compiled", "timing:profile", 120),
            alone=True,
        ),
    ],
    "compile": _checks(
        "compile",
        ("compile environment", "environment:environment", 90),
        ("bf16_true_stack", "graphs:bf16_true_stack", 120),
        ("compiled_stack", "graphs:compiled_stack", 150),
        ("cuda_graphs", "graphs:cuda_graphs", 150),
        ("compiled_network", "graphs:compiled_network", 180),
        ("compiled_stack_regularized", "graphs:compiled_stack_regularized", 150),
        ("compiled_sizes", "graphs:compiled_sizes", 180),
    ),
}


def find(name: str) -> Check:
    """Return the check of a name."""
    return next(check for checks in STAGES.values() for check in checks if check.name == name)
