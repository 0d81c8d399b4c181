"""Bad input is refused by name, loses nothing, and hard input never ends in NaN."""

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import SETTINGS, draw_teacher, refused
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TeacherError,
    TokenWhitener,
    attention_error,
    attention_r2_score,
    estimation_error,
    make_attention_sequences,
    register_link,
)
from sklearn_aim.channels import LINKS, IdentityChannel

BAD = (ValueError, TypeError)
MODELS = [AMPAttentionRegressor, GDAttentionRegressor]


@pytest.fixture(scope="module")
def data():
    """Maps over three tokens for each link."""
    return {link: draw_teacher(link, True, n_samples=30, n_features=4) for link in ("identity", "softmax", "hardmax")}


# ----------------------------------------------------------------------------------------------------------------
# parameters of the estimator

BAD_PARAMETERS_OF_ALL = [
    *(("width", value, "width r") for value in (0, -1, True, "0.5", None, [0.5], 1 + 0j)),
    *(("width", value, "r/d") for value in (0.0, -0.5, np.nan, np.inf, -np.inf, np.float32("nan"))),
    *(("max_iter", value, ">= 1") for value in (0, -5)),
    *(("max_iter", value, "an int") for value in (1.5, "9", None, True, np.inf)),
    *(("tol", value, ">= 0") for value in (-1e-3, np.nan, np.inf)),
    *(("tol", value, "a number") for value in ("1e-3", None, True)),
    *(("inverse_temperature", value, "> 0") for value in (0, 0.0, -1.0, np.nan, np.inf)),
    *(("inverse_temperature", value, "a number") for value in ("1", None, True)),
    *(("tied", value, "True or False") for value in ("yes", None, 1)),
    *(("n_tokens", value, ">= 1") for value in (0, -3)),
    *(("n_tokens", value, "an int") for value in (1.5, "3", True)),
]
BAD_PARAMETERS_OF_AMP = [
    *(("noise", value, ">= 0") for value in (-0.1, np.nan, np.inf)),
    ("noise", "guess", "'estimate'"),
    *(("noise", value, "a number") for value in (None, True, [0.1])),
    *(("damping", value, "damping") for value in (-0.1, 1, 1.5, np.nan, None, True)),
    ("damping", "auto", "'adaptive'"),
    ("link", "relu", "['hardmax', 'identity', 'softmax'"),
    ("link", "Softmax", "['hardmax', 'identity', 'softmax'"),
    *(("link", value, "string") for value in (None, 3, ["softmax"])),
]
BAD_PARAMETERS_OF_GD = [
    ("link", "hardmax", "AMPAttentionRegressor(link='hardmax')"),
    *(("link", value, "['identity', 'softmax']") for value in ("relu", "Softmax", None, 3, ["softmax"])),
    *((name, value, ">= 1") for name in ("n_layers", "n_iter_no_change", "n_init", "batch_size") for value in (0, -2)),
    *(
        (name, value, "an int")
        for name in ("n_layers", "n_iter_no_change", "n_init", "n_refreshes")
        for value in (1.5, "2", None, True)
    ),
    *(("batch_size", value, "an int") for value in (10.0, "auto", True)),
    *(("n_jobs", value, "an int") for value in (1.5, "all", True)),
    ("n_jobs", 0, "-1 for all cores"),
    *((name, value, "finite") for name in ("skip", "weight_decay", "momentum") for value in (np.nan, np.inf)),
    *((name, value, "a number") for name in ("skip", "weight_decay", "momentum") for value in (None, "1", True)),
    *((name, -0.1, ">= 0") for name in ("weight_decay", "momentum")),
    *(("momentum", value, "below 1") for value in (1, 1.5)),
    *((name, value, "> 0") for name in ("learning_rate", "init_scale") for value in (0.0, -0.1, np.nan, np.inf)),
    *((name, value, "a number") for name in ("learning_rate", "init_scale") for value in (None, "0.1", True)),
    *(("validation_fraction", value, "> 0") for value in (0.0, -0.1, np.nan)),
    *(("validation_fraction", value, "below 1") for value in (1, 1.0, 3)),
    *(("validation_fraction", value, "a number") for value in (None, "0.1", True)),
    *(("loss", value, "['squared_error', 'cross_entropy', 'log_ratio']") for value in ("mse", "Cross_entropy")),
    *(("solver", value, "['auto', 'lbfgs', 'adam', 'sgd']") for value in ("newton", "LBFGS")),
    *(("scaling", value, "'attention-index', 'sequence-index'") for value in ("none", "attention_index")),
    *((name, value, "a string") for name in ("loss", "solver", "scaling") for value in (None, 3, ["adam"])),
    ("center", "no", "'auto'"),
    *(("center", value, "True or False") for value in (None, 1)),
    *((name, value, "True or False") for name in ("fit_bias", "average") for value in (None, 1, "yes")),
    *((name, value, "True or False") for name in ("early_stopping", "warm_start") for value in (None, 1, "yes")),
    ("random_state", "dice", "seed"),
]
BAD_PARAMETERS = [
    *((AMPAttentionRegressor, *case) for case in BAD_PARAMETERS_OF_ALL + BAD_PARAMETERS_OF_AMP),
    *((GDAttentionRegressor, *case) for case in BAD_PARAMETERS_OF_ALL + BAD_PARAMETERS_OF_GD),
]


def readable(value):
    return value.__name__[:3] if isinstance(value, type) else repr(value)[:30]


@pytest.mark.parametrize(("model", "name", "value", "mend"), BAD_PARAMETERS, ids=readable)
def test_parameters(data, model, name, value, mend):
    estimator = model(**{name: value})
    # scikit-learn's rule: nothing is checked before fit, not even by set_params
    estimator.set_params(**{name: value})
    shown = f"{value!r}" if name == "random_state" else f"{name}={value!r}"
    refused(lambda: estimator.fit(data["softmax"].X, data["softmax"].y), shown, mend)
    if hasattr(estimator, "partial_fit"):
        refused(lambda: estimator.partial_fit(data["softmax"].X, data["softmax"].y), shown, mend)


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (AMPAttentionRegressor, "clamp", "no"),
        (AMPAttentionRegressor, "warm_start", "no"),
        (AMPAttentionRegressor, "verbose", "loud"),
        (GDAttentionRegressor, "verbose", "loud"),
    ],
)
def test_switches(data, model, name, value):
    refused(lambda: model(**{name: value}).fit(data["softmax"].X, data["softmax"].y), name)


