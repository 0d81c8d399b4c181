"""Sphinx configuration: python -m sphinx -W --keep-going -b html docs docs/_build/html.

Nothing is fetched, neither while building nor while reading: formulas are drawn by a copy of MathJax that the docs
extra installs, fonts and icons are the theme's own. With SKLEARN_AIM_INTERSPHINX set, references to numpy, scipy and
scikit-learn become links, for which their inventories are fetched. ``-D plot_gallery=0`` builds without running the
examples.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# examples and their matrices are small: more threads only get in each other's way
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import sklearn_aim  # noqa: E402

project = "sklearn-aim"
author = "The sklearn-aim developers"
copyright = author
version = release = sklearn_aim.__version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "local_mathjax",
    "example_gallery",
    "docstrings",
]

templates_path = ["_templates"]
exclude_patterns = ["_build", "sg_execution_times.rst", "auto_examples/sg_execution_times.rst"]
root_doc = "index"
default_role = "py:obj"
# blocks without a language are formulas
highlight_language = "none"
pygments_style = "friendly"

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_use_plots = False
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# "Errors in the wild: $5" is no formula
myst_dmath_allow_labels = True
myst_dmath_allow_space = False
myst_dmath_allow_digits = False

if os.environ.get("SKLEARN_AIM_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "numpy": ("https://numpy.org/doc/stable/", None),
        "scipy": ("https://docs.scipy.org/doc/scipy/", None),
        "sklearn": ("https://scikit-learn.org/stable/", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = "sklearn-aim"
html_static_path = ["_static"]
html_css_files = ["sklearn_aim.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "sklearn-aim", "alt_text": "sklearn-aim, to the first page"},
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "navbar_end": ["theme-switcher"],
    "pygments_light_style": "friendly",
    "pygments_dark_style": "github-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {name: [] for name in ("index", "install", "published", "citing", "whats_new")}

mathjax_path = "mathjax/tex-svg.js"
mathjax_options = {"defer": "defer"}
# no menu, whose parts would have to be loaded; numbers of equations are Sphinx's
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    # all but those that need data or weights, and those whose figures are stored
    "filename_pattern": r"/(?!trec_question_types|deep_attention_layer_by_layer|real_attention_heads)[^/]+\.py$",
    # parts of examples
    "ignore_pattern": r"(^|/)_[^/]+\.py$",
    "within_subsection_order": "example_gallery.order",
    "reset_argv": "example_gallery.arguments",
    "image_scrapers": ("matplotlib", "example_gallery.saved_figures"),
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("sklearn_aim",),
    "reference_url": {"sklearn_aim": None},
    "default_thumb_file": str(Path(__file__).parent / "_static" / "logo.svg"),
    "min_reported_time": 1,
    "show_signature": False,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "download_all_examples": False,
    "abort_on_example_error": False,
    "plot_gallery": "True",
    # two examples at a time: each keeps to one core
    "parallel": 2,
}
