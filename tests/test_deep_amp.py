"""AMPDeepAttentionRegressor: contract, bad input, symmetries, and teachers that it must recover."""

import inspect
import pickle
import warnings
from dataclasses import dataclass, field

import numba
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import ortho_group
from sklearn import __version__, config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from sklearn_aim import (
    AMPDeepAttentionRegressor,
    GDAttentionRegressor,
    TokenWhitener,
    align_signs,
    cosine_similarity,
    make_deep_attention_sequences,
)

# small data often have no fixed point; tests of learning look at converged_ themselves
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
SKLEARN = tuple(int(part) for part in __version__.split(".")[:2])
BAD = (ValueError, TypeError)


@dataclass(frozen=True)
class Teacher:
    """One draw from the model, and the estimator that assumes it, with its parameters."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    params: dict = field(repr=False)

    def estimator(self, **params):
        return AMPDeepAttentionRegressor(**{**self.params, **params})


def draw(n_layers, n_tokens, n_samples, n_features, random_state=0, dtype=np.float64, skip=1.0, beta=1.0, **params):
    """Seeds of data and estimator differ, else the start could be the teacher."""
    X, y, weights = make_deep_attention_sequences(
        n_samples,
        n_tokens,
        n_features,
        n_layers=n_layers,
        skip=skip,
        inverse_temperature=beta,
        random_state=random_state,
        dtype=dtype,
        return_weights=True,
    )
    own = {"n_layers": n_layers, "skip": skip, "inverse_temperature": beta, "random_state": 1000 + random_state}
    return Teacher(X, y, np.array(weights)[:, :, 0], {**own, **params})


TEACHERS = {
    "one layer": lambda: draw(1, 3, 60, 20),
    "two layers": lambda: draw(2, 2, 60, 20),
    # the last layer only, so that V stays away from zero
    "two layers, one learned": lambda: draw(2, 2, 20, 30),
    "two layers, three tokens": lambda: draw(2, 3, 16, 8, max_iter=3),
    "three layers": lambda: draw(3, 2, 16, 8, max_iter=3),
}


@pytest.fixture(scope="module", params=TEACHERS)
def teacher(request):
    """Every kind of integral. Not to be modified."""
    return TEACHERS[request.param]()


@pytest.fixture(scope="module")
def fitted(teacher):
    """The estimator fitted on `teacher`. Not to be modified."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return teacher.estimator().fit(teacher.X, teacher.y)


@pytest.fixture(scope="module")
def two():
    """Two layers that are recovered. Not to be modified."""
    return TEACHERS["two layers"]()


@pytest.fixture(scope="module")
def partial():
    """Two layers, of which the last is learned. Not to be modified."""
    return TEACHERS["two layers, one learned"]()


def refused(call, *patterns):
    """A ValueError or TypeError, and every pattern is in its message."""
    with pytest.raises(BAD) as caught:
        call()
    for pattern in patterns:
        assert pattern in str(caught.value), str(caught.value)


def learned(estimator):
    return {name: value for name, value in vars(estimator).items() if name.endswith("_")}


def all_finite(estimator):
    values = [*learned(estimator).values(), *estimator.history_.values()]
    return all(np.isfinite(value).all() for value in values if isinstance(value, np.ndarray))


# ----------------------------------------------------------------------------------------------------------------
# scikit-learn's own checks

# Each of these fits 2-D X, one token a row, whose attention is always 1. Its mirror in this file is named beside it.
CANNOT_APPLY = {
    "check_dict_unchanged": "test_prediction_leaves_the_estimator_alone",
    "check_dont_overwrite_parameters": "test_fit_adds_documented_attributes_with_a_trailing_underscore_only",
    "check_dtype_object": "test_objects_and_lists_are_accepted",
    "check_estimators_dtypes": "test_integers_are_accepted",
    "check_estimators_fit_returns_self": "test_fit_returns_self_and_keeps_parameters",
    "check_estimators_nan_inf": "test_nan_and_infinity",
    "check_estimators_overwrite_params": "test_fit_returns_self_and_keeps_parameters",
    "check_estimators_pickle": "test_pickle",
    "check_f_contiguous_array_estimator": "test_memory_layout_changes_nothing",
    "check_fit2d_1feature": "test_one_feature",
    "check_fit2d_1sample": "test_one_sample",
    "check_fit2d_predict1d": "test_prediction_input",
    "check_fit_check_is_fitted": "test_not_fitted",
    "check_fit_idempotent": "test_fit_is_idempotent",
    "check_fit_score_takes_y": "test_fit_and_score_take_y_second",
    "check_methods_sample_order_invariance": "test_prediction_goes_sample_by_sample",
    "check_methods_subset_invariance": "test_prediction_goes_sample_by_sample",
    "check_n_features_in": "test_input_attributes",
    "check_n_features_in_after_fitting": "test_prediction_input",
    "check_non_transformer_estimators_n_iter": "test_n_iter",
    "check_pipeline_consistency": "test_pipeline_of_one_step_is_the_estimator",
    "check_positive_only_tag_during_fit": "test_fit_returns_self_and_keeps_parameters",
    "check_readonly_memmap_input": "test_read_only_memmap",
    "check_regressor_data_not_an_array": "test_objects_and_lists_are_accepted",
    "check_regressors_int": "test_integers_are_accepted",
    "check_regressors_no_decision_function": "test_regressor_has_no_classifier_methods",
    "check_regressors_train": "test_predictions_explain_new_maps",
    "check_supervised_y_2d": "test_flat_forms_equal_3d",
}
REASON = "fits one token a row, whose map is always 1; mirrored in 3-D by {}"
DEPTHS = [AMPDeepAttentionRegressor(n_layers=n_layers) for n_layers in (1, 2, 3)]


def expected_failures(_):
    return {check: REASON.format(mirror) for check, mirror in CANNOT_APPLY.items()}


@parametrize_with_checks(DEPTHS, expected_failed_checks=expected_failures)
def test_sklearn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.EstimatorCheckFailedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", DEPTHS, ids=repr)
def test_expected_failures_have_the_stated_reason(estimator):
    results = check_estimator(estimator, on_fail=None, expected_failed_checks=expected_failures(estimator))
    if SKLEARN >= (1, 9):
        # earlier versions lack some of the checks
        assert {r["check_name"] for r in results} >= set(CANNOT_APPLY)
    for result in results:
        if result["check_name"] not in CANNOT_APPLY:
            assert result["status"] in ("passed", "skipped"), result
            continue
        assert result["status"] == "xfail", result
        causes, error = [], result["exception"]
        while error is not None:
            causes.append(str(error))
            error = error.__cause__ or error.__context__
        assert any("n_tokens=1 must be at least 2" in cause for cause in causes), result
        assert CANNOT_APPLY[result["check_name"]] in globals()


# ----------------------------------------------------------------------------------------------------------------
# 3-D mirrors