def test_parameters_that_exclude_each_other(data):
    X, y = data["softmax"].X, data["softmax"].y

    def fit(**params):
        return lambda: GDAttentionRegressor(**params).fit(X, y)

    refused(fit(solver="lbfgs", batch_size=10), "batch_size=10", "solver='adam' or 'sgd'")
    refused(fit(link="identity", loss="cross_entropy"), "loss='cross_entropy'", "link='identity'", "'squared_error'")
    refused(fit(link="identity", n_layers=2), "n_layers=2", "link='softmax'")
    refused(lambda: GDAttentionRegressor(solver="lbfgs").partial_fit(X, y), "partial_fit", "solver='adam' or 'sgd'")
    for fraction in (0.99, 0.5):
        held = GDAttentionRegressor(early_stopping=True, validation_fraction=fraction)
        refused(lambda e=held: e.fit(X[:1], y[:1]), f"validation_fraction={fraction}", "n_samples=1", "early_stopping")


@pytest.mark.parametrize("change", [{"width": 2}, {"n_layers": 2}, {"tied": False}, {"fit_bias": True}], ids=str)
def test_partial_fit_of_another_shape(data, change):
    X, y = data["softmax"].X, data["softmax"].y
    estimator = GDAttentionRegressor(random_state=0).partial_fit(X, y)
    expected = estimator.predict(X)
    estimator.set_params(**change)
    ((name, value),) = change.items()
    refused(lambda: estimator.partial_fit(X, y), f"{name}={value!r}", "Use fit")
    np.testing.assert_array_equal(estimator.predict(X), expected)


# ----------------------------------------------------------------------------------------------------------------
# shapes of X


ALL = [AMPAttentionRegressor(), GDAttentionRegressor(), PositionMeanRegressor(), TokenWhitener()]


@pytest.mark.parametrize("estimator", ALL)
def test_dimensions_of_x(data, estimator):
    X, y = data["softmax"].X, data["softmax"].y
    refused(lambda: estimator.fit(X[None], y), "X must have shape (n_samples, n_tokens, n_features)", "4 dimensions")
    refused(lambda: estimator.fit(X[:0], y[:0]), "0 sample(s)", "(0, 3, 4)")
    refused(lambda: estimator.fit(X[:, :0], y), "0 token(s)", "(30, 0, 4)")
    refused(lambda: estimator.fit(X[:, :, :0], y), "0 feature(s)", "(30, 3, 0)")
    refused(lambda: estimator.fit(np.empty((30, 0)), y), "0 feature(s)", "(30, 0)")


@pytest.mark.parametrize("estimator", ALL)
def test_too_few_dimensions_of_x(data, estimator):
    for X in (data["softmax"].X[:, 0, 0], 1.0, None):
        refused(lambda X=X: estimator.fit(X, data["softmax"].y), "X ", "(n_samples, n_tokens, n_features)")


@pytest.mark.parametrize("model", MODELS)
def test_ragged_sequences(data, model):
    X, y = data["softmax"].X[:2], data["softmax"].y[:2]
    for ragged in ((X[0], X[1, :, :3]), [[[0.1, 0.2], [0.3]], [[0.1, 0.2], [0.3, 0.4]]]):
        refused(lambda ragged=ragged: model().fit(ragged, y), "X is ragged", "Pad")
    # lists of unequal length are taken where masks are, with maps of their own lengths
    masked = "mask" in inspect.signature(model().fit).parameters
    for ragged in ([X[0].tolist(), X[1, :2].tolist()], [X[0], X[1, :2]]):
        words = ("y[1] has shape (3, 3)", "X[1] has 2 tokens") if masked else ("X is ragged", "Pad")
        refused(lambda ragged=ragged, words=words: model().fit(ragged, y), *words)


@pytest.mark.parametrize("model", MODELS)
def test_ragged_object_arrays_and_maps(data, model):
    X, y = data["softmax"].X[:2], data["softmax"].y[:2]
    pieces = np.empty(2, dtype=object)
    pieces[:] = [X[0], X[1, :2]]
    refused(lambda: model().fit(pieces, y), "X is ragged")
    refused(lambda: model().fit(X, [y[0].tolist(), y[1, :2].tolist()]), "y is ragged")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("link", ["identity", "softmax", "hardmax"])
def test_nan_and_infinity(data, link, value):
    X, y = data[link].X.copy(), data[link].y.copy()
    X[3, 1, 2] = value
    kind = "NaN" if np.isnan(value) else "infinity"
    for estimator in [model(link=link) for model in MODELS if (link, model) != ("hardmax", GDAttentionRegressor)]:
        refused(lambda e=estimator: e.fit(X, data[link].y), f"Input X contains {kind}")
        bad = y.copy()
        bad[5, 2, 0] = value
        refused(lambda e=estimator, y=bad: e.fit(data[link].X, y), f"Input y contains {kind}")
    refused(lambda: TokenWhitener().fit(X), f"Input X contains {kind}")
    refused(lambda: PositionMeanRegressor().fit(X, data[link].y), f"Input X contains {kind}")


@pytest.mark.parametrize("model", MODELS)
def test_complex_numbers(data, model):
    X, y = data["softmax"].X, data["softmax"].y
    refused(lambda: model().fit(X + 0j, y), "Complex data not supported")
    refused(lambda: model().fit(X, y + 0j), "Complex data not supported")


def test_one_sample(data):
    for teacher in data.values():
        estimator = AMPAttentionRegressor(link=teacher.params["link"])
        refused(lambda e=estimator, t=teacher: e.fit(t.X[:1], t.y[:1]), "n_samples = 1", "at least 2")
    refused(lambda: TokenWhitener().fit(np.ones((1, 1, 4))), "n_samples = 1", "at least 2")


def test_flattened_sequences(data):
    X, y = data["softmax"].X, data["softmax"].y
    flat = X.reshape(30, 12)
    for model in (*MODELS, PositionMeanRegressor, TokenWhitener):
        estimator = model(n_tokens=5)
        refused(lambda e=estimator: e.fit(flat, y), "X has 12 columns", "n_tokens=5", "Flatten")
        refused(lambda e=estimator: e.fit(X, y), "X has 3 tokens a sequence", "n_tokens=5", "n_tokens=None")
    # one token a row, since n_tokens is not given
    for estimator in (AMPAttentionRegressor(), GDAttentionRegressor()):
        refused(lambda e=estimator: e.fit(flat, y), "y has shape (30, 3, 3)", "(30, 1, 12)", "set n_tokens")
        refused(lambda e=estimator: e.fit(flat, np.ones(30)), "n_tokens=1", "at least 2 tokens")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("link", ["softmax", "hardmax"])
