"""The gallery: in which order examples stand, which of them run, with which arguments, and where their figures are."""

import functools
import re
import shutil
import tempfile
from pathlib import Path

from sphinx_gallery.scrapers import figure_rst

IMAGES = Path(__file__).parents[1] / "images"
# from the first steps to the last; what is not named stands at the end
ORDER = (
    "quickstart",
    "displays",
    "softmax_bounds",
    "hardmax_bounds",
    "how_many_sequences",
    "choosing_the_width",
    "finite_size",
    "gradient_descent_reaches_the_bound",
    "gradient_descent_and_tokens",
    "real_attention_heads",
    "custom_link",
    "deep_attention_layer_by_layer",
    "deep_attention_thresholds",
    "deep_attention_in_time",
    "trec_question_types",
)
# examples that write their figure with --output, and the arguments that keep them short
ARGUMENTS = {
    "quickstart": [],
    "gradient_descent_reaches_the_bound": ["--features", "80", "--seeds", "1"],
    "deep_attention_thresholds": ["--sequences", "20000"],
    "deep_attention_in_time": ["--seeds", "2"],
}
# not run: the page shows the stored figure of a full run
STORED = {
    "real_attention_heads": {
        "real_attention_heads.png": "Three heads of all-MiniLM-L6-v2 (some minutes on two cores).",
    },
    "deep_attention_layer_by_layer": {
        "deep_layers.png": "Two layers, 1000 features (a minute and a half).",
        "deep_three_layers.png": "Three layers, 400 features: ``--layers 3`` (some minutes).",
    },
}


def order(name):
    """Sort key of an example's file name."""
    stem = Path(name).stem
    return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)


@functools.cache
def output_folder():
    """Where examples of this build write their figures; it goes with the build."""
    return tempfile.TemporaryDirectory(prefix="sklearn_aim_gallery_")


def output_of(stem):
    """The figure of an example."""
    return Path(output_folder().name) / f"{stem}.png"


def arguments(gallery_conf, script_vars):
    """Command line of an example."""
    stem = Path(script_vars["src_file"]).stem
    if stem not in ARGUMENTS:
        return []
    return [*ARGUMENTS[stem], "--output", str(output_of(stem))]


def saved_figures(block, block_vars, gallery_conf):
    """Scraper of sphinx-gallery: figures that an example has written by itself."""
    written = output_of(Path(block_vars["src_file"]).stem)
    if not written.exists():
        return ""
    path = next(block_vars["image_path_iterator"])
    shutil.move(written, path)
    return figure_rst([path], gallery_conf["src_dir"])


def edit_page(app, docname, source):
    """Command lines of an introduction as code, and the stored figures of an example that is not run under it."""
    if not docname.startswith("auto_examples/"):
        return
    text = re.sub(r"\n\n(?=    python examples/)", "\n\n::\n\n", source[0])
    # where a figure lay while the pages were built is of no use to readers
    text = re.sub(r"(?<=figure: )\S*/(?=\w+\.png)", "", text)
    figures = STORED.get(docname.removeprefix("auto_examples/"), {})
    # the first code block, and the comment ahead of it
    place = text.rfind(".. GENERATED FROM", 0, text.find(".. code-block:: Python"))
    for name, caption in figures.items():
        figure = f".. figure:: /images/{name}\n\n    {caption}\n\n"
        text = text[:place] + figure + text[place:]
        place += len(figure)
    # names in backticks are the package's
    source[0] = ".. currentmodule:: sklearn_aim\n\n" + text


def setup(app):
    """Register the changes to pages."""
    app.connect("source-read", edit_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