def test_clone_and_parameters(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert set(copy.get_params()) == set(inspect.signature(AMPDeepAttentionRegressor).parameters)
    assert not learned(copy)
    copy.set_params(n_layers=3, max_iter=7, skip=0.5, init=np.ones((3, 4)))
    assert (copy.n_layers, copy.max_iter, copy.skip) == (3, 7, 0.5)
    np.testing.assert_array_equal(clone(copy).init, np.ones((3, 4)))
    with pytest.raises(ValueError, match="temperature"):
        copy.set_params(temperature=1.0)


def test_fit_returns_self_and_keeps_parameters(teacher):
    init = 0.1 * teacher.weights
    kept = init.copy()
    estimator = teacher.estimator(init=init)
    before = estimator.get_params()
    X, y = teacher.X.copy(), teacher.y.copy()
    assert estimator.fit(X, y) is estimator
    assert all(estimator.get_params()[name] is before[name] for name in before)
    estimator.predict(X, return_std=True)
    estimator.score(X, y)
    for array, original in ((X, teacher.X), (y, teacher.y), (init, kept)):
        np.testing.assert_array_equal(array, original)


def test_fit_adds_documented_attributes_with_a_trailing_underscore_only(teacher, fitted):
    added = set(vars(fitted)) - set(vars(teacher.estimator()))
    assert not [name for name in added if not (name.endswith("_") or name.startswith("_"))]
    headings = [line.split(" :")[0] for line in AMPDeepAttentionRegressor.__doc__.splitlines() if " : " in line]
    documented = {name.strip() for heading in headings for name in heading.split(",")}
    # d of a token is said by the shape of weights_
    assert {name for name in added if not name.startswith("_")} - {"n_token_features_"} <= documented
    # and nothing documented is missing
    missing = {name for name in documented if name.endswith("_") and not hasattr(fitted, name)}
    assert missing == {"feature_names_in_"}


def test_attributes(teacher, fitted):
    n_layers, d = teacher.weights.shape
    n = len(teacher.X)
    V = fitted.posterior_covariance_
    assert fitted.weights_.shape == (n_layers, d)
    assert V.shape == (n_layers, n_layers)
    np.testing.assert_allclose(V, V.T, rtol=0, atol=1e-12)
    assert np.linalg.eigvalsh(V).min() > 0
    np.testing.assert_array_equal(fitted.overlap_, np.eye(n_layers) - V)
    expected = np.einsum("li,lj->lij", fitted.weights_, fitted.weights_) / np.sqrt(d)
    np.testing.assert_allclose(fitted.interaction_, expected, rtol=1e-12)
    assert fitted.sample_complexity_ == n / d
    assert fitted.n_undetermined_ == 0
    assert isinstance(fitted.converged_, bool)


def test_fit_is_idempotent(teacher, fitted):
    again = clone(fitted).fit(teacher.X, teacher.y)
    twice = clone(fitted).fit(teacher.X[:10], teacher.y[:10]).fit(teacher.X, teacher.y)
    for other in (again, twice):
        np.testing.assert_array_equal(other.weights_, fitted.weights_)
        np.testing.assert_array_equal(other.posterior_covariance_, fitted.posterior_covariance_)
        np.testing.assert_array_equal(other.predict(teacher.X), fitted.predict(teacher.X))
        assert other.n_iter_ == fitted.n_iter_


def test_random_state(partial):
    X, y = partial.X, partial.y
    one, other = (partial.estimator(random_state=np.random.RandomState(5)).fit(X, y) for _ in range(2))
    same, different = (partial.estimator(random_state=seed).fit(X, y) for seed in (5, 6))
    np.testing.assert_array_equal(one.weights_, other.weights_)
    np.testing.assert_array_equal(one.weights_, same.weights_)
    assert not np.array_equal(one.weights_, different.weights_)
    assert np.isfinite(partial.estimator(random_state=None).fit(X, y).weights_).all()


@pytest.mark.parametrize("n_threads", [2, 5])
def test_threads_change_nothing(teacher, fitted, monkeypatch, n_threads):
    mean, std = fitted.predict(teacher.X, return_std=True)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    one = clone(fitted).fit(teacher.X, teacher.y)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", n_threads)
    many = clone(fitted).fit(teacher.X, teacher.y)
    for other in (one, many):
        np.testing.assert_array_equal(other.weights_, fitted.weights_)
        np.testing.assert_array_equal(other.posterior_covariance_, fitted.posterior_covariance_)
    np.testing.assert_array_equal(many.predict(teacher.X, return_std=True), (mean, std))


def test_fit_and_score_take_y_second(teacher, fitted):
    assert fitted.score(teacher.X, teacher.y) == fitted.score(X=teacher.X, y=teacher.y)
    np.testing.assert_array_equal(clone(fitted).fit(X=teacher.X, y=teacher.y).weights_, fitted.weights_)


def test_pickle(teacher, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict(teacher.X, return_std=True), fitted.predict(teacher.X, return_std=True))
    assert set(vars(copy)) == set(vars(fitted))
    unfitted = pickle.loads(pickle.dumps(teacher.estimator()))
    assert unfitted.get_params() == teacher.estimator().get_params()


def test_prediction_leaves_the_estimator_alone(teacher, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    fitted.predict(teacher.X, return_std=True)
    fitted.predict_index(teacher.X[:, :1])
    fitted.score(teacher.X, teacher.y)
    assert set(vars(copy)) == set(vars(fitted))
    for name, value in learned(copy).items():
        if isinstance(value, dict):
            assert value.keys() == vars(fitted)[name].keys()
        else:
            np.testing.assert_array_equal(value, vars(fitted)[name])


def test_input_attributes(two):
    estimator = two.estimator()
    assert not hasattr(estimator, "n_features_in_")
    assert not hasattr(estimator, "interaction_")
    estimator.fit(two.X, two.y)
    assert estimator.n_features_in_ == 20
    assert estimator.n_tokens_ == 2
    assert not hasattr(estimator, "feature_names_in_")
    tags = estimator.__sklearn_tags__()
    assert tags.input_tags.three_d_array
    assert tags.target_tags.required


def test_prediction_goes_sample_by_sample(teacher, fitted):
    order = np.random.default_rng(0).permutation(len(teacher.X))
    for output in (fitted.predict, fitted.predict_index, lambda X: fitted.predict(X, return_std=True)[1] ** 2):
        together = output(teacher.X)
        np.testing.assert_allclose(output(teacher.X[order]), together[order], rtol=0, atol=1e-12)
        for start, stop in ((0, 1), (1, 8), (8, len(teacher.X))):
            np.testing.assert_allclose(output(teacher.X[start:stop]), together[start:stop], rtol=0, atol=1e-12)


def test_n_iter(two):
    fitted = two.estimator().fit(two.X, two.y)
    assert isinstance(fitted.n_iter_, int)
    assert 1 <= fitted.n_iter_ < 200
    assert fitted.converged_
    for max_iter in (1, 3):
        with pytest.warns(ConvergenceWarning, match=f"max_iter={max_iter}"):
            short = two.estimator(max_iter=max_iter).fit(two.X, two.y)
        assert short.n_iter_ == max_iter
        assert not short.converged_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = two.estimator(max_iter=fitted.n_iter_).fit(two.X, two.y)
    np.testing.assert_array_equal(exact.weights_, fitted.weights_)


def test_warnings_point_to_the_caller(two):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        two.estimator(max_iter=2).fit(two.X, two.y)
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("n_samples", [2, 30])
def test_one_feature(n_layers, n_samples):
    one = draw(n_layers, 2, n_samples, 1)
    estimator = one.estimator().fit(one.X, one.y)
    assert estimator.weights_.shape == (n_layers, 1)
    assert all_finite(estimator)
    assert np.isfinite(estimator.predict(one.X)).all()
    if n_samples == 30:
        # one number a layer, sixty equations: w is known up to its sign
        np.testing.assert_allclose(np.abs(estimator.weights_), np.abs(one.weights), rtol=0, atol=0.1)


def test_regressor_has_no_classifier_methods(fitted):
    assert not [m for m in ("decision_function", "predict_proba", "predict_log_proba") if hasattr(fitted, m)]


@pytest.mark.parametrize("kind", ["one layer", "two layers"])
def test_predictions_explain_new_maps(kind):
    # the teacher is known, and there's no noise
    known = TEACHERS[kind]()
    estimator = known.estimator().fit(known.X, known.y)
    X, y = make_deep_attention_sequences(
        500, known.X.shape[1], 20, weights=list(known.weights), n_layers=len(known.weights), random_state=77
    )
    assert estimator.score(X, y) > 0.99
    assert estimator.score(known.X, known.y) > 0.99


def test_not_fitted(two):
    estimator = two.estimator()
    for call in (
        lambda: estimator.predict(two.X),
        lambda: estimator.predict(two.X, return_std=True),
        lambda: estimator.predict_index(two.X),
        lambda: estimator.score(two.X, two.y),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            call()
    with pytest.raises(AttributeError, match="before fit"):
        _ = estimator.interaction_


# ----------------------------------------------------------------------------------------------------------------
# what X and y may be


def test_float32_in_float32_out(teacher, fitted):
    X, y = teacher.X.astype(np.float32), teacher.y.astype(np.float32)
    estimator = teacher.estimator().fit(X, y)
    assert estimator.weights_.dtype == np.float32
    mean, std = estimator.predict(X, return_std=True)
    assert mean.dtype == std.dtype == np.float32
    assert estimator.predict_index(X).dtype == np.float32
    # double precision in, but what was fitted was single
    assert estimator.predict(teacher.X).dtype == np.float32
    # the same estimate, up to posterior spread at which iterations stop
    gap = np.mean((estimator.weights_.astype(float) - fitted.weights_) ** 2, axis=1)
    assert (gap < 1e-3).all()
    np.testing.assert_allclose(mean, fitted.predict(teacher.X), atol=0.02)
    mixed = teacher.estimator().fit(teacher.X, y)
    assert mixed.weights_.dtype == np.float64


def test_half_precision_and_mixed_types(two):
    weak = draw(2, 2, 60, 20, beta=0.05)
    estimator = weak.estimator(max_iter=2).fit(weak.X.astype(np.float16), weak.y.astype(np.float32))
    assert estimator.weights_.dtype == np.float32
    assert cosine_similarity(two.estimator().fit(two.X.astype(np.float32), two.y), two.weights).min() > 0.99


@pytest.mark.parametrize(
    "layout",
    [
        np.asfortranarray,
        lambda a: a[::-1].copy()[::-1],
        lambda a: a[..., ::-1].copy()[..., ::-1],
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.repeat(a, 3, axis=0)[1::3],
        lambda a: np.ascontiguousarray(a.T).T,
    ],
    ids=["fortran", "reversed", "reversed-last", "strided-last", "strided-first", "transposed"],
)
def test_memory_layout_changes_nothing(teacher, fitted, layout):
    X, y = layout(teacher.X), layout(teacher.y)
    np.testing.assert_array_equal(X, teacher.X)
    estimator = teacher.estimator().fit(X, y)
    np.testing.assert_allclose(estimator.weights_, fitted.weights_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fitted.predict(X), fitted.predict(teacher.X), rtol=0, atol=1e-12)
    informed = teacher.estimator(init=layout(0.5 * teacher.weights)).fit(teacher.X, teacher.y)
    expected = teacher.estimator(init=0.5 * teacher.weights).fit(teacher.X, teacher.y)
    np.testing.assert_array_equal(informed.weights_, expected.weights_)


def test_read_only_memmap(teacher, fitted, tmp_path):
    mapped = []
    for name, array in (("X", teacher.X), ("y", teacher.y), ("init", 0.5 * teacher.weights)):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    X, y, init = mapped
    assert not X.flags.writeable
    estimator = teacher.estimator().fit(X, y)
    np.testing.assert_array_equal(estimator.weights_, fitted.weights_)
    np.testing.assert_array_equal(estimator.predict(X), fitted.predict(teacher.X))
    assert estimator.score(X, y) == fitted.score(teacher.X, teacher.y)
    assert all_finite(teacher.estimator(init=init).fit(X, y))


def test_objects_and_lists_are_accepted(teacher, fitted):
    for X, y in (
        (teacher.X.tolist(), teacher.y.tolist()),
        (list(teacher.X), tuple(teacher.y)),
        (teacher.X.astype(object), teacher.y.astype(object)),
    ):
        estimator = teacher.estimator().fit(X, y)
        np.testing.assert_array_equal(estimator.weights_, fitted.weights_)
        np.testing.assert_array_equal(estimator.predict(X), fitted.predict(teacher.X))


def test_integers_are_accepted():
    # integer tokens, with the maps that the teacher gives them
    rng = np.random.default_rng(0)
    X = rng.integers(-2, 3, (20, 2, 10))
    z = np.einsum("nai,li->nla", X, rng.standard_normal((2, 10))) / np.sqrt(10)
    y = maps_of(0.5 * z)
    results = [
        AMPDeepAttentionRegressor(max_iter=5, random_state=0).fit(X.astype(t), y)
        for t in (float, int, np.int32, np.int8)
    ]
    for other in results[1:]:
        assert other.weights_.dtype == np.float64
        np.testing.assert_array_equal(other.weights_, results[0].weights_)


def test_flat_forms_equal_3d(teacher, fitted):
    n, T, d = teacher.X.shape
    flat_X, flat_y = teacher.X.reshape(n, T * d), teacher.y.reshape(n, T * T)
    estimator = teacher.estimator(n_tokens=T).fit(flat_X, flat_y)
    np.testing.assert_array_equal(estimator.weights_, fitted.weights_)
    np.testing.assert_array_equal(estimator.predict(flat_X), fitted.predict(teacher.X).reshape(n, T * T))
    assert estimator.n_features_in_ == T * d
    assert estimator.n_tokens_ == T
    assert estimator.score(flat_X, flat_y) == fitted.score(teacher.X, teacher.y)
    for X, y in ((teacher.X, flat_y), (flat_X, teacher.y)):
        other = teacher.estimator(n_tokens=T).fit(X, y)
        mean, std = other.predict(X, return_std=True)
        assert mean.shape == std.shape == y.shape
        np.testing.assert_array_equal(other.weights_, fitted.weights_)
    expected = f"X has {T * d - T} features, but AMPDeepAttentionRegressor is expecting {T * d}"
    with pytest.raises(ValueError, match=expected):
        estimator.predict(flat_X[:, :-T])


def test_pandas(two):
    names = [f"token{t}_x{i}" for t in range(2) for i in range(20)]
    frame = pd.DataFrame(two.X.reshape(60, 40), columns=names)
    estimator = two.estimator(n_tokens=2).fit(frame, pd.DataFrame(two.y.reshape(60, 4)))
    reference = two.estimator().fit(two.X, two.y)
    np.testing.assert_allclose(estimator.predict(frame), reference.predict(two.X).reshape(60, 4), rtol=0, atol=1e-6)
    assert list(estimator.feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(frame.rename(columns={"token0_x0": "other"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        estimator.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="sum to 1"):
        estimator.fit(two.X, 1.1 * two.y)
    assert list(estimator.feature_names_in_) == names
    estimator.set_params(n_tokens=None).fit(two.X, two.y)
    assert not hasattr(estimator, "feature_names_in_")


def test_refit_on_another_shape_forgets_the_first(teacher):
    other = draw(1, 2, 40, 6, random_state=5)
    estimator = teacher.estimator().fit(teacher.X, teacher.y)
    estimator.set_params(**other.params).fit(other.X, other.y.reshape(40, 4))
    fresh = teacher.estimator(**other.params).fit(other.X, other.y.reshape(40, 4))
    assert (estimator.n_features_in_, estimator.n_tokens_) == (6, 2)
    assert set(vars(estimator)) == set(vars(fresh))
    np.testing.assert_array_equal(estimator.weights_, fresh.weights_)
    np.testing.assert_array_equal(estimator.predict(other.X), fresh.predict(other.X))


# ----------------------------------------------------------------------------------------------------------------
# predictions


def maps_of(z, skip=1.0, beta=1.0):
    """Maps of the last layer for indices z (n, L, T), from the definition."""
    B = np.eye(z.shape[2])
    for layer in range(z.shape[1]):
        u = np.einsum("...ab,...b->...a", B, z[:, layer])
        attention = softmax(beta * u[:, :, None] * u[:, None, :], axis=2)
        B = (skip * np.eye(z.shape[2]) + attention) @ B
    return attention


@pytest.mark.parametrize(("skip", "beta"), [(1.0, 1.0), (0.3, 2.0), (0.0, 0.5)])
@pytest.mark.parametrize(("n_layers", "n_tokens"), [(1, 4), (2, 3), (3, 2)])
def test_data_set_is_the_model(n_layers, n_tokens, skip, beta):
    given_layers = draw(n_layers, n_tokens, 20, 10, skip=skip, beta=beta)
    z = np.einsum("nai,li->nla", given_layers.X, given_layers.weights) / np.sqrt(10)
    np.testing.assert_allclose(given_layers.y, maps_of(z, skip, beta), rtol=1e-9, atol=1e-12)


def test_predict_index_is_the_definition(teacher, fitted):
    d = teacher.X.shape[2]
    expected = np.einsum("nai,li->nla", teacher.X, fitted.weights_) / np.sqrt(d)
    np.testing.assert_allclose(fitted.predict_index(teacher.X), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 5])
@pytest.mark.parametrize(("skip", "beta"), [(1.0, 1.0), (0.3, 1.7)])
def test_predictions_are_posterior_means(partial, n_tokens, skip, beta):
    # the number of tokens may differ from that of fit, and predictions don't need its integrals
    estimator = partial.estimator(skip=skip, inverse_temperature=beta, max_iter=2).fit(partial.X, partial.y)
    # correlated layers of different spread
    estimator.posterior_covariance_ = np.array([[0.8, 0.25], [0.25, 0.3]])
    estimator.weights_ = 0.7 * partial.weights
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3, n_tokens, 30))
    mean, std = estimator.predict(X, return_std=True)
    assert mean.shape == std.shape == (3, n_tokens, n_tokens)
    factor = np.linalg.cholesky(estimator.posterior_covariance_)
    for n, omega in enumerate(X @ estimator.weights_.T / np.sqrt(30)):
        z = omega.T + np.einsum("lm,kma->kla", factor, rng.standard_normal((40_000, 2, n_tokens)))
        y = maps_of(z, skip, beta)
        # five standard errors, and what the docstring says of the quasi-random average
        assert (np.abs(mean[n] - y.mean(axis=0)) <= 5 * y.std(axis=0) / 200 + 3e-3).all()
        np.testing.assert_allclose(std[n], y.std(axis=0), atol=0.02)
    np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-9)


def test_predictions_of_three_layers_are_posterior_means():
    three = TEACHERS["three layers"]()
    estimator = three.estimator().fit(three.X, three.y)
    rng = np.random.default_rng(3)
    factor = np.linalg.cholesky(estimator.posterior_covariance_)
    mean, std = estimator.predict(three.X[:3], return_std=True)
    for n, omega in enumerate(three.X[:3] @ estimator.weights_.T / np.sqrt(8)):
        y = maps_of(omega.T + np.einsum("lm,kma->kla", factor, rng.standard_normal((40_000, 3, 2))))
        assert (np.abs(mean[n] - y.mean(axis=0)) <= 5 * y.std(axis=0) / 200 + 3e-3).all()
        np.testing.assert_allclose(std[n], y.std(axis=0), atol=0.02)


def test_prediction_of_known_layers_is_their_map(two):
    estimator = two.estimator(max_iter=2).fit(two.X, two.y)
    estimator.posterior_covariance_, estimator.weights_ = np.zeros((2, 2)), two.weights
    mean, std = estimator.predict(two.X, return_std=True)
    np.testing.assert_allclose(mean, two.y, rtol=0, atol=1e-9)
    # roots of roundings of y^2
    np.testing.assert_allclose(std, 0, atol=1e-6)


def test_score_is_the_pooled_r2(partial):
    X, y = partial.X, partial.y
    estimator = partial.estimator().fit(X, y)
    residual = np.sum((y - estimator.predict(X)) ** 2)
    assert estimator.score(X, y) == pytest.approx(1 - residual / np.sum((y - y.mean()) ** 2), rel=1e-12)
    weights = np.arange(20) % 3
    repeated = np.repeat(np.arange(20), weights)
    expected = estimator.score(X[repeated], y[repeated])
    assert estimator.score(X, y, sample_weight=weights) == pytest.approx(expected, rel=1e-12)


# ----------------------------------------------------------------------------------------------------------------
# starts, history, callbacks, output


def test_informed_start_finds_the_same(two):
    fitted = two.estimator().fit(two.X, two.y)
    for init in (two.weights, 0.5 * two.weights, (0.5 * two.weights).tolist(), two.weights.astype(np.float32)):
        informed = two.estimator(init=init).fit(two.X, two.y)
        assert informed.converged_
        assert informed.n_iter_ < fitted.n_iter_
        np.testing.assert_allclose(informed.weights_, two.weights, rtol=0, atol=1e-2)
        # nothing random is left
        np.testing.assert_array_equal(
            informed.weights_, two.estimator(init=init, random_state=9).fit(two.X, two.y).weights_
        )


def test_warm_start(two):
    warm = two.estimator(warm_start=True).fit(two.X, two.y)
    cold = warm.n_iter_
    assert cold == two.estimator().fit(two.X, two.y).n_iter_
    warm.fit(two.X, two.y)
    assert warm.n_iter_ < cold
    assert warm.converged_
    assert cosine_similarity(warm, two.weights).min() > 0.999
    # other data of the same shape: what was learned does not stick
    other = draw(2, 2, 60, 20, random_state=9)
    warm.fit(other.X, other.y)
    assert cosine_similarity(warm, other.weights).min() > 0.999
    # a start of another shape is no start
    for small in (draw(2, 2, 40, 6, random_state=5), draw(1, 2, 40, 20, random_state=5)):
        warm = two.estimator(warm_start=True).fit(two.X, two.y)
        warm.set_params(**small.params).fit(small.X, small.y)
        np.testing.assert_array_equal(warm.weights_, small.estimator().fit(small.X, small.y).weights_)


def test_history(teacher, fitted):
    n_layers = len(teacher.weights)
    shapes = {
        "overlap": (n_layers, n_layers),
        "weight_norm": (n_layers,),
        "residual": (n_layers,),
        "log_likelihood": (),
        "energy_ratio": (n_layers,),
        "integration_error": (),
    }
    assert {name: column.shape for name, column in fitted.history_.items()} == {
        name: (fitted.n_iter_, *shape) for name, shape in shapes.items()
    }
    assert all(np.isfinite(column).all() for column in fitted.history_.values())
    assert (fitted.history_["integration_error"] >= 0).all()
    if fitted.converged_:
        # the last iterate, up to how far one damped step moves it
        assert np.abs(fitted.history_["overlap"][-1] - fitted.overlap_).max() < 0.02


def test_callback_columns(partial):
    def callback(state):
        cosines = cosine_similarity(state["weights"], partial.weights)
        return {"cosines": cosines, "first": float(cosines[0]), "count": state["iteration"]}

    estimator = partial.estimator().fit(partial.X, partial.y, callback=callback)
    plain = partial.estimator().fit(partial.X, partial.y)
    np.testing.assert_array_equal(estimator.weights_, plain.weights_)
    history = estimator.history_
    assert history["cosines"].shape == (estimator.n_iter_, 2)
    np.testing.assert_array_equal(history["first"], history["cosines"][:, 0])
    np.testing.assert_array_equal(history["count"], np.arange(estimator.n_iter_))
    assert set(history) - set(plain.history_) == {"cosines", "first", "count"}
    if estimator.converged_:
        np.testing.assert_array_equal(history["cosines"][-1], cosine_similarity(estimator, partial.weights))


def test_callback_sees_every_iteration(two):
    seen = []
    estimator = two.estimator().fit(two.X, two.y, callback=seen.append)
    assert [state["iteration"] for state in seen] == list(range(estimator.n_iter_))
    assert seen[0].keys() == {"iteration", "weights", "covariance", *estimator.history_}
    for name, column in estimator.history_.items():
        np.testing.assert_array_equal([state[name] for state in seen], column)
    np.testing.assert_array_equal(seen[-1]["weights"], estimator.weights_)
    np.testing.assert_array_equal(seen[-1]["covariance"], estimator.posterior_covariance_)
    assert not np.array_equal(seen[0]["weights"], seen[-1]["weights"])


def test_callback_that_answers_at_some_iterations(two):
    estimator = two.estimator().fit(
        two.X, two.y, callback=lambda state: {"odd": 1.0} if state["iteration"] % 2 else None
    )
    np.testing.assert_array_equal(estimator.history_["odd"][1::2], 1.0)
    assert np.isnan(estimator.history_["odd"][::2]).all()


def test_callback_that_answers_arrays_at_some_iterations(two):
    estimator = two.estimator().fit(
        two.X, two.y, callback=lambda state: {"odd": np.ones(2)} if state["iteration"] % 2 else None
    )
    assert estimator.history_["odd"].shape == (estimator.n_iter_, 2)
    assert np.isnan(estimator.history_["odd"][::2]).all()


@pytest.mark.parametrize("name", ["overlap", "weight_norm", "residual", "log_likelihood", "integration_error"])
def test_callback_must_not_overwrite_columns(two, name):
    refused(lambda: two.estimator().fit(two.X, two.y, callback=lambda state: {name: 0.0}), "callback", name)


def test_verbose(two, capsys):
    fitted = two.estimator().fit(two.X, two.y)
    assert capsys.readouterr().out == ""
    two.estimator(verbose=1).fit(two.X, two.y)
    (summary,) = capsys.readouterr().out.splitlines()
    assert f"converged after {fitted.n_iter_} iterations" in summary
    assert "alpha=3" in summary
    seen = []
    two.estimator(verbose=2).fit(two.X, two.y, callback=seen.append)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == fitted.n_iter_ + 1 == len(seen) + 1
    assert f"log-likelihood={fitted.history_['log_likelihood'][0]:.5g}" in lines[0]
    two.estimator(verbose=True, max_iter=2).fit(two.X, two.y)
    assert "not converged after 2 iterations" in capsys.readouterr().out


def test_repr(two):
    assert repr(AMPDeepAttentionRegressor(3, 0.5)) == "AMPDeepAttentionRegressor(n_layers=3, skip=0.5)"
    assert "AMPDeepAttentionRegressor" in make_pipeline(TokenWhitener(), two.estimator())._repr_html_()


# ----------------------------------------------------------------------------------------------------------------
# scikit-learn's tools


def test_pipeline_of_one_step_is_the_estimator(teacher, fitted):
    pipeline = Pipeline([("attention", teacher.estimator())]).fit(teacher.X, teacher.y)
    np.testing.assert_array_equal(pipeline.predict(teacher.X), fitted.predict(teacher.X))
    assert pipeline.score(teacher.X, teacher.y) == fitted.score(teacher.X, teacher.y)


def test_pipeline_with_whitener():
    # mixed tokens without a mean: the model's indices of whitened tokens are those of the raw ones
    whole = draw(2, 2, 300, 6)
    mixing = np.eye(6) + 0.3 * np.random.default_rng(7).standard_normal((6, 6))
    # exact whitening, of data whose second moments are exactly those of the mixing
    whitener = TokenWhitener().fit(whole.X @ mixing)
    white = whitener.transform(whole.X @ mixing)
    z = np.einsum("nai,li->nla", white, whole.weights) / np.sqrt(6)
    y = maps_of(z)
    pipeline = make_pipeline(TokenWhitener(), whole.estimator()).fit(whole.X[:60] @ mixing, y[:60])
    assert pipeline.predict(whole.X[:5] @ mixing).shape == (5, 2, 2)
    exact = Pipeline([("white", whitener), ("attention", whole.estimator().fit(white[:60], y[:60]))])
    assert exact.score(whole.X @ mixing, y) > 0.99
    assert cosine_similarity(exact["attention"], whole.weights).min() > 0.999
    again = make_pipeline(TokenWhitener(), whole.estimator()).fit(whole.X @ mixing, y)
    assert cosine_similarity(again[-1], whole.weights).min() > 0.999
    assert again.score(whole.X[:50] @ mixing, y[:50]) > 0.99


def test_grid_search_finds_the_skip():
    # alpha = 2.5 in a fold: recovery for the true skip strength, model error for others
    whole = draw(2, 2, 150, 30, skip=1.0)
    grid = {"skip": [0.25, 1.0, 3.0]}
    one, parallel = (
        GridSearchCV(whole.estimator(), grid, cv=KFold(2), n_jobs=n_jobs).fit(whole.X, whole.y) for n_jobs in (1, 2)
    )
    assert one.best_params_ == {"skip": 1.0}
    assert one.best_score_ > 0.99
    assert one.cv_results_["mean_test_score"][[0, 2]].max() < 0.99
    # memory handed to other processes is aligned otherwise, and sums of vectors round otherwise
    np.testing.assert_allclose(one.cv_results_["mean_test_score"], parallel.cv_results_["mean_test_score"], rtol=1e-9)
    np.testing.assert_array_equal(one.predict(whole.X), parallel.predict(whole.X))


def test_cross_val_predict(two):
    folds = KFold(2)
    estimator = two.estimator()
    one = cross_val_predict(estimator, two.X, two.y, cv=folds)
    assert one.shape == (60, 2, 2)
    half = clone(estimator).fit(two.X[30:], two.y[30:]).predict(two.X[:30])
    np.testing.assert_array_equal(one[:30], half)
    flat = cross_val_predict(estimator, two.X, two.y.reshape(60, 4), cv=folds)
    np.testing.assert_array_equal(flat, one.reshape(60, 4))


def test_metadata_routing(two):
    with config_context(enable_metadata_routing=True):
        estimator = two.estimator().set_fit_request(callback=True).set_predict_request(return_std=True)
        pipeline = Pipeline([("white", TokenWhitener()), ("deep", estimator)])
        pipeline.fit(two.X, two.y, callback=lambda state: {"seen": 1.0})
        assert (pipeline["deep"].history_["seen"] == 1).all()
        mean, std = pipeline.predict(two.X, return_std=True)
        assert mean.shape == std.shape == two.y.shape


# ----------------------------------------------------------------------------------------------------------------
# bad parameters

BAD_PARAMETERS = [
    *(("n_layers", value, ">= 1") for value in (0, -1)),
    *(("n_layers", value, "an int") for value in (1.5, 2.0, "2", None, True, np.nan)),
    *(("n_layers", value, "must be 1, 2 or 3") for value in (4, 7)),
    *(("skip", value, ">= 0") for value in (-0.1, np.nan, np.inf, -np.inf)),
    *(("skip", value, "a number") for value in ("1", None, True, 1j, [1.0])),
    *(("inverse_temperature", value, "> 0") for value in (0, 0.0, -1.0, np.nan, np.inf)),
    *(("inverse_temperature", value, "a number") for value in ("1", None, True)),
    *(("damping", value, ">= 0") for value in (-0.1, np.nan)),
    *(("damping", value, "below 1") for value in (1, 1.0, 1.5)),
    *(("damping", value, "a number") for value in ("0.3", None, False, "adaptive")),
    *(("max_iter", value, ">= 1") for value in (0, -5)),
    *(("max_iter", value, "an int") for value in (1.5, "9", None, True, np.inf)),
    *(("tol", value, ">= 0") for value in (-1e-3, np.nan, np.inf)),
    *(("tol", value, "a number") for value in ("1e-3", None, True)),
    *(("warm_start", value, "True or False") for value in (None, 1, "yes")),
    ("verbose", -1, ">= 0"),
    *(("verbose", value, "a number") for value in ("loud", None)),
    *(("n_tokens", value, ">= 1") for value in (0, -3)),
    *(("n_tokens", value, "an int") for value in (1.5, "3", True)),
    *(("init", value, "'random'") for value in ("zeros", "Random", "")),
]


@pytest.mark.parametrize(("name", "value", "mend"), BAD_PARAMETERS, ids=lambda v: repr(v)[:30])
def test_parameters(two, name, value, mend):
    estimator = AMPDeepAttentionRegressor(**{name: value})
    # scikit-learn's rule: nothing is checked before fit, not even by set_params
    estimator.set_params(**{name: value})
    refused(lambda: estimator.fit(two.X, two.y), f"{name}={value!r}", mend)
    assert not learned(estimator)


def test_random_states_that_are_none(two):
    for value in ("dice", 1.5):
        refused(lambda v=value: AMPDeepAttentionRegressor(random_state=v).fit(two.X, two.y), repr(value))


@pytest.mark.parametrize("shape", [(1, 20), (3, 20), (2, 19), (20, 2)])
def test_shape_of_init(two, shape):
    refused(lambda: two.estimator(init=np.ones(shape)).fit(two.X, two.y), f"init has shape {shape}", "(2, 20)")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_init_that_is_not_finite(two, value):
    init = two.weights.copy()
    init[1, 3] = value
    refused(lambda: two.estimator(init=init).fit(two.X, two.y), "init contains")


@pytest.mark.parametrize(
    "init", [3, None, np.ones(20), np.ones((2, 20, 3)), [np.ones((20, 1))] * 3, {"a": 1}], ids=lambda v: repr(v)[:20]
)
def test_init_of_another_kind(two, init):
    refused(lambda: two.estimator(init=init).fit(two.X, two.y), "init", "(2, 20)")


@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "most"), [(2, 5, 4), (2, 9, 4), (3, 3, 2), (3, 4, 2)], ids=lambda v: str(v)
)
def test_too_many_tokens_for_the_depth(n_layers, n_tokens, most):
    many = draw(n_layers, n_tokens, 10, 4)
    refused(
        lambda: many.estimator().fit(many.X, many.y),
        f"n_tokens={n_tokens}",
        f"at most {most}",
        f"n_layers={n_layers}",
        "GDAttentionRegressor",
    )


