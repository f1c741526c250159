"""How Sphinx makes the site: of the pages in docs/, and of those that stand elsewhere, where they are.

    pip install -e '.[docs]'
    sphinx-build -W -n --keep-going -c docs . build/site

The source is the whole repository, so that a link which leads somewhere in the repository leads there in the site too,
and no page is copied into docs/ or told twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

from dpdist import __version__  # noqa: E402 - of this checkout, or as it is installed

project = "dpdist"
author = "The dpdist developers"
version = release = __version__
language = "en"

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_click",
    "sphinx_copybutton", "docstrings", "generated",
]  # fmt: skip
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
templates_path = [str(ROOT / "docs" / "_templates")]  # of the pages of public names
root_doc = "docs/index"
include_patterns = [
    "docs/**.md", "docs/notebooks/*.ipynb", "*.md", "cluster/**.md", "papers/**.md", "benchmarks/**.md",
    "workflows/*.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "dist", "dpdist", "tests", "**/__pycache__", "**/node_modules"]

nb_execution_mode = "off"  # benchmarks/notebooks.py runs them, and what came out is in the files
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_typehints = "none"  # types stand in the docstrings, with shapes and units
autodoc_member_order = "groupwise"
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_custom_sections = ["See Also"]  # a list, as docstrings.py writes it
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_use_param = False  # types are sentences here, not names to look up

html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}  # else the theme complains in the console
html_title = "dpdist"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_extra_path = ["_root"]  # index.html of the site leads to docs/index.html
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_persistent": ["search-button"],  # the wider one shows keys, which its name for screen readers lacks
    "collapse_navigation": True,  # folds in it have no name
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
copyright = "The dpdist developers, Apache 2.0"  # noqa: A001 - as Sphinx calls it