def test_one_token_has_no_attention(link, tied):
    X = np.random.default_rng(0).standard_normal((20, 1, 4))
    estimator = AMPAttentionRegressor(link=link, tied=tied)
    refused(lambda: estimator.fit(X, np.ones((20, 1, 1))), "n_tokens=1", f"link='{link}'", "2")
    fitted = AMPAttentionRegressor(link="identity").fit(X, X[:, :1, :1] * X[:, :1, :1])
    fitted.set_params(link=link, tied=tied)
    refused(lambda: fitted.predict(X), "n_tokens=1", f"link='{link}'")


def test_one_token_sees_half_of_an_untied_layer():
    # x^T S x is blind to the antisymmetric part of S
    X = np.random.default_rng(0).standard_normal((20, 1, 4))
    for model in MODELS:
        estimator = model(link="identity", tied=False)
        refused(lambda e=estimator: e.fit(X, X[:, :1, :1]), "n_tokens=1", "tied=False", "tied=True")
    refused(
        lambda: BayesOptimalBound(n_tokens=1, link="identity", tied=False).estimation_error(0.1), "n_tokens=1", "tied"
    )


def test_too_many_tokens_for_tied_hardmax():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 7, 3))
    y = np.tile(np.eye(7), (30, 1, 1))
    refused(lambda: AMPAttentionRegressor(link="hardmax").fit(X, y), "n_tokens=7", "hardmax", "tied", "2 to 6")
    refused(lambda: BayesOptimalBound(n_tokens=7, link="hardmax").estimation_error(0.1), "n_tokens=7", "2 to 6")
    refused(lambda: make_attention_sequences(5, 7, 3, link="hardmax"), "n_tokens=7", "2 to 6")
    # untied rows are independent: any number will do
    X, y = make_attention_sequences(60, 7, 3, link="hardmax", tied=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = AMPAttentionRegressor(link="hardmax", tied=False).fit(X, y)
    assert np.isfinite(estimator.predict(X)).all()


# ----------------------------------------------------------------------------------------------------------------
# y


@pytest.mark.parametrize("link", ["identity", "softmax", "hardmax"])
def test_shape_of_y(data, link):
    X, y = data[link].X, data[link].y
    by_descent = [GDAttentionRegressor(link=link)] if link != "hardmax" else []
    for estimator in (AMPAttentionRegressor(link=link), *by_descent, PositionMeanRegressor()):
        refused(lambda e=estimator: e.fit(X, y[:-1]), "inconsistent numbers of samples: [30, 29]", "y needs")
        refused(lambda e=estimator: e.fit(X, 1.0), "[30, 1]", "y needs")
        refused(lambda e=estimator: e.fit(X, None), "requires y", "None")
        for wrong in (y[:, :2, :2], y[:, :, :2], y[:, 0], y[:, 0, 0], y[..., None], y.reshape(30, 9)[:, :8]):
            refused(lambda e=estimator, y=wrong: e.fit(X, y), f"y has shape {wrong.shape}", "(30, 3, 3)", "or (30, 9)")


def test_softmax_labels(data):
    X, y = data["softmax"].X, data["softmax"].y
    estimator = AMPAttentionRegressor(link="softmax")
    refused(lambda: estimator.fit(X, 1.1 * y), "rows of y must sum to 1", "1.1 in y[0, 0]", "Normalise")
    # weights over queries in place of keys
    refused(lambda: estimator.fit(X, y.transpose(0, 2, 1)), "rows of y must sum to 1")
    bad = y.copy()
    bad[7, 1] = [0.95, 0.25, -0.2]
    refused(lambda: estimator.fit(X, bad), "y must hold attention weights > 0", "y[7, 1, 2]=-0.2", "zeros")
    # zeros are not seen, and one-hot rows then show nothing
    bad[7, 1] = [0.75, 0.25, 0]
    with pytest.warns(UserWarning, match="y holds zeros.*mask"):
        estimator.fit(X, bad)
    assert np.isfinite(estimator.predict(X)).all()
    with pytest.warns(UserWarning, match="y holds zeros"):
        refused(lambda: estimator.fit(X, data["hardmax"].y), "y shows nothing", "link='hardmax'")


def test_softmax_labels_in_single_precision(data):
    # rows that sum to 1 up to rounding are fine, weights that underflow are zeros
    X, y = data["softmax"].X.astype(np.float32), data["softmax"].y.astype(np.float32)
    assert np.abs(y.sum(axis=2) - 1).max() > 0
    AMPAttentionRegressor(width=0.5, noise=0.1).fit(X, y)
    sharp, hot = make_attention_sequences(30, 3, 4, inverse_temperature=300.0, dtype=np.float32, random_state=0)
    assert (hot == 0).any()
    with pytest.warns(UserWarning, match="y holds zeros"):
        estimator = AMPAttentionRegressor(inverse_temperature=300.0, noise=0.1).fit(sharp, hot)
    assert np.isfinite(estimator.predict(sharp)).all()


def test_labels_of_the_cross_entropy(data):
    X, y = data["softmax"].X, data["softmax"].y
    estimator = GDAttentionRegressor(loss="cross_entropy", max_iter=1, tol=0.0)
    refused(lambda: estimator.fit(X, 1.1 * y), "rows of y must sum to 1", "1.1 in y[0, 0]", "Normalise")
    refused(lambda: estimator.partial_fit(X, 1.1 * y), "rows of y must sum to 1", "1.1 in y[0, 0]", "Normalise")
    bad = y.copy()
    bad[7, 1] = [1.2, 0.25, -0.45]
    refused(lambda: estimator.fit(X, bad), "y must hold attention weights >= 0", "y[7, 1, 2]=-0.45")
    # zeros are fine: one-hot labels, and weights that underflow
    assert np.isfinite(estimator.fit(X, data["hardmax"].y).best_loss_)


def test_hardmax_labels(data):
    X, y = data["hardmax"].X, data["hardmax"].y
    estimator = AMPAttentionRegressor(link="hardmax")
    refused(lambda: estimator.fit(X, data["softmax"].y), "rows of y must be one-hot", "y[0, 0]", "link='softmax'")
    for row in ([2.0, 0, 0], [0.0, 0, 0], [1.0, 1, 0], [-1.0, 1, 1], [0.5, 0.5, 0]):
        bad = y.copy()
        bad[4, 2] = row
        refused(lambda y=bad: estimator.fit(X, y), "one-hot", "y[4, 2]")


@pytest.mark.parametrize("shift", [1, 2])
def test_hardmax_labels_that_no_symmetric_layer_has(data, shift):
    X, y = data["hardmax"].X, data["hardmax"].y.copy()
    # h_01 > h_00, h_02 and h_12 > h_11, h_10 and h_20 > h_22, h_21: round and round
    y[9] = np.roll(np.eye(3), shift, axis=1)
    columns = str(np.argmax(y[9], axis=1).tolist())
    refused(lambda: AMPAttentionRegressor(link="hardmax").fit(X, y), f"y[9] selects columns {columns}", "tied=False")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = AMPAttentionRegressor(link="hardmax", tied=False).fit(X, y)
    assert np.isfinite(estimator.interaction_).all()


def test_hardmax_cycles_are_found_wherever_they_are(data):
    X = np.random.default_rng(0).standard_normal((30, 5, 4))
    y = np.tile(np.eye(5), (30, 1, 1))
    # tokens 1, 3, 4 in a cycle, 0 and 2 on the way to it
    y[11] = np.eye(5)[[2, 3, 1, 4, 1]]
    refused(lambda: AMPAttentionRegressor(link="hardmax").fit(X, y), "y[11]", "cycle")


# ----------------------------------------------------------------------------------------------------------------
# prediction and scores


def test_prediction_input(data):
    teacher = data["softmax"]
    X, y = teacher.X, teacher.y
    for model in (teacher.estimator(), GDAttentionRegressor(), PositionMeanRegressor()):
        estimator = model.fit(X, y)
        refused(lambda e=estimator: e.predict(X[:, :, :3]), "X has 3 features", "expecting 4")
        refused(lambda e=estimator: e.predict(X[None]), "X must have shape", "4 dimensions")
        refused(lambda e=estimator: e.predict(X[:0]), "0 sample(s)")
        refused(lambda e=estimator: e.score(X, y[:-1]), "[29, 30]")
        refused(lambda e=estimator: e.score(X, y[:, :2, :2]), "y_true", "(30, 2, 2)")
    baseline = PositionMeanRegressor().fit(X, y)
    refused(lambda: baseline.predict(X[:, :2]), "X has 2 tokens", "has 3")


@pytest.mark.parametrize("metric", [attention_error, attention_r2_score])
def test_metrics(data, metric):
    y = data["softmax"].y
    bad = y.copy()
    bad[2, 1, 0] = np.nan
    refused(lambda: metric(y, y[:-1]), "[30, 29]")
    refused(lambda: metric(y, y[:, :2, :2]), "y_true and y_pred", "(30, 2, 2)")
    refused(lambda: metric(bad, y), "y_true contains NaN")
    refused(lambda: metric(y, bad), "y_pred contains NaN")
    refused(lambda: metric(y[:0], y[:0]), "0 sample(s)")
    refused(lambda: metric(1e300 * y, y), "y_true and y_pred", "too large to square")
    refused(lambda: metric(y, y, sample_weight=np.ones(3)), "[30, 30, 3]")
    refused(lambda: metric(y, y, sample_weight=np.full(30, np.nan)), "sample_weight contains NaN")
    refused(lambda: metric(y, y, sample_weight=-np.ones(30)), "sample_weight")
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        metric(y, y, sample_weight=np.zeros(30))


def test_metrics_of_unlike_maps():
    refused(lambda: attention_error(np.ones((4, 2, 3)), np.ones((4, 3, 2))), "y_true", "y_pred")


def test_estimation_error_input():
    refused(lambda: estimation_error(np.eye(3), np.eye(4)), "interaction_true and interaction", "(3, 3) and (4, 4)")
    refused(lambda: estimation_error(np.eye(3), np.full((3, 3), np.nan)), "interaction contains NaN")
    refused(lambda: estimation_error(np.full((3, 3), np.inf), np.eye(3)), "interaction_true contains infinity")


def test_estimation_error_of_oblong_interactions():
    refused(lambda: estimation_error(np.ones((3, 4)), np.ones((3, 4))), "interaction", "(3, 4)")


@pytest.mark.parametrize("size", [1, 3])
def test_teacher_error_input(data, size):
    teacher = data["softmax"]
    callback = TeacherError(np.eye(size))
    refused(
        lambda: teacher.estimator().fit(teacher.X, teacher.y, callback=callback), "interaction", f"({size}, {size})"
    )


# ----------------------------------------------------------------------------------------------------------------
# bounds, data sets, whitener, links


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        *(("width_ratio", value, ">= 0") for value in (-0.5, np.nan, np.inf)),
        *(("width_ratio", value, "a number") for value in ("0.5", None, True, 1j)),
        *(("noise", value, ">= 0") for value in (-0.5, np.nan, np.inf)),
        *(("noise", value, "a number") for value in ("estimate", None, True)),
        *(("n_tokens", value, ">= 1") for value in (0, -2)),
        *(("n_tokens", value, "an int") for value in (2.0, np.nan, "2", None, True)),
        ("n_tokens", 1, "at least 2"),
        *(("inverse_temperature", value, "> 0") for value in (0, -1.0, np.nan, np.inf)),
        *(("inverse_temperature", value, "a number") for value in ("1", None)),
        *(("link", value, "['hardmax', 'identity', 'softmax'") for value in ("relu", None, 3)),
        ("link", ["softmax"], "softmax"),
        *(("tied", value, "True or False") for value in (1, "yes", None)),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_bound_parameters(name, value, mend):
    bound = BayesOptimalBound(**{"width_ratio": 0.5, name: value})
    for call in (
        lambda: bound.estimation_error(0.1),
        lambda: bound.test_error(0.1),
        lambda: bound.free_entropy(0.1),
        lambda: bound.mutual_information(0.1),
        lambda: bound.state_evolution(0.1),
        lambda: bound.sample_size(0.5, 100),
        bound.recovery_threshold,
        bound.weak_recovery_threshold,
    ):
        refused(call, f"{name}={value!r}", mend)


METHODS = ["estimation_error", "overlap", "information", "test_error", "free_entropy", "mutual_information"]


@pytest.mark.parametrize("method", [*METHODS, "state_evolution"])
def test_alpha(method):
    call = getattr(BayesOptimalBound(0.5), method)
    for alpha in (-0.1, np.nan, np.inf, [0.1, -0.1]):
        refused(lambda a=alpha: call(a), f"alpha={alpha!r}", "finite and >= 0")
    refused(lambda: call(), "alpha=None", "from_estimator")


@pytest.mark.parametrize("alpha", ["much", 1j])
def test_alpha_that_is_no_number(alpha):
    refused(lambda: BayesOptimalBound(0.5).estimation_error(alpha), "alpha")


def test_trajectory_input():
    bound = BayesOptimalBound(0.5)
    refused(lambda: bound.state_evolution([0.1, 0.2]), "alpha=[0.1, 0.2]", "one number")
    for n_iter in (0, -1):
        refused(lambda n=n_iter: bound.state_evolution(0.1, n_iter=n), f"n_iter={n_iter}", ">= 1")
    for n_iter in (1.5, "3", None, True):
        refused(lambda n=n_iter: bound.state_evolution(0.1, n_iter=n), f"n_iter={n_iter!r}", "an int")
    refused(lambda: bound.state_evolution(0.1, damping="much"), "damping='much'", "a number")
    refused(lambda: bound.state_evolution(0.1, damping=1.0), "damping=1.0", "below 1")
    refused(lambda: bound.state_evolution(0.1, damping=np.nan), "damping=nan", "below 1")
    refused(lambda: bound.state_evolution(0.1, n_iter=3, damping=[0.1, 0.2]), "damping has shape (2,)", "n_iter=3")


def test_sample_size_input():
    bound = BayesOptimalBound(0.5)
    for error in (-0.1, np.nan):
        refused(lambda e=error: bound.sample_size(e, 100), f"error={error}", ">= 0")
    for error in ("small", None, True):
        refused(lambda e=error: bound.sample_size(e, 100), f"error={error!r}", "a number")
    for n_features in (0, -3):
        refused(lambda d=n_features: bound.sample_size(0.5, d), f"n_features={n_features}", ">= 1")
    for n_features in (1.5, "9", None, True):
        refused(lambda d=n_features: bound.sample_size(0.5, d), f"n_features={n_features!r}", "an int")
    for hard in (BayesOptimalBound(0.5, link="hardmax"), BayesOptimalBound(0.5, noise=0.1)):
        refused(lambda b=hard: b.sample_size(0, 100), "error=0", "positive error")
    for width in (None, 0, 1.5):
        refused(lambda w=width: BayesOptimalBound(0.0).sample_size(0.5, 100, width=w), f"width={width!r}", "int >= 1")


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        *((n, v, ">= 1") for n in ("n_samples", "n_tokens", "n_features") for v in (0, -1)),
        *((n, v, "an int") for n in ("n_samples", "n_tokens", "n_features") for v in (1.5, "9", None, True)),
        *(("width", value, "width r") for value in (0, -1, True, "0.5", None)),
        *(("width", value, "r/d") for value in (0.0, np.nan, np.inf)),
        *(("noise", value, ">= 0") for value in (-0.1, np.nan, np.inf)),
        *(("noise", value, "a number") for value in ("estimate", None, True)),
        *(("inverse_temperature", value, "> 0") for value in (0, -1.0, np.nan, np.inf)),
        *(("link", value, "['hardmax', 'identity', 'softmax'") for value in ("relu", None, 3)),
        ("link", ["softmax"], "softmax"),
        ("tied", "yes", "True or False"),
        ("tied", None, "True or False"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_data_set_parameters(name, value, mend):
    refused(
        lambda: make_attention_sequences(**{"n_samples": 5, "n_features": 4, name: value}), f"{name}={value!r}", mend
    )


def test_data_set_of_a_given_interaction():
    def make(interaction, **kwargs):
        return lambda: make_attention_sequences(5, 2, 4, interaction=interaction, **kwargs)

    refused(make(np.eye(3)), "interaction has shape (3, 3)", "n_features=4")
    refused(make(np.ones(4)), "interaction has shape (4,)", "n_features=4")
    refused(make(np.triu(np.ones((4, 4)))), "interaction must be symmetric", "tied=False")
    for dtype in ("float16", int, complex):
        refused(lambda t=dtype: make_attention_sequences(5, 2, 4, dtype=t), "dtype", "float64 or float32")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_set_of_an_interaction_that_is_not_finite(value, tied):
    interaction = np.full((4, 4), value)
    refused(
        lambda: make_attention_sequences(5, 2, 4, interaction=interaction, tied=tied),
        "interaction contains " + ("NaN" if np.isnan(value) else "infinity"),
    )


def test_whitener_parameters(data):
    X = data["softmax"].X
    for name, high in (("ridge", ">= 0"), ("drop_below", ">= 0")):
        for value in (-0.1, np.nan, np.inf):
            refused(lambda n=name, v=value: TokenWhitener(**{n: v}).fit(X), f"{name}={value}", high)
        for value in ("0.1", None, True):
            refused(lambda n=name, v=value: TokenWhitener(**{n: v}).fit(X), f"{name}={value!r}", "a number")
    refused(lambda: TokenWhitener(drop_below=1.5).fit(X), "drop_below=1.5", "below 1")
    refused(lambda: TokenWhitener(n_tokens=0).fit(X), "n_tokens=0", ">= 1")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e5 / 3])
