"""What GDAttentionRegressor adds to the contract of all estimators: depth, starts, sample weights, partial_fit."""

import pickle

import numpy as np
import pandas as pd
import pytest
from conftest import draw_teacher, gd_only
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline

from sklearn_aim import GDAttentionRegressor, TokenWhitener, make_attention_sequences

# ----------------------------------------------------------------------------------------------------------------
# several layers and starts


@pytest.fixture(scope="module", params=[True, False], ids=["mean", "best"])
def deep(request):
    """An estimator of two layers with biases, and its data. Not to be modified."""
    teacher = draw_teacher("softmax", False, n_samples=60, model=GDAttentionRegressor)
    estimator = teacher.estimator(
        n_layers=2, fit_bias=True, n_init=3, max_iter=10, tol=0.0, average=request.param, inverse_temperature=1.3
    )
    return estimator.fit(teacher.X, teacher.y), teacher.X, teacher.y


def test_deep_attributes(deep):
    estimator, _, _ = deep
    assert estimator.interaction_.shape == (2, 8, 8)
    assert estimator.interactions_.shape == (3, 2, 8, 8)
    assert estimator.U_.shape == estimator.V_.shape == (2, 8, 4)
    assert estimator.bias_.shape == (2, 8)
    assert estimator.start_spread_.shape == (2,)
    assert not hasattr(estimator, "W_")


