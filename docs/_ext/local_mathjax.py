"""Copy MathJax and its licence out of an installed package, so that pages draw their formulas without a network."""

import importlib.metadata
import shutil
from pathlib import Path

PACKAGE = "django-static-mathjax"
FILES = ("es5/tex-svg.js", "LICENSE")


def copy_mathjax(app):
    """Put both files into the built site's _static/mathjax."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "mathjax"
    target.mkdir(parents=True, exist_ok=True)
    installed = importlib.metadata.files(PACKAGE) or []
    for name in FILES:
        source = next(path for path in installed if str(path).endswith(f"static/mathjax/{name}"))
        shutil.copyfile(source.locate(), target / Path(name).name)


def setup(app):
    """Register the copy."""
    app.connect("builder-inited", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
