"""Imports run one way, and the public names are all there is."""

import ast
from pathlib import Path

import pytest

import sklearn_aim

ROOT = Path(sklearn_aim.__file__).parent
LEAVES = {"parameters", "kernels"}
# what each room may import of the package
ALLOWED = {
    "kernels": {"kernels"},
    "parameters": set(),
    "sequences": LEAVES,
    "metrics": LEAVES,
    "inspection": LEAVES,
    "ragged": LEAVES,
    "channels": {"channels", *LEAVES},
    "priors": {"priors", *LEAVES},
    "algorithms": {"algorithms", "channels", "priors", *LEAVES},
    "datasets": {"datasets", "algorithms", "channels", *LEAVES},
    "preprocessing": {"preprocessing", "sequences", "ragged", *LEAVES},
    "bounds": {"bounds", "algorithms", "channels", "priors", *LEAVES},
    "estimators": {
        "estimators",
        "preprocessing",
        "algorithms",
        "channels",
        "priors",
        "sequences",
        "metrics",
        "ragged",
        *LEAVES,
    },
    "plotting": {"plotting", "bounds", "estimators", "priors", "sequences", "metrics", "ragged", *LEAVES},
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem != "__init__"))
def test_imports_run_downhill(path):
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for module in imports_of(path):
        if module.startswith("sklearn_aim."):
            assert module.split(".")[1] in ALLOWED[room], f"{path.name} of {room} imports {module}"


def named(node):
    """a.b.c of an expression, or what there is of it."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def unsafe_calls(tree):
    """Calls that run text as code, or files as objects."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, _, rest = named(node.func).partition(".")
        name = modules.get(first, first) + ("." + rest if rest else "")
        options = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if (
            name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads")
            or name.startswith(("os.exec", "os.spawn"))
            or name in ("joblib.load", "torch.load", "marshal.load", "marshal.loads", "shelve.open")
            or (name.startswith("subprocess.") and options.get("shell", False) is not False)
            or name in ("subprocess.getoutput", "subprocess.getstatusoutput")
            or options.get("allow_pickle", False) is not False
        ):
            yield name, node.lineno


def test_unsafe_calls_are_found():
    unsafe = """
import numpy as np, os, subprocess as sp
from pickle import load as read
eval("1"); os.system("x"); sp.run("x", shell=True); read(f); np.load(f, allow_pickle=True)
"""
    assert len(list(unsafe_calls(ast.parse(unsafe)))) == 5
    safe = "import re, numpy as np\nre.compile('x'); model.eval(); np.load(f, allow_pickle=False)"
    assert not list(unsafe_calls(ast.parse(safe)))


@pytest.mark.parametrize("folder", [ROOT, ROOT.parent / "examples", ROOT.parent / "benchmarks"], ids=lambda f: f.name)
def test_no_text_is_run_and_no_file_is_trusted(folder):
    found = [
        (path.name, *call)
        for path in sorted(folder.rglob("*.py"))
        for call in unsafe_calls(ast.parse(path.read_text()))
    ]
    assert not found


def test_modules_stay_small():
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path


def test_public_names():
    assert sorted(sklearn_aim.__all__) == sklearn_aim.__all__
    for name in sklearn_aim.__all__:
        # scikit-learn's scorer objects have no docstring of their own
        if not name.endswith("_scorer"):
            assert getattr(sklearn_aim, name).__doc__


@pytest.mark.parametrize(
    "estimator",
    [
        sklearn_aim.AMPAttentionRegressor(),
        sklearn_aim.AMPDeepAttentionRegressor(),
        sklearn_aim.BayesOptimalBound(),
        sklearn_aim.DeepBayesOptimalBound(),
        sklearn_aim.GDAttentionRegressor(),
        sklearn_aim.PositionMeanRegressor(),
        sklearn_aim.TokenWhitener(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_html_display_leads_to_the_docs(estimator):
    name = type(estimator).__name__
    assert f"https://sklearn-aim.readthedocs.io/en/stable/generated/sklearn_aim.{name}.html" in estimator._repr_html_()
    # where the page comes from
    assert f"   {name}\n" in (ROOT.parent / "docs" / "api.rst").read_text()