def test_one_layer_takes_any_number_of_tokens():
    many = draw(1, 40, 20, 30)
    assert cosine_similarity(many.estimator().fit(many.X, many.y), many.weights)[0] > 0.999


# ----------------------------------------------------------------------------------------------------------------
# bad X and y


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(two, value):
    kind = "NaN" if np.isnan(value) else "infinity"
    bad_x, bad_y = two.X.copy(), two.y.copy()
    bad_x[3, 1, 2] = bad_y[5, 1, 0] = value
    refused(lambda: two.estimator().fit(bad_x, two.y), f"Input X contains {kind}")
    refused(lambda: two.estimator().fit(two.X, bad_y), f"Input y contains {kind}")
    fitted = two.estimator(max_iter=1).fit(two.X, two.y)
    for call in (fitted.predict, fitted.predict_index, lambda X: fitted.score(X, two.y)):
        refused(lambda c=call: c(bad_x), f"Input X contains {kind}")


def test_shapes_of_x_and_y(two):
    X, y, estimator = two.X, two.y, two.estimator()
    refused(lambda: estimator.fit(X[None], y), "X must have shape", "4 dimensions")
    refused(lambda: estimator.fit(X[:0], y[:0]), "0 sample(s)")
    refused(lambda: estimator.fit(X[:, :0], y), "0 token(s)")
    refused(lambda: estimator.fit(X[:, :, :0], y), "0 feature(s)")
    for wrong in (X[:, 0, 0], 1.0, None):
        refused(lambda X=wrong: estimator.fit(X, y), "X ")
    refused(lambda: estimator.fit(X, y[:-1]), "[60, 59]")
    refused(lambda: estimator.fit(X, 1.0), "[60, 1]")
    refused(lambda: estimator.fit(X, None), "requires y")
    for wrong in (y[:, :1, :1], y[:, :, :1], y[:, 0], y[:, 0, 0], y[..., None], y.reshape(60, 4)[:, :3]):
        refused(lambda y=wrong: estimator.fit(X, y), f"y has shape {wrong.shape}", "(60, 2, 2)", "(60, 4)")
    refused(lambda: estimator.fit(X[:, :, :], [y[0].tolist(), *y[1:, 0].tolist()]), "y is ragged")
    refused(lambda: estimator.fit([X[0], X[1, :1]], y[:2]), "X is ragged")
    refused(lambda: estimator.fit(X + 0j, y), "Complex data not supported")
    refused(lambda: estimator.fit(X, y + 0j), "Complex data not supported")
    refused(lambda: estimator.fit(X.astype(str).astype(object) + "a", y), "")
    refused(lambda: estimator.set_params(n_tokens=3).fit(X.reshape(60, 40), y), "n_tokens=3", "40 columns")
    refused(lambda: estimator.set_params(n_tokens=5).fit(X, y), "n_tokens=5", "2 tokens")
    refused(lambda: estimator.set_params(n_tokens=None).fit(X.reshape(60, 40), y), "set n_tokens")


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_one_token_has_no_attention(two, n_layers):
    estimator = AMPDeepAttentionRegressor(n_layers)
    refused(lambda: estimator.fit(two.X[:, :1], np.ones((60, 1, 1))), "n_tokens=1", "at least 2")
    refused(lambda: estimator.fit(two.X[:, 0], np.ones(60)), "n_tokens=1", "at least 2")


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_one_sample(n_layers):
    one = draw(n_layers, 2, 1, 5)
    refused(lambda: one.estimator().fit(one.X, one.y), "n_samples = 1", "at least 2")