def test_whitener_of_equal_tokens(value, dtype):
    refused(lambda: TokenWhitener().fit(np.full((500, 2, 3), value, dtype=dtype)), "X holds tokens", "equal")


def test_whitener_of_huge_tokens(data):
    refused(lambda: TokenWhitener().fit(1e200 * data["softmax"].X), "X holds features", "too large")


def test_whitened_input(data):
    X = data["softmax"].X
    whitener = TokenWhitener().fit(X)
    refused(lambda: whitener.transform(X[:, :, :3]), "X has 3 features", "expecting 4")
    refused(lambda: whitener.inverse_transform(X[:, :, :3]), "X has shape (30, 3, 3)", "4 features")
    refused(lambda: whitener.inverse_transform(X[0, 0]), "X has shape (4,)", "4 features")
    refused(lambda: whitener.interaction_to_raw(np.eye(3)), "interaction has shape (3, 3)", "4 features")


def test_whitened_input_in_two_dimensions(data):
    whitener = TokenWhitener(n_tokens=3).fit(data["softmax"].X.reshape(30, 12))
    refused(lambda: whitener.inverse_transform(np.ones((30, 10))), "X", "(30, 10)", "4 features")


@pytest.fixture
def _links():
    before, name = dict(LINKS), IdentityChannel.name
    yield
    LINKS.clear()
    LINKS.update(before)
    IdentityChannel.name = name


