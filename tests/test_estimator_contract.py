"""Estimators as scikit-learn expects them: its own checks, 3-D mirrors of those, and its tools around them."""

import pickle

import numpy as np
import pandas as pd
import pytest
import test_gd_contract
from conftest import amp_only, draw_teacher, gd_only
from scipy.special import softmax
from sklearn import __version__, config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from sklearn_aim import (
    AMPAttentionRegressor,
    BayesOptimalBound,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TeacherError,
    TokenWhitener,
    attention_error,
    attention_r2_score,
    attention_r2_scorer,
    estimation_error,
    make_attention_sequences,
    neg_attention_error_scorer,
)

# ----------------------------------------------------------------------------------------------------------------
# scikit-learn's own checks


SKLEARN = tuple(int(part) for part in __version__.split(".")[:2])
may_not_converge = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def cannot_apply_to_batches(estimator):
    name = "check_sample_weight_equivalence_on_dense_data"
    if getattr(estimator, "batch_size", None) is not None:
        return {name: "minibatches are drawn among other numbers of sequences"}
    if getattr(estimator, "solver", None) == "sgd":
        return {name: "steps depend on the number of sequences in a batch"}
    return {}


@may_not_converge
@parametrize_with_checks(
    [
        AMPAttentionRegressor(link="identity"),
        AMPAttentionRegressor(link="identity", noise="estimate"),
        GDAttentionRegressor(link="identity"),
        GDAttentionRegressor(link="identity", solver="adam", n_init=2, average=False, fit_bias=True, max_iter=30),
        GDAttentionRegressor(link="identity", solver="sgd", learning_rate=0.01, max_iter=30),
        GDAttentionRegressor(link="identity", batch_size=8, early_stopping=True, max_iter=5),
        TokenWhitener(),
        TokenWhitener(ridge=0.1),
        PositionMeanRegressor(),
    ],
    expected_failed_checks=cannot_apply_to_batches,
)
def test_sklearn_checks(estimator, check):
    check(estimator)


# Every check below fits 2-D X, one token a row, to one number a row, which softmax and hardmax exclude: a row of
# attention weights over a single token is always 1. Its 3-D mirror in this file is named beside it.
CANNOT_APPLY = {
    "check_dict_unchanged": "test_prediction_leaves_the_estimator_alone",
    "check_dont_overwrite_parameters": "test_fit_adds_public_attributes_with_a_trailing_underscore_only",
    "check_dtype_object": "test_objects_and_lists_are_accepted",
    "check_estimators_dtypes": "test_integers_are_accepted",
    "check_estimators_fit_returns_self": "test_fit_returns_self_and_keeps_parameters",
    "check_estimators_nan_inf": "test_prediction_refuses_nan_and_infinity",
    "check_estimators_overwrite_params": "test_fit_returns_self_and_keeps_parameters",
    "check_estimators_pickle": "test_pickle",
    "check_f_contiguous_array_estimator": "test_memory_layout_changes_nothing",
    "check_fit2d_1feature": "test_one_feature",
    "check_fit2d_predict1d": "test_prediction_refuses_one_dimension",
    "check_fit_check_is_fitted": "test_not_fitted",
    "check_fit_idempotent": "test_fit_is_idempotent",
    "check_fit_score_takes_y": "test_fit_and_score_take_y_second",
    "check_methods_sample_order_invariance": "test_prediction_goes_sample_by_sample",
    "check_methods_subset_invariance": "test_prediction_goes_sample_by_sample",
    "check_n_features_in": "test_input_attributes",
    "check_n_features_in_after_fitting": "test_prediction_refuses_other_features",
    "check_non_transformer_estimators_n_iter": "test_n_iter",
    "check_pipeline_consistency": "test_pipeline_of_one_step_is_the_estimator",
    "check_positive_only_tag_during_fit": "test_fit_returns_self_and_keeps_parameters",
    "check_readonly_memmap_input": "test_read_only_memmap",
    "check_regressor_data_not_an_array": "test_objects_and_lists_are_accepted",
    "check_regressors_int": "test_integers_are_accepted",
    "check_regressors_no_decision_function": "test_regressor_has_no_classifier_methods",
    "check_regressors_train": "test_predictions_explain_the_training_maps",
    "check_supervised_y_2d": "test_y_forms_agree",
}
# Those of methods and parameters that AMPAttentionRegressor doesn't have, and of a single sequence, which it refuses:
# mirrored in test_gd_contract.
CANNOT_APPLY_TO_DESCENT = {
    "check_all_zero_sample_weights_error": "test_sample_weights_that_are_refused",
    "check_estimators_partial_fit_n_features": "test_partial_fit_refuses_other_features",
    "check_fit2d_1sample": "test_one_sequence_can_be_fitted",
    "check_sample_weight_equivalence_on_dense_data": "test_weights_count_sequences",
    "check_sample_weights_list": "test_forms_of_sample_weights",
    "check_sample_weights_not_an_array": "test_forms_of_sample_weights",
    "check_sample_weights_not_overwritten": "test_forms_of_sample_weights",
    "check_sample_weights_pandas_series": "test_forms_of_sample_weights",
    "check_sample_weights_shape": "test_sample_weights_that_are_refused",
}
REASON = "fits one token a row, impossible for {}; mirrored in 3-D by {}"
MAPS_ONLY = [
    AMPAttentionRegressor(link="softmax"),
    AMPAttentionRegressor(link="hardmax"),
    GDAttentionRegressor(link="softmax"),
]


def cannot_apply(estimator):
    return CANNOT_APPLY | (CANNOT_APPLY_TO_DESCENT if isinstance(estimator, GDAttentionRegressor) else {})


