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