@pytest.mark.usefixtures("_links")
def test_registering_links():
    for not_a_channel in (3, "softmax", dict, IdentityChannel(2)):
        refused(lambda c=not_a_channel: register_link("mine", c), "channel_class", "Channel")
    for name in ("identity", "softmax", "hardmax"):
        refused(lambda n=name: register_link(n, IdentityChannel), f"name='{name}'", "another name")
    assert "mine" not in LINKS
    assert LINKS["softmax"] is not IdentityChannel


@pytest.mark.usefixtures("_links")
@pytest.mark.parametrize("name", [3, None, ["mine"]])
def test_names_of_links(name):
    refused(lambda: register_link(name, IdentityChannel), "name")


@pytest.mark.usefixtures("_links")
def test_registering_a_built_in_class_keeps_its_name(data):
    register_link("plain", type("Plain", (IdentityChannel,), {}))
    assert IdentityChannel.name == "identity"
    refused(lambda: register_link("mine", LINKS["softmax"]), "channel_class=SoftmaxChannel", "'softmax'")
    refused(lambda: AMPAttentionRegressor().fit(data["softmax"].X[:, :1], np.ones((30, 1, 1))), "link='softmax'")


# ----------------------------------------------------------------------------------------------------------------
# nothing is lost by a failed fit

