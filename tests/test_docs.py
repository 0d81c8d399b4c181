"""The pages of docs/: their code runs and prints what its comments say, and docstrings have what numpydoc asks for."""

import ast
import inspect
import re
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import sklearn_aim
from sklearn_aim.channels import LINKS
from sklearn_aim.priors import PRIORS

DOCS = Path(__file__).parents[1] / "docs"
# "py" in place of "python" marks what takes a cluster or a quarter of an hour: it is read, not run
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")
# seconds a page may take, compiling included: several times what it takes on an idle core
BUDGET = 240
# between a number printed and the one in its comment: rounding, and what another BLAS makes of a fit
TOLERANCE = 0.1

PAGES = {path.stem: BLOCK.findall(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
PAGES = {name: blocks for name, blocks in PAGES.items() if blocks}


@pytest.fixture
def _registries():
    """Links and priors that a page registers are gone afterwards."""
    before = dict(LINKS), dict(PRIORS)
    yield
    for registry, content in zip((LINKS, PRIORS), before, strict=True):
        registry.clear()
        registry.update(content)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("_registries")
def test_code_runs_and_prints_what_it_says(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page}
    start = time.perf_counter()
    for language, code in PAGES[page]:
        tree = ast.parse(code)
        if language == "py":
            continue
        lines = code.splitlines()
        for node in tree.body:
            capsys.readouterr()
            with warnings.catch_warnings():
                # searches try widths that are wrong
                warnings.simplefilter("ignore", ConvergenceWarning)
                exec(compile(ast.Module([node], []), page, "exec"), namespace)
            _, mark, comment = lines[node.end_lineno - 1].rpartition("  # ")
            printed = capsys.readouterr().out.strip()
            if mark and printed:
                compare(printed, comment)
    assert time.perf_counter() - start < BUDGET


def compare(printed, comment):
    """A comment that opens with a word in capitals, a dict or numbers says what is printed, up to a colon or comma."""
    if comment.startswith("{"):
        assert printed == comment
    elif comment.startswith(("True", "False")):
        assert printed.split()[0] == re.match(r"\w+", comment)[0], f"printed {printed}, said {comment}"
    elif re.match(r"[-\[(\d]", comment):
        claimed = np.array(NUMBER.findall(comment.split(": ")[0]), dtype=float)
        found = np.array(NUMBER.findall(printed), dtype=float)
        assert found.shape == claimed.shape, f"printed {printed}, said {comment}"
        np.testing.assert_allclose(found, claimed, rtol=TOLERANCE, atol=1e-9, err_msg=f"printed {printed}")


def test_what_is_compared():
    compare("[0.72367742 0.39219602]", "[0.7237 0.3922]: the bound")
    compare("True 9", "True 9")
    compare("0.5", "falls from 0.7")
    for printed, comment in (("0.5", "0.7"), ("False", "True, as it should"), ("[1. 2.]", "[1. 2. 3.]"), ("{}", "{1}")):
        with pytest.raises(AssertionError):
            compare(printed, comment)


# ----------------------------------------------------------------------------------------------------------------
# docstrings

# What is not asked for, and why; everything else that numpydoc knows is.
NOT_ASKED = {
    "ES01": "a summary may say it all",
    "SA01": "the pages of the user guide lead on",
    "EX01": "examples stand at classes and in the gallery",
    "PR07": "a name and a type may say it all (max_iter : int, default=200)",
    "PR08": "descriptions may open with a symbol: rho, beta, q_hat",
    "PR09": "or end in a formula",
    "RT03": "a type may say it all",
    "RT04": "as PR08",
    "SS02": "as PR08",
    "SS05": "nouns that end in s are no verbs",
}
# methods of one line, answers of which are what the line says
NOT_ASKED_OF_METHODS = {**NOT_ASKED, "PR01": "one line may say it all", "RT01": "one line may say it all"}
OTHERS = [
    "channels.Channel",
    "channels.GaussianChannel",
    "channels.HardmaxChannel",
    "channels.IdentityChannel",
    "channels.SoftmaxChannel",
    "channels.check.check_channel",
    "priors.BipartitePrior",
    "priors.Prior",
    "priors.SmallWidthPrior",
    "priors.SpectralPrior",
    "priors.WishartPrior",
    "priors.make_prior",
]
# scorers are objects of scikit-learn's, without a docstring of their own
OBJECTS = [name for name in sklearn_aim.__all__ if not name.endswith("_scorer")] + OTHERS


def named(name):
    """The object of a dotted name below sklearn_aim."""
    thing = sklearn_aim
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def own_methods(name):
    """Public methods of a class that this package defines."""
    thing = named(name)
    if inspect.isclass(thing):
        for method, function in inspect.getmembers(thing, inspect.isroutine):
            if not method.startswith("_") and function.__module__.startswith("sklearn_aim."):
                yield f"{name}.{method}"


@pytest.mark.parametrize("name", OBJECTS)
def test_numpydoc(name):
    pytest.importorskip("numpydoc")
    from numpydoc.validate import validate

    # imported by none of the package's own modules
    import sklearn_aim.channels.check  # noqa: F401

    # parameters of a constructor that is inherited are documented where it is defined
    inherited = inspect.isclass(named(name)) and "__init__" not in vars(named(name))
    of_object = {**NOT_ASKED, "PR01": "see above"} if inherited else NOT_ASKED
    findings = []
    for target, left_out in ((name, of_object), *((method, NOT_ASKED_OF_METHODS) for method in own_methods(name))):
        errors = validate(f"sklearn_aim.{target}")["errors"]
        findings += [f"{target}: {code} {message}" for code, message in errors if code not in left_out]
    assert not findings, "\n".join(findings)


def test_every_public_name_has_a_page():
    listed = set(re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(sklearn_aim.__all__) | set(OTHERS) <= listed


def test_checks_that_pages_name_exist():
    names = set()
    for path in DOCS.glob("*.md"):
        names |= set(re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", path.read_text(encoding="utf-8")))
    assert names
    for file, function in names:
        text = (DOCS.parent / file).read_text(encoding="utf-8")
        assert not function or f"\ndef {function}(" in text, f"{file}::{function}"


def test_every_example_has_its_place_in_the_gallery():
    text = (DOCS / "_ext" / "example_gallery.py").read_text(encoding="utf-8")
    order = re.search(r"^ORDER = (\(.*?^\))", text, re.DOTALL | re.MULTILINE)[1]
    assert set(ast.literal_eval(order)) == {path.stem for path in (DOCS.parent / "examples").glob("[!_]*.py")}
