"""What docstrings need to become pages: names that end in an underscore, and references of scikit-learn's own pages."""

import re

REFERENCE = re.compile(r":(?:ref|term):`([^`<]+?)\s*(?:<([^`>]+)>)?`", re.DOTALL)
QUOTED = re.compile(r"(``.*?``|`[^`]*`|\*\*.*?\*\*)")
# n_iter_, and the star of (*alpha.shape, 2)
BARE = re.compile(r"(?<=\w)_(?![\w`])|(?<=\()\*(?=\w)")


def drop_foreign_references(app, what, name, obj, options, lines):
    """Plain words in place of :ref: and :term:, which sklearn_aim's own docstrings don't use."""
    text = "\n".join(lines)
    if REFERENCE.search(text):
        lines[:] = REFERENCE.sub(r"\1", text).split("\n")


def escape_fitted_names(app, what, name, obj, options, lines):
    """Names such as n_iter_ in running text, which would be taken for links."""
    for k, line in enumerate(lines):
        parts = QUOTED.split(line)
        parts[::2] = [BARE.sub(r"\\\g<0>", part) for part in parts[::2]]
        lines[k] = "".join(parts)


def setup(app):
    """Register both: the first ahead of numpydoc, the second behind it."""
    app.connect("autodoc-process-docstring", drop_foreign_references, priority=100)
    app.connect("autodoc-process-docstring", escape_fitted_names, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