FAILURES = {
    "other features, bad labels": lambda e, X, y: e.fit(X[:, :, :3], 1.1 * y),
    "flattened labels that don't sum to 1": lambda e, X, y: e.fit(X, 1.1 * y.reshape(30, 9)),
    "flattened sequences without n_tokens": lambda e, X, y: e.fit(X.reshape(30, 12), y),
    "other tokens, maps of three": lambda e, X, y: e.fit(X[:, :2], y),
    "missing labels": lambda e, X, y: e.fit(X[:, :, :2], None),
    "NaN": lambda e, X, y: e.fit(np.full((30, 3, 2), np.nan), y),
    "a frame of other columns": lambda e, X, y: e.fit(pd.DataFrame(X.reshape(30, 12)).rename(columns=str), y),
    "a bad parameter": lambda e, X, y: e.set_params(width=-1).fit(X[:, :, :3], y),
}
FAILURES_OF_AMP = {
    "one sample": lambda e, X, y: e.fit(X[:1, :, :3], y[:1]),
    "a callback that raises": lambda e, X, y: e.fit(X[:, :, :3], y, callback=lambda state: {}["missing"]),
}
FAILURES_OF_GD = {
    "weights of other sequences": lambda e, X, y: e.fit(X[:, :, :3], y, sample_weight=np.ones(29)),
    "no weight": lambda e, X, y: e.fit(X[:, :, :3], y, sample_weight=np.zeros(30)),
    "features that overflow": lambda e, X, y: e.fit(1e200 * X[:, :, :3], y),
    "nothing left to learn from": lambda e, X, y: e.set_params(early_stopping=True).fit(X[:1, :, :2], y[:1]),
    "other features in a further step": lambda e, X, y: e.set_params(solver="adam").partial_fit(X[:, :, :3], y),
    "bad labels in a further step": lambda e, X, y: e.partial_fit(X, 1.1 * y),
    "a solver without steps": lambda e, X, y: e.set_params(solver="lbfgs").partial_fit(X[:, :2], y[:, :2, :2]),
    "a step on features that overflow": lambda e, X, y: e.partial_fit(1e200 * X, y),
    "weights that fail halfway": lambda e, X, y: e.partial_fit(X, y, sample_weight=Interrupting()),
}


class Interrupting:
    """Something that fails halfway through the checks."""

    def __array__(self, *args, **kwargs):
        raise KeyError("halfway")


@pytest.mark.parametrize(
    ("model", "failure"),
    [
        *((AMPAttentionRegressor, failure) for failure in FAILURES | FAILURES_OF_AMP),
        *((GDAttentionRegressor, failure) for failure in FAILURES | FAILURES_OF_GD),
    ],
    ids=readable,
)
def test_failed_fit_loses_nothing(data, model, failure):
    X, y = data["softmax"].X, data["softmax"].y
    own = {"noise": 0.1} if model is AMPAttentionRegressor else {"loss": "cross_entropy", "random_state": 0}
    estimator = model(width=0.5, **own).fit(X, y)
    before = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    expected = estimator.predict(X), estimator.predict_index(X), estimator.score(X, y)
    with pytest.raises((ValueError, KeyError)):
        {**FAILURES, **FAILURES_OF_AMP, **FAILURES_OF_GD}[failure](estimator, X, y)
    assert {name: id(value) for name, value in vars(estimator).items() if name.endswith("_")} == {
        name: id(value) for name, value in before.items()
    }
    np.testing.assert_array_equal(estimator.predict(X), expected[0])
    np.testing.assert_array_equal(estimator.predict_index(X), expected[1])
    assert estimator.score(X, y) == expected[2]


