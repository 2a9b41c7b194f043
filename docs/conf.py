"""Sphinx's settings: `make site` builds docs/ into build/site."""

import tomllib
from pathlib import Path

SETTINGS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
REPOSITORY = SETTINGS["tool"]["unslothrl"]["repository"]

project = "unslothrl"
author = "the unslothrl authors"
copyright = f"{author}, Apache-2.0"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "unslothrl"
myst_heading_anchors = 3  # of `file.md#a-heading`, as on GitHub
suppress_warnings = ["misc.highlighting_failure"]
html_theme_options = {
    "source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/",
}  # fmt: skip