def test_prediction_input(two):
    fitted = two.estimator(max_iter=1).fit(two.X, two.y)
    for method in (fitted.predict, fitted.predict_index):
        refused(lambda m=method: m(two.X[:, :, :7]), "X has 7 features", "AMPDeepAttentionRegressor is expecting 20")
        refused(lambda m=method: m(two.X[None]), "4 dimensions")
        refused(lambda m=method: m(two.X[:0]), "0 sample(s)")
        refused(lambda m=method: m(two.X[0, 0]), "Reshape your data")
        refused(lambda m=method: m(two.X[0]), "X[None]")
    refused(lambda: fitted.score(two.X, two.y[:-1]), "[59, 60]")


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(1, 3), (1, 5), (2, 3), (2, 4)])
def test_noisy_maps_name_the_worst_sample(n_layers, n_tokens):
    clean = draw(n_layers, n_tokens, 20, 6)
    rng = np.random.default_rng(0)
    noisy = clean.y.copy()
    for sample, size in ((4, 1e-3), (13, 0.3)):
        noisy[sample] *= 1 + size * rng.random((n_tokens, n_tokens))
    noisy /= noisy.sum(axis=2, keepdims=True)
    estimator = clean.estimator(max_iter=1)
    refused(lambda: estimator.fit(clean.X, noisy), "softmax(u u^T)", "y[13]", "GDAttentionRegressor")
    rounded = np.clip(np.round(clean.y, 4), 1e-4, 1)
    rounded /= rounded.sum(axis=2, keepdims=True)
    refused(lambda: estimator.fit(clean.X, rounded), "softmax(u u^T)")


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_maps_of_two_tokens_that_no_u_has(n_layers):
    # the log-ratios of the two rows are u_1 (u_1 - u_2) and u_2 (u_2 - u_1), whose sum is a square; all else has a u
    clean = draw(n_layers, 2, 20, 6)
    away = clean.y.copy()
    away[4], away[7] = [[0.4, 0.6], [0.6, 0.4]], [[0.1, 0.9], [0.9, 0.1]]
    refused(lambda: clean.estimator().fit(clean.X, away), "softmax(u u^T)", "y[7]", "GDAttentionRegressor")


