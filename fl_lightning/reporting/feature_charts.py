"""A picture of what the clients' features are like."""

from __future__ import annotations

import math
from pathlib import Path

from fl_lightning.reporting.features import FeatureSummary

_FEATURES, _CLIENTS, _COLUMNS = 12, 10, 4


def draw_features(summary: FeatureSummary, path: Path) -> bool:
    """Draw the share of each client's examples in each bin, for the features that differ most, as a PNG file.

    A count of few rows is a gap.

    Returns:
        Whether the file was written; it needs matplotlib and bins.
    """
    shown = [k for k in summary.order if any(n is not None for own in summary.bins for n in own[k])][:_FEATURES]
    if not shown:
        return False
    try:
        from matplotlib.figure import Figure  # optional, and slow to import
    except ImportError:
        return False
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(3 * columns, 2.4 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    clients = summary.clients[:_CLIENTS]
    for axis, k in zip(axes, shown, strict=False):
        cuts = summary.cuts[k]
        step = cuts[1] - cuts[0] if len(cuts) > 1 else 1.0
        places = [cuts[0] - step / 2, *(cut + step / 2 for cut in cuts)]
        for client, own, moments in zip(clients, summary.bins, summary.moments, strict=False):
            shares = [math.nan if n is None else n / max(1, moments.counts[k]) for n in own[k]]
            axis.plot(places[: len(shares)], shares, marker=".", drawstyle="steps-mid", label=client)
        axis.set_title(summary.features[k], fontsize="small")
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        if len(cuts) == 1:
            axis.set_xticks([0, 1])
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    axes[0].set_ylabel("share of examples")
    more = f", and {len(summary.clients) - _CLIENTS} more" if len(summary.clients) > _CLIENTS else ""
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(clients)), fontsize="small"
    )
    figure.suptitle(f"Counts of few rows are left out{more and ' (the first 10 clients' + more + ')'}", fontsize="small")
    figure.savefig(path, dpi=120)
    return True
