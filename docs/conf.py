"""Configuration of the site that `make docs` builds; its source is the repository, so links work on GitHub too."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference

project = "bert_hf"
version = release = metadata.version("bert-hf")
copyright = "the authors of bert_hf, Apache-2.0"

root_doc = "docs/index"
pages = ["docs/*.md", "docs/reference/*.md", "configs/README.md", "benchmarks/README.md"]
include_patterns = [*pages, "examples/*.ipynb", "[A-Z]*.md"]
exclude_patterns = [".venv", "build", "dist", "runs", "src", "tests"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # "--" of an option is no dash
default_role = "code"  # of docstrings: `name`
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what is taken
autodoc_inherit_docstrings = False

nb_execution_mode = "force"
nb_execution_timeout = 1200  # seconds per cell: the machine may be busy
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars

linkcheck_anchors = False  # GitHub makes its anchors in the browser

html_theme = "furo"
html_title = f"bert_hf {version}"
html_extra_path = ["index.html"]  # leads to docs/index.html
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False

reference.write_pages(Path(__file__).parent / "reference")