def test_zeros_and_sums_of_y(two):
    for value in (0.0, -0.2):
        bad = two.y.copy()
        bad[7, 1] = [1 - value, value]
        refused(lambda y=bad: two.estimator().fit(two.X, y), "> 0", f"y[7, 1, 1]={value}")
    refused(lambda: two.estimator().fit(two.X, 1.1 * two.y), "rows of y must sum to 1", "1.1 in y[0, 0]", "Normalise")
    refused(lambda: two.estimator().fit(two.X, two.y.transpose(0, 2, 1)), "rows of y must sum to 1")
    refused(lambda: two.estimator().fit(two.X, np.tile(np.eye(2), (60, 1, 1))), "> 0", "=0.0")
    refused(lambda: two.estimator().fit(two.X, np.tile(np.eye(2, dtype=int), (60, 1, 1))), "> 0")


def test_weights_that_underflow_in_the_precision_of_x(two):
    # 1e-60 in double precision is shown well, and must not be called a zero of a y in single precision
    y = two.y.copy()
    u = np.array([12.0, 0.5])
    y[0] = softmax(u[:, None] * u, axis=1)
    assert 0 < y.min() < 1e-45
    estimator = two.estimator(max_iter=1)
    try:
        estimator.fit(two.X.astype(np.float32), y)
    except ValueError as error:
        assert "X" in str(error)  # noqa: PT017