@pytest.mark.parametrize(
    "params", [{"width": -1}, {"link": "relu"}, {"tied": None}, {"inverse_temperature": 0}], ids=str
)
@pytest.mark.parametrize("model", MODELS)
def test_failed_first_fit_leaves_the_estimator_unfitted(data, model, params):
    estimator = model(**params)
    with pytest.raises(BAD):
        estimator.fit(data["softmax"].X, data["softmax"].y)
    assert not [name for name in vars(estimator) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        estimator.predict(data["softmax"].X)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_failed_step_leaves_no_trace(data, solver):
    X, y = data["softmax"].X, data["softmax"].y
    # moments, velocities and the order of minibatches, too
    params = {"width": 0.5, "solver": solver, "learning_rate": 0.01, "batch_size": 7, "random_state": 0}
    one, other = (GDAttentionRegressor(**params).partial_fit(X, y) for _ in range(2))
    refused(lambda: one.partial_fit(1e200 * X, y), "X", "TokenWhitener", "as it was before")
    for _ in range(2):
        one.partial_fit(X, y)
        other.partial_fit(X, y)
    np.testing.assert_array_equal(one.interaction_, other.interaction_)
    np.testing.assert_array_equal(one.loss_curve_[0], other.loss_curve_[0])


def test_failed_fit_keeps_feature_names(data):
    teacher = data["softmax"]
    names = [f"x{i}" for i in range(12)]
    frame = pd.DataFrame(teacher.X.reshape(30, 12), columns=names)
    estimator = teacher.estimator(n_tokens=3).fit(frame, teacher.y)
    expected = estimator.predict(frame)
    with pytest.raises(ValueError, match="sum to 1"):
        estimator.fit(teacher.X, 1.1 * teacher.y)
    assert list(estimator.feature_names_in_) == names
    np.testing.assert_array_equal(estimator.predict(frame), expected)


def test_failed_fit_of_the_baseline_and_the_whitener_loses_nothing(data):
    X, y = data["softmax"].X, data["softmax"].y
    baseline = PositionMeanRegressor().fit(X, y)
    whitener = TokenWhitener().fit(X)
    expected = baseline.predict(X), whitener.transform(X)
    refused(lambda: baseline.fit(X[:, :, :2], y[:-1]), "inconsistent")
    refused(lambda: baseline.fit(X[:, :2], y[:, :2, :2], sample_weight=-np.ones(30)), "sample_weight")
    refused(lambda: whitener.fit(np.ones((30, 3, 2))), "equal")
    np.testing.assert_array_equal(baseline.predict(X), expected[0])
    np.testing.assert_array_equal(whitener.transform(X), expected[1])


# ----------------------------------------------------------------------------------------------------------------
# numbers beyond what can be squared


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("solver", ["amp", "annealed", "linear"])
def test_tokens_too_large_for_message_passing(data, solver, dtype):
    X, y = data["softmax"].X.astype(dtype), data["softmax"].y
    estimator = AMPAttentionRegressor(solver=solver)
    refused(lambda: estimator.fit(dtype(1e30) * X, y), "X has entries up to", "TokenWhitener")
    X[3, 1, 2] = 1e9
    refused(lambda: estimator.fit(X, y), "X has entries up to 1e+09", "TokenWhitener")


@pytest.mark.parametrize("solver", ["amp", "annealed", "linear"])
@pytest.mark.parametrize("factor", [1e20, 1e150, 1e300])
def test_labels_too_large_for_message_passing(data, factor, solver):
    X, y = data["identity"].X, data["identity"].y
    estimator = AMPAttentionRegressor(link="identity", solver=solver)
    refused(lambda: estimator.fit(X, factor * y), "y shows attention indices beyond 1e+15", "rescale y")
    refused(lambda: estimator.set_params(width="auto").fit(X, factor * y), "y shows attention indices")


def test_temperatures_at_which_labels_are_too_large(data):
    X, y = data["softmax"].X, data["softmax"].y
    for beta in (1e-20, 1e-300):
        for estimator in (AMPAttentionRegressor, GDAttentionRegressor, AMPDeepAttentionRegressor):
            small = estimator(inverse_temperature=beta)
            refused(lambda e=small: e.fit(X, y), "inverse_temperature=1e-", "at least 1e-15")
    for beta in (1e-15,):
        estimator = AMPAttentionRegressor(inverse_temperature=beta)
        refused(lambda e=estimator: e.fit(X, y), "y shows attention indices", "inverse_temperature=1e-")
        estimator = GDAttentionRegressor("auto", inverse_temperature=beta)
        refused(lambda e=estimator: e.fit(X, y), "y shows attention indices", "inverse_temperature=1e-")


def test_noise_and_inverse_temperature_too_large(data):
    X, y = data["softmax"].X, data["softmax"].y
    for estimator in (
        AMPAttentionRegressor(inverse_temperature=1e300),
        GDAttentionRegressor(inverse_temperature=1e300, solver="sgd"),
        AMPDeepAttentionRegressor(inverse_temperature=1e300),
    ):
        refused(lambda e=estimator: e.fit(X, y), "inverse_temperature=1e+300", "<= 1e+15")
    refused(lambda: AMPAttentionRegressor(noise=1e300).fit(X, y), "noise=1e+300", "<= 1e+15")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_new_tokens_too_large_for_indices(data, dtype):
    teacher = data["softmax"]
    estimator = teacher.estimator().fit(teacher.X.astype(dtype), teacher.y)
    large = teacher.X.astype(dtype) * dtype(1e160 if dtype is np.float64 else 1e25)
    for call in (estimator.predict, estimator.predict_index):
        refused(lambda call=call: call(large), "X holds features too large for finite attention indices")


@pytest.mark.parametrize(("dtype", "factor"), [(np.float64, 1e-155), (np.float32, 1e-25), (np.float32, 1e-35)])
def test_tokens_too_small_to_whiten(data, dtype, factor):
    X, y = data["softmax"].X.astype(dtype) * dtype(factor), data["softmax"].y
    refused(lambda: TokenWhitener().fit(X), "X has directions of standard deviation", "scale X")
    refused(lambda: AMPAttentionRegressor(whiten=1.0).fit(X, y), "X has directions of standard deviation")


def test_sample_weights_too_large_to_add(data):
    X, y = data["softmax"].X, data["softmax"].y
    for estimator in (PositionMeanRegressor(), GDAttentionRegressor()):
        refused(lambda e=estimator: e.fit(X, y, sample_weight=np.full(30, 1e308)), "sample_weight", "finite sum")


def test_width_from_one_sequence(data):
    X, y = data["softmax"].X[:1], data["softmax"].y[:1]
    refused(lambda: GDAttentionRegressor("auto").fit(X, y), "n_samples = 1", "width='auto'")
    weights = np.r_[1.0, np.zeros(29)]
    refused(
        lambda: GDAttentionRegressor("auto").fit(data["softmax"].X, data["softmax"].y, sample_weight=weights),
        "n_samples = 1",
        "width='auto'",
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_descent_at_a_temperature_that_shows_nothing(data):
    estimator = GDAttentionRegressor(inverse_temperature=1e-15, solver="sgd", max_iter=3, random_state=0)
    estimator.fit(data["softmax"].X, data["softmax"].y)
    assert np.isfinite(estimator.interaction_).all()


def test_starts_whose_interaction_overflows():
    # tokens of zeros see nothing of factors that are too large to multiply
    X, y = np.zeros((8, 2, 3)), np.full((8, 2, 2), 0.5)
    for solver in ("lbfgs", "adam"):
        estimator = GDAttentionRegressor(init_scale=1e160, solver=solver, loss="log_ratio", max_iter=3, random_state=0)
        refused(lambda e=estimator: e.fit(X, y), "init_scale=1e+160")
    refused(lambda: estimator.partial_fit(X, y), "overflow", "as it was before")
    assert not hasattr(estimator, "interaction_")


def test_labels_that_are_predicted_exactly():
    X = np.random.default_rng(0).standard_normal((11, 5, 4))
    estimator = AMPAttentionRegressor(solver="linear").fit(X, np.full((11, 5, 5), 0.2))
    assert estimator.estimation_error_ == 0
    assert np.isfinite(estimator.information_)


def test_the_baseline_has_no_indices(data):
    baseline = PositionMeanRegressor().fit(data["softmax"].X, data["softmax"].y)
    assert not hasattr(baseline, "predict_index")
    refused(lambda: BayesOptimalBound.from_estimator(baseline), "learns no interaction")


def test_bounds_at_extreme_parameters():
    for alpha in (1e-300, 1e-30, 1e30, 1e100):
        for width_ratio in (0, 1e-9, 1.0, 1000.0):
            for noise in (1e-12, 0.3, 1e300):
                bound = BayesOptimalBound(width_ratio, noise=noise, n_tokens=3, tied=False)
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "for tied=False", UserWarning)
                    error, spread = bound.estimation_error(alpha, return_error=True)
                assert 0 <= error <= 1 + 1e-9
                assert 0 <= spread < 1e-6
    refused(lambda: BayesOptimalBound().estimation_error(1e300), "alpha=1e+300", "at most 1e+100")
    refused(lambda: BayesOptimalBound(noise=1e300).sample_size(1e-9, 50), "error=1e-09", "noise=1e+300")


# ----------------------------------------------------------------------------------------------------------------
# hard input


def teacher_data(link, tied, *args, **kwargs):
    return make_attention_sequences(*args, link=link, tied=tied, random_state=0, **kwargs)


def constant_columns(link, tied):
    X, y = teacher_data(link, tied, 100, 2, 8)
    X[:, :, 3], X[:, :, 4] = 1.0, 0.0
    return X, y


def scaled(factor, dtype=np.float64):
    def make(link, tied):
        X, y = teacher_data(link, tied, 100, 2, 8)
        return (factor * X).astype(dtype), y.astype(dtype)

    return make


def unrelated(link, tied):
    X, y = teacher_data(link, tied, 200, 2, 8)
    return X, np.roll(y, 1, axis=0)


HARD = {
    "n=2, d=1": lambda link, tied: teacher_data(link, tied, 2, 2, 1),
    "n=3, d=20": lambda link, tied: teacher_data(link, tied, 3, 2, 20),
    "n=60, d=60": lambda link, tied: teacher_data(link, tied, 60, 2, 60),
    "constant columns": constant_columns,
    "one sequence repeated": lambda link, tied: [np.repeat(a, 50, axis=0) for a in teacher_data(link, tied, 1, 2, 8)],
    "duplicates": lambda link, tied: [np.tile(a, (3, 1, 1)) for a in teacher_data(link, tied, 60, 2, 8)],
    "zero X": scaled(0.0),
    "tiny X": scaled(1e-6),
    "tiny X in single precision": scaled(1e-6, np.float32),
    "unrelated y": unrelated,
    "many tokens": lambda link, tied: teacher_data(link, tied, 40, 5 if link == "hardmax" and tied else 12, 6),
    "near recovery": lambda link, tied: teacher_data(link, tied, 70, 2, 16, width=0.5),
}


def assert_sound(estimator, X):
    """All that a fit leaves is finite, and what must be positive or sum to one does."""
    second_moment = 1 + (estimator.width_ratio_ if estimator.tied else 0)
    assert np.isfinite(estimator.interaction_).all()
    assert 0 <= estimator.estimation_error_ < np.inf
    assert 0 <= estimator.information_ < np.inf
    assert 0 <= estimator.noise_ < np.inf
    assert estimator.overlap_ == pytest.approx(second_moment - estimator.estimation_error_)
    assert estimator.n_iter_ <= estimator.max_iter
    for column in estimator.history_.values():
        assert np.isfinite(column).all()
    mean, std = estimator.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    if estimator.link != "identity":
        np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-4 if mean.dtype == np.float32 else 1e-6)