def test_deep_predictions_are_those_of_starts(deep):
    estimator, X, y = deep
    maps, indices, residuals = [], [], []
    for start in range(3):
        alone = pickle.loads(pickle.dumps(estimator))
        alone._factors, alone._chosen = estimator._factors[[start]], slice(None)
        maps.append(alone.predict(X))
        indices.append(alone.predict_index(X))
        residuals.append(np.sum((maps[-1] - y) ** 2) / 60)
        np.testing.assert_allclose(maps[-1], softmax(1.3 * indices[-1], axis=2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(residuals, estimator.losses_, rtol=1e-9)
    for output, of_starts in ((estimator.predict, maps), (estimator.predict_index, indices)):
        expected = np.mean(of_starts, axis=0) if estimator.average else of_starts[np.argmin(residuals)]
        np.testing.assert_allclose(output(X), expected, rtol=0, atol=1e-12)


def test_deep_clone_pickle_and_idempotence(deep):
    estimator, X, y = deep
    expected = estimator.predict(X)
    copy = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(copy.predict(X), expected)
    np.testing.assert_array_equal(clone(estimator).fit(X, y).predict(X), expected)
    np.testing.assert_array_equal(copy.fit(X, y).predict(X), expected)


def test_deep_prediction_goes_sample_by_sample(deep):
    estimator, X, _ = deep
    order = np.random.default_rng(0).permutation(len(X))
    for output in (estimator.predict, estimator.predict_index):
        together = output(X)
        np.testing.assert_allclose(output(X[order]), together[order], rtol=0, atol=1e-12)
        for part in (slice(0, 1), slice(1, 8), slice(8, 60)):
            np.testing.assert_allclose(output(X[part]), together[part], rtol=0, atol=1e-12)
        # order of tokens is all that positions say
        np.testing.assert_allclose(output(X[:, ::-1]), together[:, ::-1, ::-1], rtol=0, atol=1e-12)
        # sequences of other lengths
        assert output(X[:, :2]).shape == (60, 2, 2)


def test_deep_forms_of_input(deep):
    estimator, X, y = deep
    flat = clone(estimator).set_params(n_tokens=3).fit(X.reshape(60, 24), y.reshape(60, 9))
    np.testing.assert_array_equal(flat.predict(X.reshape(60, 24)), estimator.predict(X).reshape(60, 9))
    listed = clone(estimator).fit(X.tolist(), y.tolist())
    np.testing.assert_array_equal(listed.interactions_, estimator.interactions_)
    single = clone(estimator).fit(X.astype(np.float32), y.astype(np.float32))
    for name in ("interaction_", "interactions_", "U_", "V_", "bias_"):
        assert getattr(single, name).dtype == np.float32
    assert single.predict(X).dtype == single.predict_index(X).dtype == np.float32
    np.testing.assert_allclose(single.predict(X), estimator.predict(X), rtol=0, atol=5e-3)


def test_refit_with_other_parameters_forgets_the_first(deep):
    estimator, X, y = deep
    changed = {"n_layers": 1, "tied": True, "fit_bias": False, "n_init": 1, "early_stopping": False}
    other = clone(estimator).set_params(early_stopping=True).fit(X, y).set_params(**changed).fit(X, y)
    fresh = clone(estimator).set_params(**changed).fit(X, y)
    assert set(vars(other)) == set(vars(fresh))
    np.testing.assert_array_equal(other.interaction_, fresh.interaction_)
    np.testing.assert_array_equal(other.bias_, np.zeros(8))


# ----------------------------------------------------------------------------------------------------------------
# sample weights and partial_fit


@gd_only
@pytest.mark.parametrize("params", [{}, {"solver": "adam", "max_iter": 60, "tol": 0.0}, {"fit_bias": True}], ids=str)
def test_weights_count_sequences(teacher, params):
    weights = np.arange(200) % 3
    repeated = np.repeat(np.arange(200), weights)
    # one objective, written in two ways
    one = teacher.estimator(**params).fit(teacher.X, teacher.y, sample_weight=weights)
    other = teacher.estimator(**params).fit(teacher.X[repeated], teacher.y[repeated])
    assert one.loss_curve_[0][0] == pytest.approx(other.loss_curve_[0][0], rel=1e-12)
    assert one.n_iter_ == other.n_iter_
    np.testing.assert_allclose(one.interaction_, other.interaction_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(one.bias_, other.bias_, rtol=0, atol=1e-6)
    # and not the one without weights
    plain = teacher.estimator(**params).fit(teacher.X, teacher.y)
    assert np.abs(one.interaction_ - plain.interaction_).max() > 1e-3


@gd_only
@pytest.mark.parametrize("params", [{}, {"batch_size": 20, "max_iter": 5, "tol": 0.0}], ids=str)
def test_weight_zero_leaves_a_sequence_out(teacher, params):
    weights = (np.arange(200) % 3 > 0).astype(float)
    y = teacher.y.copy()
    # labels that would turn everything over
    y[weights == 0] *= 1e6
    one = teacher.estimator(**params).fit(teacher.X, y, sample_weight=weights)
    other = teacher.estimator(**params).fit(teacher.X[weights > 0], teacher.y[weights > 0])
    np.testing.assert_array_equal(one.interaction_, other.interaction_)
    np.testing.assert_array_equal(one.loss_curve_[0], other.loss_curve_[0])


@gd_only
@pytest.mark.parametrize("params", [{}, {"batch_size": 20, "max_iter": 5, "tol": 0.0}], ids=str)
def test_equal_weights_are_none(teacher, params):
    plain = teacher.estimator(**params).fit(teacher.X, teacher.y)
    # division by a power of two is exact
    for value in (1.0, 2.0, 2.0**-40):
        same = teacher.estimator(**params).fit(teacher.X, teacher.y, sample_weight=np.full(200, value))
        np.testing.assert_array_equal(same.interaction_, plain.interaction_)
        assert same.best_loss_ == plain.best_loss_


@gd_only
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_forms_of_sample_weights(teacher, method):
    weights = 1.0 + np.arange(200) % 3
    kept = weights.copy()
    kept.setflags(write=False)
    X, y = teacher.X, teacher.y
    expected = getattr(teacher.estimator(), method)(X, y, sample_weight=weights).interaction_
    np.testing.assert_array_equal(weights, kept)
    for form in (kept, weights.tolist(), weights.astype(int), pd.Series(weights), np.repeat(weights, 2)[::2]):
        estimator = getattr(teacher.estimator(), method)(X, y, sample_weight=form)
        np.testing.assert_array_equal(estimator.interaction_, expected)


@gd_only
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_sample_weights_that_are_refused(teacher, method):
    call = getattr(teacher.estimator(), method)
    for weights, message in (
        (np.ones(199), r"sample_weight.shape == \(199,\), expected \(200,\)"),
        (np.ones((200, 3)), "[Ss]ample.weights must be 1D"),
        (-np.ones(200), "[Nn]egative values"),
        (np.full(200, np.nan), "sample_weight contains NaN"),
        (np.full(200, np.inf), "sample_weight contains infinity"),
        (np.zeros(200), "[Ss]ample.weight.*(positive|non-zero)"),
    ):
        with pytest.raises(ValueError, match=message):
            call(teacher.X, teacher.y, sample_weight=weights)


@gd_only
def test_one_sequence_can_be_fitted(teacher):
    # nine indices and 32 coefficients: an exact fit exists, tol says when it counts as one
    estimator = teacher.estimator().fit(teacher.X[:1], teacher.y[:1])
    residual = np.sum((estimator.predict(teacher.X[:1]) - teacher.y[:1]) ** 2)
    blank = np.full((3, 3), 1 / 3 if estimator.link == "softmax" else 0)
    assert residual <= 1e-6 * np.sum((blank - teacher.y[0]) ** 2)
    assert estimator.converged_


@gd_only
def test_partial_fit_returns_self_and_keeps_parameters(teacher):
    estimator = teacher.estimator()
    before = estimator.get_params()
    X, y = teacher.X.copy(), teacher.y.copy()
    for count in (1, 2):
        assert estimator.partial_fit(X, y) is estimator
        assert estimator.n_iter_ == count
        assert [len(curve) for curve in estimator.loss_curve_] == [count]
    after = estimator.get_params()
    assert all(after[name] is before[name] for name in before)
    np.testing.assert_array_equal(X, teacher.X)
    np.testing.assert_array_equal(y, teacher.y)
    # the second step goes on from the first
    assert estimator.loss_curve_[0][1] < estimator.loss_curve_[0][0]


@gd_only
def test_partial_fit_goes_on_after_pickling(teacher):
    estimator = teacher.estimator(batch_size=30).partial_fit(teacher.X, teacher.y)
    copy = pickle.loads(pickle.dumps(estimator))
    for one in (estimator, copy):
        one.partial_fit(teacher.X, teacher.y)
    # moments and the order of minibatches are part of what is pickled
    np.testing.assert_array_equal(copy.interaction_, estimator.interaction_)
    fresh = clone(estimator)
    assert not [name for name in vars(fresh) if name.endswith("_")]
    fresh.partial_fit(teacher.X, teacher.y).partial_fit(teacher.X, teacher.y)
    np.testing.assert_array_equal(fresh.interaction_, estimator.interaction_)


@gd_only
def test_partial_fit_refuses_other_features(teacher):
    estimator = teacher.estimator().partial_fit(teacher.X, teacher.y)
    expected = estimator.predict(teacher.X)
    with pytest.raises(ValueError, match="X has 7 features, but GDAttentionRegressor is expecting 8 features"):
        estimator.partial_fit(teacher.X[:, :, :7], teacher.y)
    np.testing.assert_array_equal(estimator.predict(teacher.X), expected)
    # but another number of tokens: the interaction doesn't depend on it
    small = make_attention_sequences(5, 2, 8, link=estimator.link, tied=estimator.tied, random_state=0)
    assert estimator.partial_fit(*small).predict(small[0]).shape == (5, 2, 2)


@gd_only
def test_partial_fit_of_frames_and_flat_maps(teacher):
    names = [f"x{i}" for i in range(24)]
    frame = pd.DataFrame(teacher.X.reshape(200, 24), columns=names)
    estimator = teacher.estimator(n_tokens=3).partial_fit(frame, teacher.y.reshape(200, 9))
    estimator.partial_fit(frame, teacher.y.reshape(200, 9))
    expected = teacher.estimator().partial_fit(teacher.X, teacher.y).partial_fit(teacher.X, teacher.y)
    np.testing.assert_allclose(estimator.interaction_, expected.interaction_, rtol=0, atol=1e-12)
    assert estimator.predict(frame).shape == (200, 9)
    assert list(estimator.feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.partial_fit(frame.rename(columns={"x0": "other"}), teacher.y)


def test_metadata_routing_of_fit_weights():
    teacher = draw_teacher("softmax", True, model=GDAttentionRegressor)
    X, y, weights = teacher.X, teacher.y, np.arange(200) % 3
    with config_context(enable_metadata_routing=True):
        estimator = teacher.estimator().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        estimator.set_partial_fit_request(sample_weight=True)
        pipeline = Pipeline([("white", TokenWhitener()), ("attention", estimator)]).fit(X, y, sample_weight=weights)
        direct = teacher.estimator().fit(pipeline["white"].transform(X), y, sample_weight=weights)
        np.testing.assert_array_equal(pipeline["attention"].interaction_, direct.interaction_)
        folds = list(KFold(2).split(X))
        search = GridSearchCV(estimator, {"width": [0.5]}, cv=folds).fit(X, y, sample_weight=weights)
        scores = [
            teacher.estimator().fit(X[train], y[train], sample_weight=weights[train]).score(X[test], y[test])
            for train, test in folds
        ]
        assert search.best_score_ == pytest.approx(np.mean(scores), rel=1e-12)