# ----------------------------------------------------------------------------------------------------------------
# nothing is lost by a failed fit


def stop(error):
    def callback(state):
        if state["iteration"] == 1:
            raise error

    return callback


FAILURES = {
    "other features, bad labels": lambda e, X, y: e.fit(X[:, :, :3], 1.1 * y),
    "noisy labels": lambda e, X, y: e.fit(X[:, :, :3], y[:, ::-1]),
    "missing labels": lambda e, X, y: e.fit(X[:, :, :3], None),
    "flattened sequences without n_tokens": lambda e, X, y: e.fit(X.reshape(60, -1), y),
    "NaN": lambda e, X, y: e.fit(np.full((60, 2, 3), np.nan), y),
    "one sample": lambda e, X, y: e.fit(X[:1, :, :3], y[:1]),
    "nothing determined": lambda e, X, y: e.fit(X[:, :, :3], np.full_like(y, 0.5)),
    "a frame of other columns": lambda e, X, y: e.fit(pd.DataFrame(X.reshape(60, -1)).rename(columns=str), y),
    "a bad parameter": lambda e, X, y: e.set_params(skip=-1).fit(X[:, :, :3], y),
    "a bad start": lambda e, X, y: e.set_params(init=np.ones((5, 5))).fit(X[:, :, :3], y),
    "a callback that raises": lambda e, X, y: e.fit(X[:, :, :3], y, callback=stop(KeyError("missing"))),
    "an interrupt": lambda e, X, y: e.fit(X[:, :, :3], y, callback=stop(KeyboardInterrupt())),
    "a callback that overwrites": lambda e, X, y: e.fit(X[:, :, :3], y, callback=lambda s: {"overlap": 0}),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_fit_loses_nothing(failure):
    two_layers = draw(2, 2, 60, 20)
    estimator = two_layers.estimator().fit(two_layers.X, two_layers.y)
    before = {name: id(value) for name, value in learned(estimator).items()}
    expected = estimator.predict(two_layers.X), estimator.predict_index(two_layers.X)
    with pytest.raises((ValueError, KeyError, KeyboardInterrupt)):
        FAILURES[failure](estimator, two_layers.X, two_layers.y)
    assert {name: id(value) for name, value in learned(estimator).items()} == before
    # predictions know of the parameters
    estimator.set_params(**two_layers.params)
    np.testing.assert_array_equal(estimator.predict(two_layers.X), expected[0])
    np.testing.assert_array_equal(estimator.predict_index(two_layers.X), expected[1])
    # nor is a first fit half done
    first = two_layers.estimator()
    with pytest.raises((ValueError, KeyError, KeyboardInterrupt)):
        FAILURES[failure](first, two_layers.X, two_layers.y)
    assert not learned(first)
    with pytest.raises(NotFittedError):
        first.predict(two_layers.X)


# ----------------------------------------------------------------------------------------------------------------
# hard input


def constant_features():
    hard = draw(2, 2, 60, 20)
    hard.X[:, :, 3], hard.X[:, :, 4] = 1.0, 0.0
    return hard


def unrelated(n_layers):
    hard = draw(n_layers, 2, 40, 20)
    return Teacher(hard.X, np.roll(hard.y, 1, axis=0), hard.weights, hard.params)


def changed(change):
    hard = draw(2, 2, 20, 10)
    return Teacher(change(hard.X), hard.y, hard.weights, hard.params)


def scaled(factor):
    return changed(lambda X: factor * X)


HARD = {
    "n=2, d=1": lambda: draw(2, 2, 2, 1),
    "n=2, d=200": lambda: draw(2, 2, 2, 200),
    "n=3, d=50": lambda: draw(2, 2, 3, 50),
    "n=3, d=50, one layer": lambda: draw(1, 4, 3, 50),
    "n=3, d=20, three layers": lambda: draw(3, 2, 3, 20),
    "n=30, d=60": lambda: draw(2, 2, 30, 60),
    "n=500, d=2": lambda: draw(2, 2, 500, 2),
    "constant features": constant_features,
    "features of zeros": lambda: scaled(0.0),
    "small features": lambda: scaled(1e-6),
    "tiny features": lambda: scaled(1e-200),
    "shifted features": lambda: changed(lambda X: X + 5),
    "unrelated maps": lambda: unrelated(2),
    "unrelated maps, one layer": lambda: unrelated(1),
    "one sequence repeated": lambda: Teacher(
        *(np.repeat(a, 30, axis=0) for a in make_deep_attention_sequences(1, 2, 8, random_state=0)), None, {}
    ),
    "no skip": lambda: draw(2, 2, 20, 10, skip=0.0, max_iter=40),
    "hardly a skip": lambda: draw(2, 2, 20, 10, skip=1e-8, max_iter=40),
    "strong skip": lambda: draw(2, 2, 40, 20, skip=5.0),
    "cold": lambda: draw(2, 2, 20, 10, beta=10.0, max_iter=40),
    "hot": lambda: draw(2, 2, 40, 20, beta=1e-4),
}


@pytest.mark.parametrize("kind", HARD)
def test_hard_input_never_ends_in_nan(kind):
    hard = HARD[kind]()
    with warnings.catch_warnings():
        # says that it did not converge, and nothing else
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = hard.estimator().fit(hard.X, hard.y)
        mean, std = estimator.predict(hard.X, return_std=True)
    assert all_finite(estimator)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-6)
    assert np.linalg.eigvalsh(estimator.posterior_covariance_).min() > 0
    assert 1 <= estimator.n_iter_ <= hard.estimator().max_iter


@pytest.mark.parametrize(
    "make",
    [
        lambda: (scaled(100.0), {}),
        lambda: (scaled(1000.0), {}),
        lambda: (draw(2, 2, 20, 10), {"inverse_temperature": 1e-8}),
        lambda: (draw(2, 2, 20, 10), {"init": 1e10 * np.ones((2, 10))}),
    ],
    ids=["X times 100", "X times 1000", "beta=1e-8", "a start of 1e10"],
)
def test_nonsense_is_not_called_converged(make):
    hard, params = make()
    try:
        estimator = hard.estimator(**params).fit(hard.X, hard.y)
    except ValueError:
        return
    # V is at most the prior's, I, up to chance
    assert not estimator.converged_ or np.diag(estimator.overlap_).min() > -0.5


@pytest.mark.parametrize("scale", [1e100, 1e150, 1e300])
def test_features_that_overflow_are_refused(two, scale):
    # as GDAttentionRegressor does
    refused(lambda: two.estimator().fit(scale * two.X, two.y), "X", "TokenWhitener")