def fit_hard(X, y, **params):
    """Fit, with a ConvergenceWarning if and only if `converged_` is false, and no other warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = AMPAttentionRegressor(**params).fit(X, y)
    assert all(issubclass(w.category, ConvergenceWarning) for w in caught), [str(w.message) for w in caught]
    assert len(caught) == (0 if estimator.converged_ else 1)
    return estimator


@pytest.mark.parametrize(("link", "tied"), SETTINGS)
@pytest.mark.parametrize("case", list(HARD))
def test_hard_input(case, link, tied):
    X, y = HARD[case](link, tied)
    assert_sound(fit_hard(X, y, link=link, tied=tied), X)


@pytest.mark.parametrize(("link", "tied"), SETTINGS)
@pytest.mark.parametrize(
    "params",
    [
        {"width": 0.01},
        {"width": 5.0},
        {"noise": 1e-12},
        {"noise": 1e4},
        {"noise": "estimate"},
        {"inverse_temperature": 30.0},
        {"inverse_temperature": 1e-3},
        {"damping": 0.0},
        {"damping": 0.99, "max_iter": 20},
        {"clamp": False},
        {"max_iter": 1},
    ],
    ids=str,
)
def test_hard_parameters(params, link, tied):
    X, y = teacher_data(link, tied, 100, 2, 8)
    assert_sound(fit_hard(X, y, link=link, tied=tied, **params), X)


@pytest.mark.parametrize(("link", "tied"), SETTINGS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("factor", [10.0, 1e6])
def test_huge_x(factor, dtype, link, tied):
    X, y = scaled(factor, dtype)(link, tied)
    try:
        estimator = fit_hard(X, y, link=link, tied=tied)
    except ValueError as error:
        # as good an answer, if it says what to do
        assert "X" in str(error).split()  # noqa: PT017
        assert "TokenWhitener" in str(error)  # noqa: PT017
        return
    assert_sound(estimator, X)


@pytest.mark.parametrize(("link", "tied"), SETTINGS)
def test_convergence_is_not_claimed_at_more_than_the_prior_error(link, tied):
    # three sequences say next to nothing: V is at most the 1 of no data at all
    X, y = teacher_data(link, tied, 3, 2, 20)
    estimator = fit_hard(X, y, link=link, tied=tied)
    assert not estimator.converged_ or estimator.estimation_error_ <= 1 + 1e-9


@pytest.mark.parametrize("tied", [True, False])
def test_labels_of_another_temperature_are_not_called_converged(tied):
    # indices appear 1e6 times too large: no V fits
    X, y = teacher_data("softmax", tied, 200, 2, 8)
    estimator = fit_hard(X, y, tied=tied, inverse_temperature=1e-6)
    assert not estimator.converged_ or estimator.estimation_error_ <= 1 + 1e-9


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("link", ["softmax", "hardmax"])
def test_prediction_at_any_noise(link, tied):
    # labels of pure noise: every token alike, however large the noise
    X, y = teacher_data(link, tied, 50, 2, 4)
    for noise in (1e2, 1e4):
        estimator = fit_hard(X, y, link=link, tied=tied, noise=noise)
        mean = estimator.predict(X)
        assert np.abs(mean - 0.5).max() < 4 / np.sqrt(noise)
