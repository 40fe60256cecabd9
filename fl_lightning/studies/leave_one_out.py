"""Leave one site out: train on all others, test at the one, for each site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from jsonargparse import ArgumentParser, Namespace

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.studies.grid import Axis, Choice
from fl_lightning.studies.page import Table
from fl_lightning.studies.panels import Measure, Panel, together
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.tables import Column, finals, paired_table, table_of

LEFT_OUT = "left_out"
"""The name of the axis of sites."""
METRIC = "federation/unseen_mean"
"""The metric of a held-out site."""
_HELD = "data.held_out_clients"
EVERY = "federation.client_evaluation.every_n_rounds"


def site_axis(given: bool | list[str], config: Namespace, settings: Mapping[str, Any], axes: Sequence[Axis]) -> Axis:
    """Return the axis of the sites that are left out, one at a time.

    Args:
        given: the names of the sites; true for all clients.
        config: the configuration of a run of the study.
        settings: settings of every run, by their full names.
        axes: the other axes.

    Raises:
        ConfigurationError: if there are not two sites, or something else chooses the held-out clients.
    """
    chosen = [*settings, *(name for axis in axes for choice in axis.choices for name, _ in choice.settings)]
    if _HELD in chosen or config.data.held_out_clients:
        raise ConfigurationError(f"'leave_one_out' sets '{_HELD}' itself. Remove it from the study and its base.")
    if any(axis.name == LEFT_OUT for axis in axes):
        raise ConfigurationError(f"'over.{LEFT_OUT}' is the axis that 'leave_one_out' adds. Rename yours.")
    names = [str(name) for name in given] if isinstance(given, list) else client_names(config)
    differ = len(set(names)) == len(names) > 1
    require(differ, "leave_one_out", "true, or the names of two or more clients, which differ", names)
    return Axis(LEFT_OUT, tuple(Choice(name, (), ((_HELD, [name]),)) for name in names))


def client_names(config: Namespace) -> list[str]:
    """Return the names of the clients of a configuration; read the data if their partitioner finds them there.

    Raises:
        ConfigurationError: if the clients are sites over a network.
    """
    if config.federation.pool is not None:
        raise ConfigurationError(
            "'leave_one_out' is true, but the sites of 'federation.pool' are not known here. Name them: leave_one_out: [a, b]."
        )
    if config.data.clients:
        return sorted(config.data.clients)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(FederatedDataModule, "data")
    data = parser.instantiate_classes(parser.parse_object({"data": config.data.as_dict()})).data
    data.prepare_data()
    data.setup("fit")
    return [data.client_name(client) for client in range(data.num_clients)]


def measured(config: Namespace) -> tuple[str, str]:
    """Return the metric of the report, and whether its ``max`` or ``min`` is best."""
    evaluation = config.federation.client_evaluation
    name = evaluation.metric if isinstance(evaluation.metric, str) else evaluation.metric.class_path
    higher = higher_is_better(name, evaluation.mode, "federation.client_evaluation.mode")
    return METRIC, "max" if higher else "min"


# ---------------------------------------------------------------- tables


def leave_one_out_tables(table: RunTable, grouped: Sequence[Panel], measure: Measure) -> Iterator[tuple[str, list[Table]]]:
    """Yield the tables over sites for each combination of the other axes, after its title.

    Args:
        table: run table of a study.
        grouped: its settings, grouped by their choices on all axes but the first.
        measure: the metric at the site that was left out.
    """
    if LEFT_OUT not in table.axes:
        return
    place, whole = table.axes.index(LEFT_OUT), together(grouped)
    sections: dict[str, dict[str, dict[str, pd.Series]]] = {}  # by the other axes, then by choice, then by site
    for panel in grouped:
        for choice, values in finals(table, panel, measure).items():
            setting = panel.settings[choice]
            others = ", ".join(own for k, own in enumerate(setting) if k not in (place, 0))
            sections.setdefault(others, {}).setdefault(choice if place else "all", {})[setting[place]] = values
    for title, sites in sections.items():
        over = {name: pd.Series({site: own.mean() for site, own in found.items()}).dropna() for name, found in sites.items()}
        note = "Runs share most of their training sites, so their results are not independent and the true p is larger."
        tested = [paired_table(over, whole, measure, "site", note)] if len(sites) > 1 else []
        yield title, [*filter(None, [_sites_table(sites, over, whole, measure), *tested])]


def _sites_table(
    sites: Mapping[str, Mapping[str, pd.Series]], over: Mapping[str, pd.Series], panel: Panel, measure: Measure
) -> Table:
    """Tabulate the score at each site that was left out, and over sites the mean, the worst and the standard deviation."""
    none, names = pd.Series(dtype=float), dict.fromkeys(site for own in sites.values() for site in own)
    columns = [Column.of(measure, site, [own.get(site, none) for own in sites.values()]) for site in names]
    for head, what in (("mean", "mean"), ("worst site", "min" if measure.higher else "max"), ("std over sites", "std")):
        columns.append(Column.of(measure, head, [pd.Series([own.agg(what)]).dropna() for own in over.values()]))
    columns[-1] = columns[-1]._replace(higher=None)
    note = (
        "Each column is a site on which the model was tested and which never trained. Mean, worst and standard deviation are "
        "those over sites, each counted once."
    )
    title = f"{measure.title}, one site left out at a time"
    compete = [name not in panel.references for name in sites]
    return table_of(title, panel.axis, list(map(panel.label, sites)), columns, compete, note)