@pytest.mark.parametrize("scale", [1e10, 1e100])
def test_predictions_of_large_tokens_are_distributions(two, scale):
    mean = two.estimator().fit(two.X, two.y).predict(scale * two.X)
    np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-9)


def test_small_spread_in_single_precision(two):
    X = two.X.astype(np.float32)
    estimator = two.estimator(max_iter=2).fit(X, two.y.astype(np.float32))
    estimator.posterior_covariance_ = 1e-12 * np.eye(2)
    # |dy/dz| is of order 1: one rounding of y, 6e-8, is more than enough
    assert estimator.predict(X, return_std=True)[1].max() < 2e-5


def test_one_seed_for_data_and_estimator_is_no_hint():
    # two sequences span four of 400 dimensions: at most cos = 0.1 can be learned, and chance gives 0.05
    hint = draw(2, 2, 2, 400, random_state=7, max_iter=1)
    estimator = hint.estimator(random_state=7).fit(hint.X, hint.y)
    assert cosine_similarity(estimator, hint.weights).max() < 0.4


def test_identical_tokens_are_left_out(two):
    X, y = two.X.copy(), two.y.copy()
    # uniform attention: u_1 = u_2, of unknown size
    X[5, 1], y[5] = X[5, 0], 0.5
    estimator = two.estimator().fit(X, y)
    assert estimator.n_undetermined_ == 1
    assert estimator.sample_complexity_ == 3
    rest = two.estimator().fit(np.delete(X, 5, axis=0), np.delete(y, 5, axis=0))
    np.testing.assert_allclose(estimator.weights_, rest.weights_, rtol=0, atol=1e-7)
    assert np.isfinite(estimator.predict(X)).all()
    # the model itself, and not just exact thirds
    three = draw(1, 3, 60, 20)
    three.X[7, 1:] = three.X[7, 0]
    z = np.einsum("nai,li->nla", three.X, three.weights) / np.sqrt(20)
    assert three.estimator().fit(three.X, maps_of(z)).n_undetermined_ == 1


def test_two_of_three_equal_tokens_are_fine():
    three = draw(1, 3, 60, 20)
    three.X[7, 2] = three.X[7, 1]
    z = np.einsum("nai,li->nla", three.X, three.weights) / np.sqrt(20)
    estimator = three.estimator().fit(three.X, maps_of(z))
    assert estimator.n_undetermined_ == 0
    assert cosine_similarity(estimator, three.weights)[0] > 0.999


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_no_sequence_is_determined(n_layers):
    hard = draw(n_layers, 2, 10, 4)
    refused(lambda: hard.estimator().fit(hard.X, np.full_like(hard.y, 0.5)), "y shows nothing", "double precision")


def test_single_precision_of_weak_maps_leaves_sequences_out():
    weak = draw(2, 2, 200, 10, beta=0.01, dtype=np.float32)
    estimator = weak.estimator().fit(weak.X, weak.y)
    assert 0 < estimator.n_undetermined_ < 100
    assert cosine_similarity(estimator, weak.weights).min() > 0.99


# ----------------------------------------------------------------------------------------------------------------
# learning


def cosines(teacher, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator = teacher.estimator(**params).fit(teacher.X, teacher.y)
    assert estimator.converged_
    return cosine_similarity(estimator, teacher.weights), estimator


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "n_samples", "n_features"),
    [
        # equations a sequence and unknowns: T n against L d, and room for small d
        (1, 2, 100, 100),
        (1, 3, 80, 120),
        (1, 4, 60, 150),
        (2, 2, 300, 150),
    ],
)
def test_teachers_are_recovered(n_layers, n_tokens, n_samples, n_features, seed):
    teacher = draw(n_layers, n_tokens, n_samples, n_features, random_state=seed)
    cosine, estimator = cosines(teacher)
    assert (cosine > 0.999).all()
    # weights, not only directions; and the estimator knows
    assert np.abs(align_signs(estimator, teacher.weights) - teacher.weights).max() < 0.01
    assert np.diag(estimator.overlap_).min() > 0.999


@pytest.mark.parametrize(("skip", "beta"), [(0.5, 1.0), (2.0, 1.0), (1.0, 0.3)])
def test_teachers_of_other_skips_and_temperatures_are_recovered(skip, beta):
    cosine, _ = cosines(draw(2, 2, 200, 100, random_state=3, skip=skip, beta=beta))
    assert (cosine > 0.999).all()


def test_three_tokens_at_depth_two_are_recovered():
    cosine, _ = cosines(draw(2, 3, 20, 8, random_state=1))
    assert (cosine > 0.999).all()


def test_three_layers_are_recovered():
    # at small d some starts end in a wrong fixed point, without converging; this one does not
    cosine, _ = cosines(draw(3, 2, 40, 12, random_state=1))
    assert (cosine > 0.999).all()


@pytest.mark.parametrize("seed", range(3))
def test_last_layer_is_learned_first(seed):
    # Q_22 = 0.772, and layer 1 has its threshold at 0.718
    teacher = draw(2, 2, 150, 300, random_state=seed)
    estimator = teacher.estimator().fit(teacher.X, teacher.y)
    first, last = cosine_similarity(estimator, teacher.weights)
    assert first < 0.3
    # cos = 0.88 on average, and small d scatters
    assert last > 0.6
    overlap = np.diag(estimator.overlap_)
    assert overlap[0] < 0.1
    assert 0.6 < overlap[1] < 0.95


@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "n_samples"),
    # half of the thresholds, 1/(T^2 + T) at one layer and 0.185 at two
    [(1, 2, 16), (2, 2, 18)],
)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_learned_below_the_threshold(n_layers, n_tokens, n_samples, seed):
    teacher = draw(n_layers, n_tokens, n_samples, 200, random_state=seed)
    estimator = teacher.estimator().fit(teacher.X, teacher.y)
    assert np.abs(estimator.overlap_).max() < 0.1
    assert np.mean(estimator.weights_**2) < 0.05
    assert (cosine_similarity(estimator, teacher.weights) < 0.5).all()
    # as good as the prior: the mean over z normal, which knows nothing of X
    spread = np.abs(estimator.predict(teacher.X) - estimator.predict(np.zeros_like(teacher.X))).max()
    assert spread < 0.25


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, 0.772), (0.7, 0.970)])
def test_state_evolution_is_reached(alpha, expected):
    squares = []
    for seed in range(5):
        teacher = draw(2, 2, round(alpha * 600), 600, random_state=seed)
        estimator = teacher.estimator().fit(teacher.X, teacher.y)
        squares.append(cosine_similarity(estimator, teacher.weights)[1] ** 2)
    error = np.std(squares, ddof=1) / np.sqrt(5)
    assert abs(np.mean(squares) - expected) < 3 * error + 1 / np.sqrt(600)


# ----------------------------------------------------------------------------------------------------------------
# symmetries

SEEDS = st.integers(0, 10**6)
# what iterations make of rounding
ROUNDING = 1e-6


@st.composite
def problems(draw_, layers=((1, 2), (1, 3), (1, 4), (2, 2))):
    """A teacher, and a start that knows something of it."""
    n_layers, n_tokens = draw_(st.sampled_from(layers))
    seed, d = draw_(SEEDS), draw_(st.integers(2, 10))
    skip, beta = draw_(st.sampled_from([0.5, 1.0, 2.0])), draw_(st.sampled_from([0.5, 1.0]))
    teacher = draw(n_layers, n_tokens, draw_(st.integers(4, 25)), d, random_state=seed, skip=skip, beta=beta)
    noise = np.random.default_rng(seed).standard_normal(teacher.weights.shape)
    return teacher, 0.5 * teacher.weights + 0.3 * noise


def iterate(teacher, X, y, init):
    # eight damped steps: too short to amplify rounding where there's no fixed point
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return teacher.estimator(init=init, max_iter=8).fit(X, y)