def expected_failures(estimator):
    return {check: REASON.format(estimator.link, mirror) for check, mirror in cannot_apply(estimator).items()}


@parametrize_with_checks(MAPS_ONLY, expected_failed_checks=expected_failures)
def test_sklearn_checks_of_maps(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", MAPS_ONLY, ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.EstimatorCheckFailedWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_expected_failures_have_the_stated_reason(estimator):
    # a check that fails for any other reason, or passes, doesn't belong in the list
    mirrors = cannot_apply(estimator)
    results = check_estimator(estimator, on_fail=None, expected_failed_checks=expected_failures(estimator))
    if SKLEARN >= (1, 9):
        # earlier versions lack some of the checks
        assert {r["check_name"] for r in results} >= set(mirrors)
    for result in results:
        if result["check_name"] not in mirrors:
            assert result["status"] in ("passed", "skipped"), result
            continue
        assert result["status"] == "xfail", result
        causes, error = [], result["exception"]
        while error is not None:
            causes.append(str(error))
            error = error.__cause__ or error.__context__
        assert any("n_tokens=1 is outside" in cause for cause in causes), result
        assert mirrors[result["check_name"]] in globals() | vars(test_gd_contract)


# ----------------------------------------------------------------------------------------------------------------
# 3-D mirrors


def predictions(estimator, X):
    """What `predict` answers: means, and standard deviations where there are some."""
    if isinstance(estimator, AMPAttentionRegressor):
        return estimator.predict(X, return_std=True)
    return (estimator.predict(X),)


def test_clone_and_parameters(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not [name for name in vars(copy) if name.endswith("_")]
    copy.set_params(width=3, max_iter=7, link="identity")
    assert (copy.width, copy.max_iter, copy.link) == (3, 7, "identity")
    with pytest.raises(ValueError, match="temperature"):
        copy.set_params(temperature=1.0)


def test_fit_returns_self_and_keeps_parameters(teacher):
    estimator = teacher.estimator()
    before = estimator.get_params()
    X, y = teacher.X.copy(), teacher.y.copy()
    assert estimator.fit(X, y) is estimator
    after = estimator.get_params()
    assert all(after[name] is before[name] for name in before)
    predictions(estimator, X)
    estimator.score(X, y)
    np.testing.assert_array_equal(X, teacher.X)
    np.testing.assert_array_equal(y, teacher.y)


def test_fit_adds_public_attributes_with_a_trailing_underscore_only(teacher, fitted):
    added = set(vars(fitted)) - set(vars(teacher.estimator()))
    assert not [name for name in added if not (name.endswith("_") or name.startswith("_"))]
    headings = [line.split(" :")[0] for line in teacher.model.__doc__.splitlines() if " : " in line]
    documented = {name.strip() for heading in headings for name in heading.split(",")}
    public = {name for name in added if not name.startswith("_")}
    # d of a token is said by the shape of interaction_
    assert public - {"n_token_features_"} <= documented


def test_fit_is_idempotent(teacher, fitted):
    again = clone(fitted).fit(teacher.X, teacher.y)
    twice = clone(fitted).fit(teacher.X[:50], teacher.y[:50]).fit(teacher.X, teacher.y)
    for other in (again, twice):
        np.testing.assert_array_equal(other.interaction_, fitted.interaction_)
        np.testing.assert_array_equal(other.predict(teacher.X), fitted.predict(teacher.X))
        assert other.n_iter_ == fitted.n_iter_


def test_fit_and_score_take_y_second(teacher, fitted):
    assert fitted.score(teacher.X, teacher.y) == fitted.score(X=teacher.X, y=teacher.y)
    np.testing.assert_array_equal(clone(fitted).fit(X=teacher.X, y=teacher.y).interaction_, fitted.interaction_)


def test_pickle(teacher, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    for got, expected in zip(predictions(copy, teacher.X), predictions(fitted, teacher.X), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert set(vars(copy)) == set(vars(fitted))
    unfitted = pickle.loads(pickle.dumps(teacher.estimator()))
    assert unfitted.get_params() == teacher.estimator().get_params()


def test_prediction_leaves_the_estimator_alone(teacher, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    predictions(fitted, teacher.X)
    fitted.predict_index(teacher.X[:, :2])
    fitted.score(teacher.X, teacher.y)
    assert set(vars(copy)) == set(vars(fitted))
    for name, value in vars(copy).items():
        if isinstance(value, dict):
            assert value.keys() == vars(fitted)[name].keys()
        else:
            np.testing.assert_array_equal(value, vars(fitted)[name])


def test_input_attributes(teacher):
    estimator = teacher.estimator()
    assert not hasattr(estimator, "n_features_in_")
    estimator.fit(teacher.X, teacher.y)
    # the last axis, though scikit-learn's own validation would say 3, the tokens
    assert estimator.n_features_in_ == 8
    assert estimator.n_tokens_ == 3
    assert not hasattr(estimator, "feature_names_in_")
    assert estimator.interaction_.shape == (8, 8)
    assert estimator.width_ == 4
    assert estimator.width_ratio_ == 0.5
    assert estimator.sample_complexity_ == 200 / 64


def test_integer_width_is_the_width(teacher, fitted):
    same = teacher.estimator(width=4).fit(teacher.X, teacher.y)
    np.testing.assert_array_equal(same.interaction_, fitted.interaction_)
    assert (same.width_, same.width_ratio_) == (4, 0.5)


def test_prediction_goes_sample_by_sample(teacher, fitted):
    order = np.random.default_rng(0).permutation(len(teacher.X))
    for output in (fitted.predict, fitted.predict_index, lambda X: predictions(fitted, X)[-1]):
        together = output(teacher.X)
        np.testing.assert_allclose(output(teacher.X[order]), together[order], rtol=0, atol=1e-12)
        for start, stop in ((0, 1), (1, 8), (8, 200)):
            part = output(teacher.X[start:stop])
            np.testing.assert_allclose(part, together[start:stop], rtol=0, atol=1e-12)


def test_n_iter(teacher, fitted):
    assert isinstance(fitted.n_iter_, int)
    assert fitted.n_iter_ >= 1
    with pytest.warns(ConvergenceWarning, match="max_iter=3"):
        short = teacher.estimator(max_iter=3).fit(teacher.X, teacher.y)
    assert short.n_iter_ == 3
    assert not short.converged_


@may_not_converge  # one coefficient is far from the limit of many
def test_one_feature(teacher, fitted):
    one = draw_teacher(fitted.link, fitted.tied, n_features=1, width=1, n_samples=40, model=teacher.model)
    estimator = one.estimator().fit(one.X, one.y)
    assert estimator.interaction_.shape == (1, 1)
    assert np.isfinite(estimator.predict(one.X)).all()


def test_regressor_has_no_classifier_methods(fitted):
    assert not [m for m in ("decision_function", "predict_proba", "predict_log_proba") if hasattr(fitted, m)]


def test_predictions_explain_the_training_maps(teacher, fitted):
    # knowing S leaves the index noise alone; V is about 1/40 of it here, so that little more than that is lost
    oracle = teacher.estimator().fit(teacher.X, teacher.y)
    oracle.interaction_, oracle.estimation_error_ = teacher.S, 0.0
    X, y, _ = make_attention_sequences(
        2000,
        3,
        8,
        tied=teacher.params["tied"],
        link=teacher.params["link"],
        noise=teacher.noise,
        interaction=teacher.S,
        random_state=2,
        return_interaction=True,
    )
    best, learned = oracle.score(X, y), fitted.score(X, y)
    assert best - 0.06 < learned < best
    assert estimation_error(teacher.S, fitted.interaction_) < 0.15


def test_not_fitted(teacher):
    estimator = teacher.estimator()
    for call in (
        lambda: estimator.predict(teacher.X),
        lambda: estimator.predict_index(teacher.X),
        lambda: estimator.score(teacher.X, teacher.y),
        lambda: BayesOptimalBound.from_estimator(estimator),
        lambda: BayesOptimalBound.from_estimator(make_pipeline(TokenWhitener(), estimator)),
        lambda: PositionMeanRegressor().predict(teacher.X),
        lambda: PositionMeanRegressor().score(teacher.X, teacher.y),
        lambda: TokenWhitener().transform(teacher.X),
        lambda: TokenWhitener().inverse_transform(teacher.X),
        lambda: TokenWhitener().interaction_to_raw(teacher.S),
        lambda: TokenWhitener().get_feature_names_out(),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            call()


def test_prediction_refuses_other_features(teacher, fitted):
    expected = f"X has 7 features, but {teacher.model.__name__} is expecting 8 features"
    for method in (fitted.predict, fitted.predict_index):
        with pytest.raises(ValueError, match=expected):
            method(teacher.X[:, :, :7])


def test_prediction_refuses_one_dimension(teacher, fitted):
    with pytest.raises(ValueError, match="Reshape your data"):
        fitted.predict(teacher.X[0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_prediction_refuses_nan_and_infinity(teacher, fitted, value):
    X = teacher.X[:4].copy()
    X[1, 2, 3] = value
    for method in (fitted.predict, fitted.predict_index, lambda X: fitted.score(X, teacher.y[:4])):
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            method(X)


# ----------------------------------------------------------------------------------------------------------------
# what X and y may be


def draw_small(teacher):
    """Data of another shape for the same estimator."""
    link, tied = teacher.params["link"], teacher.params["tied"]
    return draw_teacher(link, tied, n_tokens=2, n_features=6, random_state=5, model=teacher.model)


def test_float32_in_float32_out(teacher, fitted):
    X, y = teacher.X.astype(np.float32), teacher.y.astype(np.float32)
    estimator = teacher.estimator().fit(X, y)
    assert estimator.interaction_.dtype == np.float32
    answers = predictions(estimator, X)
    assert all(answer.dtype == np.float32 for answer in answers)
    assert estimator.predict_index(X).dtype == np.float32
    # one estimate in two precisions, up to the tolerance at which iterations stop
    gap = estimation_error(estimator.interaction_, fitted.interaction_)
    assert gap < 1e-3 * estimation_error(teacher.S, fitted.interaction_)
    np.testing.assert_allclose(answers[0], fitted.predict(teacher.X), atol=5e-3)


def test_float32_survives_whitening_and_the_baseline(softmax_teacher):
    X, y = softmax_teacher.X.astype(np.float32), softmax_teacher.y.astype(np.float32)
    pipeline = make_pipeline(TokenWhitener(), softmax_teacher.estimator()).fit(X, y)
    assert pipeline.predict(X).dtype == np.float32
    assert pipeline[0].inverse_transform(pipeline[0].transform(X)).dtype == np.float32
    assert PositionMeanRegressor().fit(X, y).predict(X).dtype == np.float32


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
    np.testing.assert_allclose(estimator.interaction_, fitted.interaction_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fitted.predict(X), fitted.predict(teacher.X), rtol=0, atol=1e-12)


def test_read_only_memmap(teacher, fitted, tmp_path):
    mapped = []
    for name, array in (("X", teacher.X), ("y", teacher.y)):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    X, y = mapped
    assert not X.flags.writeable
    estimator = teacher.estimator().fit(X, y)
    np.testing.assert_array_equal(estimator.interaction_, fitted.interaction_)
    np.testing.assert_array_equal(estimator.predict(X), fitted.predict(teacher.X))
    assert estimator.score(X, y) == fitted.score(teacher.X, teacher.y)


def test_objects_and_lists_are_accepted(teacher, fitted):
    for X, y in (
        (teacher.X.tolist(), teacher.y.tolist()),
        (list(teacher.X), tuple(teacher.y)),
        (teacher.X.astype(object), teacher.y.astype(object)),
    ):
        estimator = teacher.estimator().fit(X, y)
        np.testing.assert_array_equal(estimator.interaction_, fitted.interaction_)
        np.testing.assert_array_equal(estimator.predict(X), fitted.predict(teacher.X))


def test_integers_are_accepted(teacher):
    X = np.rint(2 * teacher.X)
    link, tied = teacher.params["link"], teacher.params["tied"]
    y = teacher.y
    if link == "hardmax":
        y = y.astype(int)
    # coarse features are not what y came from: converged or not, the type of X must not matter
    with pytest.warns((ConvergenceWarning, UserWarning)):
        results = [teacher.estimator(max_iter=2, tied=tied).fit(X.astype(t), y) for t in (float, int, np.int32)]
    for other in results[1:]:
        assert other.interaction_.dtype == np.float64
        np.testing.assert_array_equal(other.interaction_, results[0].interaction_)


def test_y_forms_agree(teacher, fitted):
    flat = teacher.y.reshape(200, 9)
    estimator = teacher.estimator().fit(teacher.X, flat)
    np.testing.assert_array_equal(estimator.interaction_, fitted.interaction_)
    for three, two in zip(predictions(fitted, teacher.X), predictions(estimator, teacher.X), strict=True):
        assert three.shape == (200, 3, 3)
        assert two.shape == (200, 9)
        np.testing.assert_array_equal(two, three.reshape(200, 9))
    assert estimator.score(teacher.X, flat) == estimator.score(teacher.X, teacher.y)
    assert estimator.predict_index(teacher.X).shape == (200, 3, 3)


@pytest.mark.parametrize("model", [AMPAttentionRegressor, GDAttentionRegressor])
def test_scalar_y_of_single_tokens(model):
    one = draw_teacher("identity", True, n_tokens=1, n_samples=300, model=model)
    scalar = one.estimator().fit(one.X[:, 0], one.y[:, 0, 0])
    maps = one.estimator().fit(one.X, one.y)
    np.testing.assert_array_equal(scalar.interaction_, maps.interaction_)
    assert scalar.predict(one.X[:, 0]).shape == (300,)
    assert maps.predict(one.X).shape == (300, 1, 1)


def test_flattened_sequences_equal_3d(teacher, fitted):
    flat = teacher.X.reshape(200, 24)
    estimator = teacher.estimator(n_tokens=3).fit(flat, teacher.y)
    np.testing.assert_array_equal(estimator.interaction_, fitted.interaction_)
    np.testing.assert_array_equal(estimator.predict(flat), fitted.predict(teacher.X))
    # columns of X, as everywhere in scikit-learn
    assert estimator.n_features_in_ == 24
    assert estimator.n_tokens_ == 3
    with pytest.raises(ValueError, match=f"X has 21 features, but {teacher.model.__name__} is expecting 24"):
        estimator.predict(flat[:, :21])


def test_pandas(softmax_teacher):
    names = [f"token{t}_x{i}" for t in range(3) for i in range(8)]
    frame = pd.DataFrame(softmax_teacher.X.reshape(200, 24), columns=names)
    labels = pd.DataFrame(softmax_teacher.y.reshape(200, 9))
    estimator = softmax_teacher.estimator(n_tokens=3).fit(frame, labels)
    reference = softmax_teacher.estimator().fit(softmax_teacher.X, softmax_teacher.y)
    expected = reference.predict(softmax_teacher.X).reshape(200, 9)
    np.testing.assert_allclose(estimator.predict(frame), expected, rtol=0, atol=1e-10)
    assert list(estimator.feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(frame.rename(columns={"token0_x0": "other"}))
    with pytest.raises(ValueError, match="same order"):
        estimator.predict(frame[names[::-1]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        estimator.predict(frame.to_numpy())
    # names are forgotten with the data they belonged to
    estimator.set_params(n_tokens=None).fit(softmax_teacher.X, softmax_teacher.y)
    assert not hasattr(estimator, "feature_names_in_")


def test_pandas_through_a_pipeline(softmax_teacher):
    frame = pd.DataFrame(softmax_teacher.X.reshape(200, 24)).rename(columns=str)
    whitener = TokenWhitener(n_tokens=3).set_output(transform="pandas")
    white = whitener.fit_transform(frame)
    assert list(white.columns) == list(whitener.get_feature_names_out())
    assert white.shape == (200, 24)
    pipeline = make_pipeline(whitener, softmax_teacher.estimator(n_tokens=3)).fit(frame, softmax_teacher.y)
    direct = make_pipeline(TokenWhitener(), softmax_teacher.estimator()).fit(softmax_teacher.X, softmax_teacher.y)
    # other memory layouts round differently, which iterations amplify
    np.testing.assert_allclose(pipeline.predict(frame), direct.predict(softmax_teacher.X), rtol=0, atol=1e-7)


def test_refit_on_another_shape_forgets_the_first(teacher):
    other = draw_small(teacher)
    estimator = teacher.estimator().fit(teacher.X, teacher.y)
    estimator.fit(other.X, other.y.reshape(200, 4))
    fresh = teacher.estimator().fit(other.X, other.y.reshape(200, 4))
    assert (estimator.n_features_in_, estimator.n_tokens_, estimator.width_) == (6, 2, 3)
    assert set(vars(estimator)) == set(vars(fresh))
    np.testing.assert_array_equal(estimator.interaction_, fresh.interaction_)
    np.testing.assert_array_equal(estimator.predict(other.X), fresh.predict(other.X))


# ----------------------------------------------------------------------------------------------------------------
# predictions


def monte_carlo_maps(estimator, X, n_draws=40_000):
    """E[link(h + noise)] and its spread by brute force, h normal around `predict_index`."""
    rng = np.random.default_rng(0)
    omega = estimator.predict_index(X)
    n_samples, n_tokens, _ = omega.shape
    mean, std = np.empty_like(omega), np.empty_like(omega)
    for n in range(n_samples):
        z = rng.standard_normal((n_draws, n_tokens, n_tokens))
        if estimator.tied:
            # variance 1 off the diagonal, 2 on it
            z = (z + z.transpose(0, 2, 1)) / np.sqrt(2)
        h = omega[n] + np.sqrt(estimator.estimation_error_ + estimator.noise_) * z
        if estimator.link == "softmax":
            y = np.exp(h - h.max(axis=2, keepdims=True))
            y /= y.sum(axis=2, keepdims=True)
        elif estimator.link == "hardmax":
            y = (h == h.max(axis=2, keepdims=True)).astype(float)
        else:
            y = h
        mean[n], std[n] = y.mean(axis=0), y.std(axis=0)
    return mean, std


@amp_only
@pytest.mark.parametrize("n_tokens", [2, 3, 5])
def test_predictions_are_posterior_means(teacher, fitted, n_tokens):
    # the number of tokens may differ from that of fit: S doesn't depend on it
    X = np.random.default_rng(3).standard_normal((3, n_tokens, 8))
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (3, n_tokens, n_tokens)
    expected, spread = monte_carlo_maps(fitted, X)
    # five standard errors of the mean; rarer than 1e-4 is not seen in the draws
    assert (np.abs(mean - expected) <= 5 * np.maximum(spread, 0.01) / 200).all()
    np.testing.assert_allclose(std, spread, atol=0.02)


@gd_only
@pytest.mark.parametrize("n_tokens", [2, 3, 5])
def test_predictions_are_the_link_of_the_index(teacher, n_tokens):
    beta = 1.7 if teacher.params["link"] == "softmax" else 1.0
    estimator = teacher.estimator(inverse_temperature=beta).fit(teacher.X, teacher.y)
    X = np.random.default_rng(3).standard_normal((3, n_tokens, 8))
    expected = estimator.predict_index(X)
    if estimator.link == "softmax":
        expected = softmax(beta * expected, axis=2)
    np.testing.assert_allclose(estimator.predict(X), expected, rtol=0, atol=1e-12)


def test_predictions_for_other_numbers_of_tokens(teacher, fitted):
    X = np.random.default_rng(3).standard_normal((4, 5, 8))
    link, tied = fitted.link, fitted.tied
    y = make_attention_sequences(4, 5, 8, link=link, tied=tied, random_state=0)[1]
    built = clone(fitted).set_params(max_iter=1)
    with pytest.warns(ConvergenceWarning):
        built.fit(X, y)
    known = ("interaction_", "estimation_error_", "noise_")
    for name in known if teacher.model is AMPAttentionRegressor else known[:1]:
        setattr(built, name, getattr(fitted, name))
    np.testing.assert_array_equal(built.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(built.predict_index(X), fitted.predict_index(X))


def test_predict_index_is_the_definition(teacher, fitted):
    S = fitted.interaction_
    expected = np.einsum("nai,ij,nbj->nab", teacher.X, S, teacher.X)
    expected = (expected - np.trace(S) * np.eye(3)) / np.sqrt(8)
    np.testing.assert_allclose(fitted.predict_index(teacher.X), expected, rtol=0, atol=1e-12)
    if fitted.tied:
        np.testing.assert_allclose(S, S.T, rtol=0, atol=1e-12)


@gd_only
@pytest.mark.parametrize(
    ("params", "centred"),
    [
        ({}, True),
        ({"center": False}, False),
        ({"fit_bias": True}, False),
        ({"fit_bias": True, "center": True}, True),
        ({"scaling": "sequence-index"}, False),
        ({"scaling": "sequence-index", "center": True}, True),
        ({"average": False, "n_init": 2, "fit_bias": True}, False),
    ],
    ids=str,
)
def test_predict_index_is_the_definition_of_descent(teacher, params, centred):
    estimator = teacher.estimator(**params).fit(teacher.X, teacher.y)
    S, b = estimator.interaction_, estimator.bias_
    expected = np.einsum("nai,ij,nbj->nab", teacher.X, S, teacher.X) + (teacher.X @ b)[:, None, :]
    expected = (expected - (np.trace(S) * np.eye(3) if centred else 0)) / np.sqrt(8)
    np.testing.assert_allclose(estimator.predict_index(teacher.X), expected, rtol=0, atol=1e-12)
    # what is predicted is what was fitted: the loss is that of the predictions
    if estimator.n_init == 1:
        residual = np.sum((estimator.predict(teacher.X) - teacher.y) ** 2) / 200
        assert estimator.best_loss_ == pytest.approx(residual, rel=1e-9)
    # S of the factors, in the scaling that was asked for
    left, right = (estimator.W_, estimator.W_) if estimator.tied else (estimator.U_, estimator.V_)
    product = left @ right.T / np.sqrt(8 * (1 if estimator.scaling == "sequence-index" else 4))
    np.testing.assert_allclose(S, product, rtol=0, atol=1e-12)
    assert estimator.sample_complexity_ == 200 / (8 if estimator.scaling == "sequence-index" else 64)
    assert np.any(b) == estimator.fit_bias


def test_score_is_the_pooled_r2(teacher, fitted):
    X, y = teacher.X[:50], teacher.y[:50]
    residual = np.sum((y - fitted.predict(X)) ** 2)
    expected = 1 - residual / np.sum((y - y.mean()) ** 2)
    assert fitted.score(X, y) == pytest.approx(expected, rel=1e-12)
    # integer weights count samples
    weights = np.arange(50) % 3
    repeated = np.repeat(np.arange(50), weights)
    assert fitted.score(X, y, sample_weight=weights) == pytest.approx(fitted.score(X[repeated], y[repeated]), rel=1e-12)


def test_baseline_is_the_mean_map(teacher):
    baseline = PositionMeanRegressor().fit(teacher.X, teacher.y)
    np.testing.assert_allclose(baseline.map_, teacher.y.mean(axis=0), rtol=1e-14)
    np.testing.assert_array_equal(baseline.predict(teacher.X[:7]), np.repeat(baseline.map_[None], 7, axis=0))
    by_position = attention_r2_score(teacher.y, baseline.predict(teacher.X), by_position=True)
    assert by_position == pytest.approx(0, abs=1e-12)
    weights = np.arange(200) % 2
    odd = PositionMeanRegressor().fit(teacher.X, teacher.y, sample_weight=weights)
    np.testing.assert_allclose(odd.map_, teacher.y[1::2].mean(axis=0), rtol=1e-14)
    flat = PositionMeanRegressor(n_tokens=3).fit(teacher.X.reshape(200, 24), teacher.y.reshape(200, 9))
    np.testing.assert_array_equal(flat.predict(teacher.X.reshape(200, 24))[0], baseline.map_.ravel())


# ----------------------------------------------------------------------------------------------------------------
# warm starts, output, callbacks


def test_warm_start(teacher, fitted):
    warm = teacher.estimator(warm_start=True).fit(teacher.X, teacher.y)
    cold_iterations = warm.n_iter_
    assert cold_iterations == fitted.n_iter_
    warm.fit(teacher.X, teacher.y)
    assert warm.n_iter_ < cold_iterations
    gap = estimation_error(warm.interaction_, fitted.interaction_)
    assert gap < 0.1 * estimation_error(teacher.S, fitted.interaction_)
    # a start of another shape is no start
    small = draw_small(teacher)
    warm.fit(small.X, small.y)
    fresh = teacher.estimator().fit(small.X, small.y)
    np.testing.assert_array_equal(warm.interaction_, fresh.interaction_)


def test_html_repr(softmax_teacher):
    unfitted = softmax_teacher.estimator(width=0.25)
    text = unfitted._repr_html_()
    name = softmax_teacher.model.__name__
    assert name in text
    assert "0.25" in text
    pipeline = make_pipeline(TokenWhitener(), softmax_teacher.estimator()).fit(softmax_teacher.X, softmax_teacher.y)
    for part in ("Pipeline", "TokenWhitener", name):
        assert part in pipeline._repr_html_()
    assert "BayesOptimalBound" in BayesOptimalBound(0.5)._repr_html_()
    changed = {"AMPAttentionRegressor": "noise=0.1, width=0.5", "GDAttentionRegressor": "random_state=0, width=0.5"}
    assert repr(softmax_teacher.estimator()) == f"{name}({changed[name]})"


@amp_only
def test_verbose(teacher, fitted, capsys):
    teacher.estimator().fit(teacher.X, teacher.y)
    assert capsys.readouterr().out == ""
    teacher.estimator(verbose=1).fit(teacher.X, teacher.y)
    summary = capsys.readouterr().out.splitlines()
    assert len(summary) == 1
    assert f"converged after {fitted.n_iter_} iterations" in summary[0]
    assert f"V={fitted.estimation_error_:.4g}" in summary[0]
    teacher.estimator(verbose=2).fit(teacher.X, teacher.y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == fitted.n_iter_ + 1
    assert f"V={fitted.history_['estimation_error'][0]:.4g}" in lines[0]


@gd_only
def test_verbose_of_starts(teacher, capsys):
    teacher.estimator().fit(teacher.X, teacher.y)
    assert capsys.readouterr().out == ""
    # L-BFGS takes starts one by one: each is a group
    quiet = teacher.estimator(verbose=1, n_init=2).fit(teacher.X, teacher.y)
    summaries = capsys.readouterr().out.splitlines()
    assert len(summaries) == 2
    for number, (line, loss, curve) in enumerate(zip(summaries, quiet.losses_, quiet.loss_curve_, strict=True), 1):
        assert f"starts {number}/2" in line
        assert f"after {len(curve) - 1} iterations" in line
        assert f"loss {loss:.4g}" in line
    loud = teacher.estimator(verbose=2).fit(teacher.X, teacher.y)
    lines = capsys.readouterr().out.splitlines()
    # one more than iterations for the start itself, and the summary
    assert len(lines) == loud.n_iter_ + 2
    assert f"loss {loud.loss_curve_[0][0]:.4g}" in lines[0]


@amp_only
def test_history(teacher, fitted):
    columns = {"information", "estimation_error", "overlap", "residual", "log_likelihood", "energy_ratio", "damping"}
    assert columns <= set(fitted.history_)
    assert all(column.shape == (fitted.n_iter_,) for column in fitted.history_.values())
    assert all(np.isfinite(column).all() for column in fitted.history_.values())
    second_moment = 1.5 if fitted.tied else 1.0
    np.testing.assert_allclose(fitted.history_["overlap"] + fitted.history_["estimation_error"], second_moment)
    assert fitted.overlap_ + fitted.estimation_error_ == pytest.approx(second_moment, rel=1e-12)
    assert fitted.history_["information"][-1] == fitted.information_


@amp_only
def test_teacher_error_joins_the_history(teacher, fitted):
    estimator = teacher.estimator().fit(teacher.X, teacher.y, callback=TeacherError(teacher.S))
    np.testing.assert_array_equal(estimator.interaction_, fitted.interaction_)
    errors = estimator.history_["true_error"]
    assert errors.shape == (estimator.n_iter_,)
    assert errors[-1] == pytest.approx(estimation_error(teacher.S, estimator.interaction_), rel=1e-12)
    # no data: the prior mean, sqrt(rho) I or 0
    start = np.sqrt(0.5) * np.eye(8) if estimator.tied else np.zeros((8, 8))
    assert errors[-1] < 0.2 * estimation_error(teacher.S, start)


@amp_only
def test_callback_sees_every_iteration(teacher, fitted):
    seen = []
    estimator = teacher.estimator(verbose=2).fit(teacher.X, teacher.y, callback=seen.append)
    assert [state["iteration"] for state in seen] == list(range(estimator.n_iter_))
    np.testing.assert_array_equal([s["estimation_error"] for s in seen], estimator.history_["estimation_error"])
    np.testing.assert_array_equal(seen[-1]["interaction"], estimator.interaction_)
    # states are iterates of their own, not views of one that moves on
    assert not np.array_equal(seen[0]["interaction"], seen[-1]["interaction"])


# ----------------------------------------------------------------------------------------------------------------
# scikit-learn's tools


def raw_tokens(teacher):
    """Tokens of other mean and covariance, which the whitener undoes."""
    rng = np.random.default_rng(7)
    return teacher.X @ (np.eye(8) + 0.3 * rng.standard_normal((8, 8))) + rng.standard_normal(8)


def test_pipeline_of_one_step_is_the_estimator(teacher, fitted):
    pipeline = Pipeline([("attention", teacher.estimator())]).fit(teacher.X, teacher.y)
    np.testing.assert_array_equal(pipeline.predict(teacher.X), fitted.predict(teacher.X))
    assert pipeline.score(teacher.X, teacher.y) == fitted.score(teacher.X, teacher.y)


def test_pipeline_with_whitener(teacher, fitted):
    raw = raw_tokens(teacher)
    pipeline = Pipeline([("white", TokenWhitener()), ("attention", teacher.estimator())]).fit(raw, teacher.y)
    assert pipeline.predict(raw).shape == (200, 3, 3)
    # 600 tokens fix mean and covariance to a few per cent
    assert abs(pipeline.score(raw, teacher.y) - fitted.score(teacher.X, teacher.y)) < 0.05
    S = pipeline["white"].interaction_to_raw(pipeline["attention"].interaction_)
    assert S.shape == (8, 8)
    bound = BayesOptimalBound.from_estimator(pipeline)
    assert bound.get_params() == BayesOptimalBound(n_tokens=3, width_ratio=0.5, **noise_link_tied(teacher)).get_params()
    assert bound.sample_complexity_ == 200 / 64
    assert BayesOptimalBound.from_estimator(pipeline, raw[:64]).sample_complexity_ == 1.0


def noise_link_tied(teacher):
    # gradient descent knows of no noise
    return {
        "noise": 0.0,
        **{name: value for name, value in teacher.params.items() if name in ("noise", "link", "tied")},
    }


@may_not_converge  # half the data, wrong widths
def test_grid_search_in_parallel_gives_the_same(softmax_teacher):
    X, y = softmax_teacher.X, softmax_teacher.y
    pipeline = Pipeline([("white", TokenWhitener()), ("attention", softmax_teacher.estimator())])
    grid = {"attention__width": [2, 4]}
    one, two = (GridSearchCV(pipeline, grid, cv=KFold(2), n_jobs=n).fit(X, y) for n in (1, 2))
    # products of another process may round otherwise
    np.testing.assert_allclose(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"], rtol=1e-9)
    assert one.best_params_ == two.best_params_
    np.testing.assert_allclose(one.predict(X), two.predict(X), rtol=1e-9, atol=1e-11)
    assert BayesOptimalBound.from_estimator(one).width_ratio == one.best_params_["attention__width"] / 8


@may_not_converge  # half the data
def test_cross_val_predict(teacher):
    folds = KFold(2)
    one, two = (cross_val_predict(teacher.estimator(), teacher.X, teacher.y, cv=folds, n_jobs=n) for n in (1, 2))
    assert one.shape == (200, 3, 3)
    # products of another process may round otherwise
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)
    half = teacher.estimator().fit(teacher.X[100:], teacher.y[100:]).predict(teacher.X[:100])
    np.testing.assert_array_equal(one[:100], half)
    flat = cross_val_predict(teacher.estimator(), teacher.X, teacher.y.reshape(200, 9), cv=folds)
    np.testing.assert_array_equal(flat, one.reshape(200, 9))


@may_not_converge  # half the data
def test_scorers(teacher):
    folds = list(KFold(2).split(teacher.X))
    scores = cross_validate(
        teacher.estimator(),
        teacher.X,
        teacher.y,
        cv=folds,
        scoring={"r2": attention_r2_scorer, "error": neg_attention_error_scorer},
        return_estimator=True,
    )
    default = cross_val_score(teacher.estimator(), teacher.X, teacher.y, cv=folds)
    for i, (_, test) in enumerate(folds):
        y, predicted = teacher.y[test], scores["estimator"][i].predict(teacher.X[test])
        squares = np.sum((y - predicted) ** 2, axis=(1, 2))
        total = np.sum((y - y.mean()) ** 2)
        assert scores["test_error"][i] == pytest.approx(-squares.mean(), rel=1e-12)
        assert scores["test_r2"][i] == pytest.approx(1 - squares.sum() / total, rel=1e-12)
    np.testing.assert_array_equal(default, scores["test_r2"])


@may_not_converge  # few data
def test_learning_curve(teacher):
    sizes, train, test = learning_curve(
        make_pipeline(TokenWhitener(), teacher.estimator()), teacher.X, teacher.y, train_sizes=[20, 133], cv=3
    )
    assert list(sizes) == [20, 133]
    assert train.shape == test.shape == (2, 3)
    assert np.isfinite(train).all()
    # from a third of a sequence a coefficient to two
    assert test[1].mean() > test[0].mean() + 0.05


@may_not_converge  # wrong widths
def test_grid_search_finds_the_width():
    grid = [0.1, 0.2, 0.3, 0.4, 0.6]
    # a training fold of 600 is 1.3 times recovery, (2 rho - rho^2) d^2/4 = 459
    chosen = draw_teacher("softmax", True, 900, 2, 60, width=0.3, noise=0.05, random_state=0)
    search = GridSearchCV(chosen.estimator(), {"width": grid}, cv=3).fit(chosen.X, chosen.y)
    scores = search.cv_results_["mean_test_score"]
    assert search.best_params_["width"] in (0.2, 0.3, 0.4)
    # a maximum inside, that falls off on both sides
    assert scores[0] < scores[1] < scores.max()
    assert scores[-1] < scores[-2] <= scores.max()
    assert scores.max() - max(scores[0], scores[-1]) > 0.03
    # it also learns S best
    errors = {
        width: estimation_error(chosen.S, clone(search.best_estimator_).set_params(width=width).fit(*data).interaction_)
        for data in [(chosen.X, chosen.y)]
        for width in (0.1, 0.3, 0.6)
    }
    assert errors[0.3] < errors[0.1]
    assert errors[0.3] < errors[0.6]


@may_not_converge  # wrong widths
@pytest.mark.parametrize("link", ["identity", "softmax", "hardmax"])
def test_halving_search_over_width(link):
    teacher = draw_teacher(link, True, 900, 2, 16, width=0.25, noise=0.05, random_state=3)
    search = HalvingGridSearchCV(
        teacher.estimator(),
        {"width": [1, 4, 16]},
        factor=3,
        min_resources=300,
        cv=3,
        scoring=attention_r2_scorer,
        random_state=0,
    ).fit(teacher.X, teacher.y)
    assert search.n_resources_ == [300, 900]
    assert search.best_params_ == {"width": 4}
    assert search.predict(teacher.X[:5]).shape == (5, 2, 2)


def test_metadata_routing():
    teacher = draw_teacher("softmax", True)
    X, y = teacher.X, teacher.y
    weights = np.arange(200) % 3
    with config_context(enable_metadata_routing=True):
        amp = (
            teacher.estimator()
            .set_fit_request(callback=True)
            .set_predict_request(return_std=True)
            .set_score_request(sample_weight=True)
        )
        pipeline = Pipeline([("white", TokenWhitener()), ("amp", amp)])
        pipeline.fit(X, y, callback=TeacherError(teacher.S))
        assert "true_error" in pipeline["amp"].history_
        mean, std = pipeline.predict(X, return_std=True)
        assert mean.shape == std.shape == y.shape
        direct = pipeline["amp"].score(pipeline["white"].transform(X), y, sample_weight=weights)
        assert pipeline.score(X, y, sample_weight=weights) == direct
        assert pipeline.score(X, y, sample_weight=weights) != pipeline.score(X, y)

        folds = list(KFold(2).split(X))
        scores = cross_validate(amp, X, y, cv=folds, params={"sample_weight": weights}, return_estimator=True)
        for estimator, score, (_, test) in zip(scores["estimator"], scores["test_score"], folds, strict=True):
            expected = attention_r2_score(y[test], estimator.predict(X[test]), sample_weight=weights[test])
            assert score == pytest.approx(expected, rel=1e-12)
        scorer = neg_attention_error_scorer.set_score_request(sample_weight=True)
        search = GridSearchCV(amp, {"width": [0.5]}, cv=folds, scoring=scorer).fit(X, y, sample_weight=weights)
        expected = [
            -attention_error(y[test], e.predict(X[test]), sample_weight=weights[test])
            for e, (_, test) in zip(scores["estimator"], folds, strict=True)
        ]
        assert search.best_score_ == pytest.approx(np.mean(expected), rel=1e-12)
        baseline = PositionMeanRegressor().set_fit_request(sample_weight=True)
        routed = Pipeline([("mean", baseline)]).fit(X, y, sample_weight=weights)
        np.testing.assert_allclose(routed["mean"].map_, np.average(y, axis=0, weights=weights), rtol=1e-14)
