"""Sphinx's settings: `make site` builds docs/ into build/site."""

project = "unslothrl"
author = "the unslothrl authors"
copyright = f"{author}, Apache-2.0"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "unslothrl"
myst_heading_anchors = 3  # of `file.md#a-heading`, as on GitHub
suppress_warnings = ["misc.highlighting_failure"]
