"""Neither a told point of a curve nor the difference of two is about fewer rows than a site allows."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.classification import BinaryROC, BinaryStatScores, MulticlassConfusionMatrix

from fl_lightning.functional.small_cells import few_predicted, told_states, told_thresholds

ROWS = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=80)


@given(ROWS, st.integers(2, 12))
def test_no_difference_of_told_points_is_about_few_rows(rows, least):
    """By counting the rows between each two told thresholds, for each class."""
    scores, labels = torch.tensor([s / 20 for s, _ in rows]), torch.tensor([y for _, y in rows])
    grid = torch.linspace(0, 1, 11)
    positive = torch.stack([(labels & (scores >= t)).sum() for t in grid])
    negative = torch.stack([(~labels & (scores >= t)).sum() for t in grid])
    totals = int(labels.sum()), int((~labels).sum())
    told = told_thresholds(positive, negative, totals, least)
    known = [(0, 0), totals, *((int(positive[k]), int(negative[k])) for k in told.nonzero().flatten().tolist())]
    for one, other in combinations(known, 2):
        if {one, other} == {(0, 0), totals}:
            continue  # the sizes of the classes, which are checked elsewhere
        assert all(abs(a - b) == 0 or abs(a - b) >= least for a, b in zip(one, other, strict=True)), (known, least)


def test_a_curve_hides_the_threshold_that_singles_out_one_row():
    metric = BinaryROC(thresholds=[0.1, 0.5, 0.9])
    scores = torch.cat([torch.full((30,), 0.3), torch.full((30,), 0.7), torch.tensor([0.95])])
    metric.update(scores, torch.tensor([0] * 30 + [1] * 31))
    told = told_states({"confmat": metric.confmat}, 10)["confmat"]
    assert told.isnan().all((1, 2)).tolist() == [False, False, True]
    assert not told_states({"confmat": metric.confmat}, 1)["confmat"].isnan().any()


def test_few_counts_hide_the_rows_of_all_states():
    told = told_states({"events": torch.tensor([3, 12]), "confidence": torch.tensor([1.5, 20.0])}, 10)
    assert {name: state.isnan().tolist() for name, state in told.items()} == {
        "events": [True, False],
        "confidence": [True, False],
    }
    scalar = told_states({"tp": torch.tensor(48), "fp": torch.tensor(2)}, 10)
    assert all(state.isnan().all() for state in scalar.values())
    assert told_states({"tp": torch.tensor(48), "fp": torch.tensor(0)}, 10)["fp"] == 0


@pytest.mark.parametrize(("few", "many"), [(0.9, 0.1), (0.1, 0.9)])
def test_few_rows_that_are_predicted_as_one_class(few, many):
    """A specificity is about those that are predicted negative, as a precision is about the others."""
    scores = BinaryStatScores()
    scores.update(torch.tensor([few] * 2 + [many] * 50), torch.tensor([1] * 26 + [0] * 26))
    states = {name: getattr(scores, name) for name in ("tp", "fp", "tn", "fn")}
    assert few_predicted(states, 10)
    assert not few_predicted(states, 2)
    matrix = MulticlassConfusionMatrix(3)
    matrix.update(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 0, 2]))
    assert few_predicted({"confmat": matrix.confmat}, 2)
    assert not few_predicted({"confmat": matrix.confmat}, 1)
