"""Settings of the site: ``make docs`` builds it without a network, and stops at a warning."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import sonde

project = "sonde"
author = "The sonde developers"
project_copyright = "The sonde developers"
version = release = sonde.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "made", "public", "terms"]
exclude_patterns = ["_build", "_made", "_ext", "jupyter_execute"]
suppress_warnings = ["ref.python"]  # a type in a signature, as Recorder, that two modules have
highlight_language = "text"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"sonde {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#4b3fb0", "color-brand-content": "#4b3fb0"},
    "dark_css_variables": {"color-brand-primary": "#b3a9ff", "color-brand-content": "#b3a9ff"},
}
linkcheck_ignore = [r"http://127\.0\.0\.1.*"]
