"""``fl-lightning dashboard``: what W&B would be sent."""

import json
import re
import sys

import pytest
from command_line import ROOT

from fl_lightning import ConfigurationError
from fl_lightning.cli.commands import dashboard
from fl_lightning.compat.wandb import workspace_specification


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigurationError) as told:
        dashboard.main(arguments)
    return str(told.value)


def test_it_shows_metrics_that_there_are(tmp_path, capsys):
    """Its specification names what docs/metrics.md names."""
    pytest.importorskip("wandb_workspaces", reason="an extra: pip install 'fl_lightning[dashboard]'")
    out = tmp_path / "workspace.json"
    dashboard.main(["--out", str(out)])
    assert capsys.readouterr().out.strip() == str(out)
    spec = json.loads(out.read_text())
    sections = spec["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == ["Strategies", "Classes", "Clients"]
    assert spec["spec"]["section"]["settings"]["shouldAutoGeneratePanels"]  # for all that no section shows
    panels = [panel for section in sections for panel in section["panels"]]
    text = json.dumps([panel["config"] for panel in panels])
    shown = set(re.findall(r'"((?:val_|federation/|client|class_|partition)[\w/]*)(?:\.max)?"', text))
    families = set(re.findall(r'"\^(\w+)/\[0-9\]\+\$"', text))
    documented = set(re.findall(r"`([\w/<>]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert families == {"val_f1", "class_weight"}
    charts = [panel["config"] for panel in panels if panel["viewType"] == "Vega2"]
    assert [chart["fieldSettings"] for chart in charts] == [
        {"step": "round", "lineKey": "line", "lineVal": figure} for figure in ("share", "loss", "update_norm", "seconds")
    ]
    assert {"federation/megabytes_total", "federation/drift", "client_charts", "val_f1_macro"} <= shown
    assert not shown - documented, shown - documented
    assert not {f"{family}/" for family in families} - {name.split("<")[0] for name in documented}
    grouped = [panel["config"] for panel in panels if panel["config"].get("groupBy")]
    assert grouped
    assert all("strategy" in config["groupBy"] for config in grouped)


@pytest.mark.usefixtures("_no_wandb")
def test_what_cannot_be_sent_or_written_is_one_message(monkeypatch, tmp_path):
    pytest.importorskip("wandb_workspaces", reason="an extra: pip install 'fl_lightning[dashboard]'")
    for arguments, message in (
        (("--out", str(tmp_path)), "which cannot be written"),
        (("--entity", "me"), "W&B has no API key. Run 'wandb login'"),
    ):
        assert message in refused(*arguments)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.delitem(sys.modules, "wandb_workspaces.reports.v2", raising=False)
    assert refused("--entity", "me").endswith("Install it with pip install 'fl_lightning[dashboard]'.")


def test_its_address_is_printed(capsys, monkeypatch):
    workspaces = pytest.importorskip("wandb_workspaces.workspaces", reason="an extra: pip install 'fl_lightning[dashboard]'")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    sent = []
    monkeypatch.setattr(workspaces.Workspace, "save", lambda self: sent.append(workspace_specification(self)))
    monkeypatch.setattr(workspaces.Workspace, "url", property(lambda self: "https://wandb.example/me/p"))
    dashboard.main(["--entity", "me", "--project", "p"])
    assert capsys.readouterr().out.strip() == "https://wandb.example/me/p"
    assert len(sent) == 1

    def refuse(self):
        raise ValueError("permission denied")

    monkeypatch.setattr(workspaces.Workspace, "save", refuse)
    said = refused("--entity", "me", "--project", "p")
    assert "W&B did not accept the workspace for 'me/p' (ValueError: permission denied)" in said
