"""Settings of the documentation site: ``make docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

import fl_lightning  # noqa: E402

project = "fl_lightning"
author = copyright = "the authors of fl_lightning"
release = version = fl_lightning.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = f"fl_lightning {release}"
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_render_markdown_format = "myst"  # tables in outputs
suppress_warnings = ["myst.strikethrough"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80  # a longer signature has a parameter on each line
autosummary_generate = False
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
nitpicky = True
_ELSEWHERE = (
    "abc|collections|dict|fractions|hashlib|jsonargparse|lightning|numpy|pandas|pathlib|random|torch|torchmetrics|torchvision"
    "|typing|wandb"
)
nitpick_ignore_regex = [
    ("py:.*", rf"({_ELSEWHERE})\b.*"),  # documented elsewhere; a build must not need a network
    ("py:(class|obj)", r"(Tensor|nn\.Module|L\..*)"),
    ("py:class", r"list\[tuple\[~torch.*"),  # half of an alias of a type in a signature
    ("py:class", r".* .*|Keys|\d+|m"),  # the first words of a sentence with a colon, which napoleon takes for a type
    ("py:exc", r"WireError"),
    # types of options' hooks, which are imported for type checks only
    ("py:class", r"UpdateEditor|Collectives|Trainer|Federation|SecretKey|RoundPlan|Gathering|RoundResult|Path"),
    ("py:class", r"Chains|ClientSampler|LocalSettings|ModelScorer|Panel|Strategy"),
    ("py:class", r"Capability|ClientData|ClientTask|FederationSettings|ModelState|PoissonBatches|Run|RunDisabled"),
    ("py:class", r"fl_lightning\.(\w+\.)+_?[A-Z]\w*"),  # a type in a signature that is no public name
]


_COMPANIONS = {
    "attacks": "Crowd",
    "cells": "CellSite",
    "core": "ClientContext ServerContext SitePlace",
    "data": "TensorLoader",
    "errors": "RankError",
    "routes": "Cohort",
    "rules": "Batch LocalEnd LocalModel LocalStart Pass",
    "strategies": "ModelScorer",
    "studies": "ReportOptions RunTable",
    "transforms": "Message Sender",
    "types": "Pull RoundStart Snapshot",
}
"""What only those need who write a part of their own: names that a subpackage exports."""


def write_api_pages() -> None:
    """Write a page for each subpackage with its public names, from the same list that ``import fl_lightning`` uses."""
    folder = Path(__file__).parent / "api"
    folder.mkdir(exist_ok=True)
    public: dict[str, str] = vars(fl_lightning)["_NAMES"]
    for part, names in public.items():
        listed = [*names.split(), *(f"{part}.{name}" for name in _COMPANIONS.get(part, "").split())]
        entries = "\n\n".join(f".. autoclass:: fl_lightning.{name}" for name in listed)
        if part == "functional":  # its pure functions, file by file
            modules = sorted(path.stem for path in (ROOT / "fl_lightning" / part).glob("[a-z]*.py"))
            entries += "".join(f"\n\n.. automodule:: fl_lightning.{part}.{module}" for module in modules)
        (folder / f"{part}.md").write_text(f"# {part}\n\n```{{eval-rst}}\n{entries}\n```\n")
    seams = ("core.federation.ClientPool", "clients.site.Site")
    seam = "\n\n".join(f".. autoclass:: fl_lightning.{name}" for name in seams)
    (folder / "clients.md").write_text(f"# clients\n\n```{{eval-rst}}\n{seam}\n```\n")
    first = ("callbacks", "data", "settings", "strategies")  # what readers look for most
    parts = {**{part: public[part] for part in first}, **public, "clients": " ".join(seams)}
    pages = "\n".join(parts)
    lines = "".join(f"\n## {part}\n\n```{{eval-rst}}\n{_summary(names)}\n```\n" for part, names in parts.items())
    (folder / "index.md").write_text(f"# API\n{lines}\n```{{toctree}}\n:maxdepth: 1\n:hidden:\n\n{pages}\n```\n")


def _summary(names: str) -> str:
    """Return a table with the first line of each name's docstring."""
    rows = "\n".join(f"   ~fl_lightning.{name}" for name in names.split())
    return f".. autosummary::\n   :nosignatures:\n\n{rows}"


def show_settings(app: Any, page: str, source: list[str]) -> None:
    """Put a class's docstring, with its settings, where a page of algorithms names the class: ```{settings} AdaFed."""
    shown = "```{eval-rst}\n.. autoclass:: fl_lightning.\\1\n   :no-index:\n   :no-members:\n```"
    source[0] = re.sub(r"^```\{settings\} (\w+)\n```", shown, source[0], flags=re.MULTILINE)


def inline_diagrams(app: Any, tree: Any, page: str) -> None:
    """Put diagrams into the page itself, where their colours follow the theme that the reader chose."""
    for image in list(tree.findall(nodes.image)):
        if "diagrams/" in image["uri"] and app.builder.format == "html":
            image.replace_self(nodes.raw("", (ROOT / "docs" / image["uri"]).read_text(), format="html"))


def write_formula(translator: Any, formula: Any) -> None:
    """Write a formula as MathML, which browsers render without a network."""
    block = isinstance(formula, nodes.math_block)
    translator.body.append(tex2mathml(formula.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Write the API pages before Sphinx looks for documents; let diagrams follow the theme; render formulas."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("builder-inited", lambda _: write_api_pages())
    app.connect("source-read", show_settings)
    app.connect("doctree-resolved", inline_diagrams)