def assert_same(one, other, weights=None):
    expected = one.weights_ if weights is None else weights
    np.testing.assert_allclose(other.weights_, expected, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(other.posterior_covariance_, one.posterior_covariance_, rtol=0, atol=ROUNDING)
    assert other.n_iter_ == one.n_iter_


@settings(max_examples=15)
@given(problems(), SEEDS)
def test_rotated_features_rotate_the_weights(problem, seed):
    teacher, init = problem
    Q = ortho_group.rvs(init.shape[1], random_state=seed)
    one = iterate(teacher, teacher.X, teacher.y, init)
    other = iterate(teacher, teacher.X @ Q, teacher.y, init @ Q)
    assert_same(one, other, one.weights_ @ Q)
    np.testing.assert_allclose(other.predict(teacher.X @ Q), one.predict(teacher.X), rtol=0, atol=ROUNDING)


@settings(max_examples=15)
@given(problems(), SEEDS)
def test_permuted_samples_leave_the_weights(problem, seed):
    teacher, init = problem
    order = np.random.default_rng(seed).permutation(len(teacher.X))
    one = iterate(teacher, teacher.X, teacher.y, init)
    assert_same(one, iterate(teacher, teacher.X[order], teacher.y[order], init))


@settings(max_examples=15)
@given(problems(), SEEDS)
def test_permuted_tokens_leave_the_weights(problem, seed):
    teacher, init = problem
    n_samples, n_tokens, _ = teacher.X.shape
    rng = np.random.default_rng(seed)
    # an order of its own for every sequence
    order = np.array([rng.permutation(n_tokens) for _ in range(n_samples)])
    X = np.take_along_axis(teacher.X, order[:, :, None], axis=1)
    y = np.take_along_axis(np.take_along_axis(teacher.y, order[:, :, None], axis=1), order[:, None, :], axis=2)
    one, other = iterate(teacher, teacher.X, teacher.y, init), iterate(teacher, X, y, init)
    assert_same(one, other)


@settings(max_examples=15)
@given(problems())
def test_signs_of_features_leave_the_weights(problem):
    # -X turns all indices, and maps show none of their signs
    teacher, init = problem
    assert_same(iterate(teacher, teacher.X, teacher.y, init), iterate(teacher, -teacher.X, teacher.y, init))


@settings(max_examples=15)
@given(problems(), st.integers(0, 3))
def test_signs_of_the_start_are_those_of_the_weights(problem, which):
    # every layer has a sign of its own that maps do not show
    teacher, init = problem
    signs = np.array([1 - 2 * (which & 1), 1 - (which & 2)])[: len(init), None]
    one = iterate(teacher, teacher.X, teacher.y, init)
    other = iterate(teacher, teacher.X, teacher.y, signs * init)
    np.testing.assert_allclose(other.weights_, signs * one.weights_, rtol=0, atol=ROUNDING)
    expected = signs * one.posterior_covariance_ * signs.T
    np.testing.assert_allclose(other.posterior_covariance_, expected, rtol=0, atol=ROUNDING)


@settings(max_examples=10)
@given(problems(layers=((1, 2), (1, 3))), st.floats(0.1, 3.0))
def test_temperature_of_one_layer_changes_nothing(problem, beta):
    # beta is known, so that u is, whatever its size in y
    teacher, init = problem
    z = np.einsum("nai,li->nla", teacher.X, teacher.weights) / np.sqrt(init.shape[1])
    one = iterate(teacher, teacher.X, teacher.y, init)
    teacher = Teacher(teacher.X, None, teacher.weights, {**teacher.params, "inverse_temperature": beta})
    other = iterate(teacher, teacher.X, maps_of(z, beta=beta), init)
    np.testing.assert_allclose(other.weights_, one.weights_, rtol=0, atol=1e-4)


@settings(max_examples=10)
@given(problems())
def test_doubled_samples_are_survived(problem):
    teacher, init = problem
    X, y = np.repeat(teacher.X, 2, axis=0), np.repeat(teacher.y, 2, axis=0)
    estimator = iterate(teacher, X, y, init)
    assert all_finite(estimator)
    assert np.linalg.eigvalsh(estimator.posterior_covariance_).min() > 0
    mean, std = estimator.predict(X, return_std=True)
    np.testing.assert_allclose(mean.sum(axis=2), 1, rtol=1e-9)
    # of numbers between 0 and 1
    assert (std**2 <= mean - mean**2 + 1e-9).all()
    assert estimator.sample_complexity_ == 2 * len(teacher.X) / init.shape[1]


# ----------------------------------------------------------------------------------------------------------------
# cosine_similarity and align_signs


def test_cosines_are_angles():
    angle = 0.3
    estimate = [[1.0, 0.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
    truth = [[-5 * np.cos(angle), 0.0, 5 * np.sin(angle)], [1.0, -1.0, 0.0], [1.0, 2.0, 3.0], [0.0, -0.1, 0.0]]
    np.testing.assert_allclose(cosine_similarity(estimate, truth), [np.cos(angle), 0, 0, 1], rtol=1e-12, atol=1e-15)
    assert (cosine_similarity(truth, truth)[:3] <= 1).all()


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 4), st.integers(1, 9), st.floats(-300, 300), st.floats(-150, 150))
def test_cosines_know_no_scale_and_no_sign(seed, n_layers, d, log_scale, log_other):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, n_layers, d))
    expected = np.abs(np.sum(a * b, axis=1)) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(cosine_similarity(a, b), expected, rtol=1e-9, atol=1e-14)
    signs = rng.choice([-1.0, 1.0], (n_layers, 1))
    for first, second in ((10.0**log_scale * signs * a, b), (a, -(10.0**log_other) * b)):
        np.testing.assert_allclose(cosine_similarity(first, second), expected, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(cosine_similarity(b, a), cosine_similarity(a, b), rtol=1e-12)


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 4), st.integers(1, 9))
def test_aligned_signs(seed, n_layers, d):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, n_layers, d))
    aligned = align_signs(a, b)
    assert aligned.shape == (n_layers, d)
    assert (np.sum(aligned * b, axis=1) >= 0).all()
    np.testing.assert_array_equal(np.abs(aligned), np.abs(a))
    # whole layers turn
    assert all(np.array_equal(one, row) or np.array_equal(one, -row) for one, row in zip(aligned, a, strict=True))
    np.testing.assert_array_equal(align_signs(-a, b), aligned)
    np.testing.assert_array_equal(align_signs(a, -b), -aligned)


@pytest.mark.parametrize(("first", "second"), [(1e-200, 1e-200), (1e200, 1e200)])
def test_aligned_signs_of_any_scale(first, second):
    truth = np.array([[1.0, 1.0, 1.0]])
    estimate = np.array([[-1.0, 0.25, -1.0]])
    expected = -first * estimate
    np.testing.assert_array_equal(align_signs(first * estimate, second * truth), expected)


def test_shapes_of_layers(two):
    fitted = two.estimator(max_iter=2).fit(two.X, two.y)
    forms = {
        "estimator": fitted,
        "array": fitted.weights_,
        "list of rows": list(fitted.weights_),
        "tuple of columns": tuple(row[:, None] for row in fitted.weights_),
        "list of columns": [row[:, None] for row in fitted.weights_],
        "array of columns": fitted.weights_[:, :, None],
        "lists": fitted.weights_.tolist(),
        "single precision": fitted.weights_.astype(np.float64),
    }
    truth = [row[:, None] for row in two.weights]
    expected = cosine_similarity(fitted.weights_, two.weights)
    for form in forms.values():
        np.testing.assert_array_equal(cosine_similarity(form, truth), expected)
        np.testing.assert_array_equal(cosine_similarity(truth, form), expected)
        np.testing.assert_array_equal(align_signs(form, truth), align_signs(fitted.weights_, two.weights))
    one, other = two.weights
    for form in (one, one[None], [one], [one[:, None]]):
        assert cosine_similarity(form, other).shape == (1,)
        assert align_signs(form, other).shape == (1, 20)
    np.testing.assert_array_equal(align_signs([[1, 2]], [[-1, -2]]), [[-1.0, -2.0]])


@pytest.mark.parametrize("n_layers", [1, 2])
def test_layers_of_descent(n_layers):
    teacher = draw(n_layers, 2, 60, 10)
    descent = GDAttentionRegressor(1, n_layers=n_layers, scaling="sequence-index", random_state=0)
    descent.fit(teacher.X, teacher.y)
    W = descent.W_ if n_layers > 1 else descent.W_[None]
    np.testing.assert_array_equal(
        cosine_similarity(descent, teacher.weights), cosine_similarity(W[:, :, 0], teacher.weights)
    )
    wide = clone(descent).set_params(width=2).fit(teacher.X, teacher.y)
    refused(lambda: cosine_similarity(wide, teacher.weights), "estimate", "(10, 2)", "width 1")


@pytest.mark.parametrize("metric", [cosine_similarity, align_signs])
def test_layers_that_are_refused(metric):
    ones = np.ones((2, 4))
    for wrong, message in (
        (np.ones((3, 4)), "(3, 4)"),
        (np.ones((2, 3)), "(2, 3)"),
        (np.ones(4), "(1, 4)"),
        ([np.ones((4, 2))] * 2, "layer of shape (4, 2)"),
        (np.ones((2, 4, 2)), "layer of shape (4, 2)"),
        ([np.ones(4), np.ones(3)], "[4, 3]"),
        ([], "[]"),
        (np.full((2, 4), np.nan), "NaN or infinity"),
        (np.full((2, 4), np.inf), "NaN or infinity"),
    ):
        refused(lambda w=wrong: metric(w, ones), message, "estimate")
        refused(lambda w=wrong: metric(ones, w), message, "weights")


@pytest.mark.parametrize("metric", [cosine_similarity, align_signs])
@pytest.mark.parametrize("wrong", [3.0, None, "abc", GDAttentionRegressor(1)], ids=lambda v: repr(v)[:20])
def test_layers_that_are_none(metric, wrong):
    refused(lambda: metric(wrong, np.ones((2, 4))), "estimate")


@pytest.mark.parametrize("metric", [cosine_similarity, align_signs])
def test_layers_before_fit(metric):
    with pytest.raises(NotFittedError):
        metric(AMPDeepAttentionRegressor(), np.ones((2, 4)))
