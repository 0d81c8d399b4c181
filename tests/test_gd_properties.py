"""Symmetries and identities of gradient descent on attention layers, for every stack."""

import warnings
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import ortho_group
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim import GDAttentionRegressor, make_attention_sequences
from sklearn_aim.algorithms import attention_stack
from sklearn_aim.algorithms.attention_stack import AttentionStack, Objective
from sklearn_aim.estimators import _training

# seeds, small enough to read
SEEDS = st.integers(0, 10**6)


def rotation(size, seed):
    if size == 1:
        return np.array([[1.0 - 2.0 * (seed % 2)]])
    return ortho_group.rvs(size, random_state=seed)


# ----------------------------------------------------------------------------------------------------------------
# the loss and its gradient


@dataclass(frozen=True)
class Problem:
    """A stack, data, and factors of several starts, none of them special."""

    stack: AttentionStack
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    factors: np.ndarray

    def objective(self, factors=None, **changes):
        """Loss and gradient, with something changed."""
        parts = {"stack": self.stack, "X": self.X, "y": self.y, "weights": self.weights, **changes}
        return Objective(*parts.values(), n_threads=1)(self.factors if factors is None else factors)


@st.composite
def problems(draw, links=("identity", "softmax"), tied=(True, False), layers=(1, 3), weight_decay=(0.0, 0.3)):
    link = draw(st.sampled_from(links))
    deep = link == "softmax"
    stack = AttentionStack(
        n_features=draw(st.integers(1, 6)),
        width=draw(st.integers(1, 4)),
        tied=draw(st.sampled_from(tied)),
        n_layers=draw(st.integers(*layers)) if deep else 1,
        skip=draw(st.sampled_from([1.0, 0.0, -0.4])),
        link=link,
        inverse_temperature=draw(st.sampled_from([1.0, 0.3, 2.0])) if deep else 1.0,
        loss=draw(st.sampled_from(["squared_error", "cross_entropy"])) if deep else "squared_error",
        fit_bias=draw(st.booleans()),
        scaling=draw(st.sampled_from(attention_stack.SCALINGS)),
        center=draw(st.booleans()),
        weight_decay=draw(st.sampled_from(weight_decay)),
    )
    rng = np.random.default_rng(draw(SEEDS))
    n_samples, n_tokens = draw(st.integers(1, 8)), draw(st.integers(2, 4))
    y = rng.standard_normal((n_samples, n_tokens, n_tokens))
    if stack.loss == "cross_entropy":
        y = softmax(y, axis=2)
    return Problem(
        stack,
        rng.standard_normal((n_samples, n_tokens, stack.n_features)),
        y,
        rng.uniform(0.1, 2.0, n_samples),
        rng.standard_normal((draw(st.integers(1, 3)), *stack.shape)),
    )


def assert_same(got, expected):
    """Losses and gradients, up to rounding."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11 * max(1.0, np.abs(other).max()))


def by_layer(stack, factors):
    """A copy of factors as (n_starts, n_layers, rows, d)."""
    return factors.reshape(-1, stack.n_layers, stack.rows, stack.n_features).copy()


@settings(max_examples=40)
@given(problems(), SEEDS)
def test_rotated_features_rotate_the_gradient(problem, seed):
    Q = rotation(problem.stack.n_features, seed)
    loss, gradient = problem.objective()
    assert_same(problem.objective(problem.factors @ Q.T, X=problem.X @ Q.T), (loss, gradient @ Q.T))


@settings(max_examples=40)
@given(problems(), SEEDS)
def test_order_of_samples_and_tokens_changes_nothing(problem, seed):
    rng = np.random.default_rng(seed)
    n_samples, n_tokens, _ = problem.X.shape
    expected = problem.objective()
    order = rng.permutation(n_samples)
    assert_same(
        problem.objective(X=problem.X[order], y=problem.y[order], weights=problem.weights[order]),
        expected,
    )
    # an order of its own for every sequence
    order = np.array([rng.permutation(n_tokens) for _ in range(n_samples)])
    X = np.take_along_axis(problem.X, order[:, :, None], axis=1)
    y = np.take_along_axis(np.take_along_axis(problem.y, order[:, :, None], axis=1), order[:, None, :], axis=2)
    assert_same(problem.objective(X=X, y=y), expected)


@settings(max_examples=40)
@given(problems(), SEEDS, st.booleans())
def test_loss_sees_factors_through_the_interaction(problem, seed, flip):
    # W W^T and U V^T are those of W O and of U O, V O
    stack, width = problem.stack, problem.stack.width
    rotations = np.array([-np.eye(width) if flip else rotation(width, seed + k) for k in range(stack.n_layers)])

    def turned(factors):
        layers = by_layer(stack, factors)
        for first in (0,) if stack.tied else (0, width):
            layers[:, :, first : first + width] = rotations @ layers[:, :, first : first + width]
        return layers.reshape(factors.shape)

    loss, gradient = problem.objective()
    assert_same(problem.objective(turned(problem.factors)), (loss, turned(gradient)))


@settings(max_examples=30)
@given(problems(tied=(False,), weight_decay=(0.0,)), SEEDS)
def test_queries_and_keys_may_be_mixed_inversely(problem, seed):
    # U V^T is that of U A, V A^-T
    stack, width = problem.stack, problem.stack.width
    A = rotation(width, seed) * np.random.default_rng(seed).uniform(0.5, 2.0, width)

    def mixed(factors, left, right):
        layers = by_layer(stack, factors)
        layers[:, :, :width] = left.T @ layers[:, :, :width]
        layers[:, :, width : 2 * width] = right.T @ layers[:, :, width : 2 * width]
        return layers.reshape(factors.shape)

    inverse = np.linalg.inv(A).T
    loss, gradient = problem.objective()
    assert_same(problem.objective(mixed(problem.factors, A, inverse)), (loss, mixed(gradient, inverse, A)))


@settings(max_examples=30)
@given(problems(tied=(True,)))
def test_tied_factors_are_untied_ones_that_agree(problem):
    stack, width = problem.stack, problem.stack.width
    layers = by_layer(stack, problem.factors)
    both = np.concatenate([layers[:, :, :width], layers], axis=2)
    untied = replace(stack, tied=False)
    loss, gradient = problem.objective(both.reshape(-1, *untied.shape), stack=untied)
    gradient = by_layer(untied, gradient)
    gradient[:, :, width : 2 * width] += gradient[:, :, :width]
    assert_same((loss, gradient[:, :, width:].reshape(problem.factors.shape)), problem.objective())


@settings(max_examples=30)
@given(problems(links=("identity",), tied=(False,)))
def test_transposed_maps_exchange_queries_and_keys(problem):
    assume(not problem.stack.fit_bias)
    width = problem.stack.width
    loss, gradient = problem.objective()
    exchanged = np.roll(problem.factors, width, axis=1)
    assert_same(problem.objective(exchanged, y=problem.y.transpose(0, 2, 1)), (loss, np.roll(gradient, width, axis=1)))


@settings(max_examples=30)
@given(problems(links=("softmax",), weight_decay=(0.0,)))
def test_temperature_is_a_scale_of_the_factors(problem):
    stack, beta = problem.stack, problem.stack.inverse_temperature
    # beta h is quadratic in W (bilinear in U, V) and linear in b
    scale = np.full(stack.rows, np.sqrt(beta))
    scale[stack.rows - stack.fit_bias :] = beta
    scale = np.tile(scale, stack.n_layers)[:, None]
    loss, gradient = problem.objective()
    one = replace(stack, inverse_temperature=1.0)
    assert_same(problem.objective(scale * problem.factors, stack=one), (loss, gradient / scale))


@settings(max_examples=30)
@given(problems(weight_decay=(0.0,)))
def test_scalings_differ_by_a_scale_of_the_factors(problem):
    # S = W W^T/sqrt(r d) and W W^T/sqrt(d)
    stack = replace(problem.stack, scaling="sequence-index")
    scale = np.full(stack.rows, stack.width**0.25)
    scale[stack.rows - stack.fit_bias :] = 1
    scale = np.tile(scale, stack.n_layers)[:, None]
    loss, gradient = problem.objective(stack=stack)
    same = replace(stack, scaling="attention-index")
    assert_same(problem.objective(scale * problem.factors, stack=same), (loss, gradient / scale))
    np.testing.assert_allclose(
        same.interactions(scale * problem.factors), stack.interactions(problem.factors), rtol=1e-12, atol=1e-13
    )


@settings(max_examples=30)
@given(problems(links=("softmax",), layers=(2, 3), weight_decay=(0.0,)))
def test_later_layers_are_a_stack_on_what_the_first_leaves(problem):
    stack = problem.stack
    rest = replace(stack, n_layers=stack.n_layers - 1)
    expected_loss, expected_gradient = problem.objective()
    layers = by_layer(stack, problem.factors)
    for start, factors in enumerate(layers):
        _, attention = replace(stack, n_layers=1).outputs(factors[None, 0], problem.X)
        passed = stack.skip * problem.X + attention[:, 0] @ problem.X
        loss, gradient = problem.objective(factors[1:].reshape(1, *rest.shape), stack=rest, X=passed)
        assert_same((loss, gradient), (expected_loss[[start]], expected_gradient[[start], stack.rows :]))


@settings(max_examples=30)
@given(problems())
def test_starts_do_not_see_each_other(problem):
    loss, gradient = problem.objective()
    for start in range(len(problem.factors)):
        alone = problem.objective(problem.factors[[start]])
        assert_same(alone, (loss[[start]], gradient[[start]]))


@settings(max_examples=30)
@given(problems(weight_decay=(0.0,)))
def test_maps_of_the_stack_itself_are_a_minimum(problem):
    # a start that is the teacher: no loss, no gradient, and no start has less
    _, maps = problem.stack.outputs(problem.factors, problem.X)
    loss, gradient = problem.objective(y=maps[:, 0])
    scale = 1 + np.abs(maps[:, 0]).max() ** 2
    assert loss[0] == pytest.approx(0, abs=1e-12 * scale)
    np.testing.assert_allclose(gradient[0], 0, atol=1e-10 * scale * (1 + np.abs(problem.X).max() ** 2))
    assert (loss >= -1e-12 * scale).all()


@settings(max_examples=30)
@given(problems(), SEEDS, st.sampled_from([1e-8, 0.5, 1e12]))
def test_weights_are_relative_and_count_sequences(problem, seed, factor):
    expected = problem.objective()
    assert_same(problem.objective(weights=factor * problem.weights), expected)
    counts = np.random.default_rng(seed).integers(0, 3, len(problem.X))
    counts[0] += 1
    repeated = np.repeat(np.arange(len(problem.X)), counts)
    ones = np.ones(len(repeated))
    # a weight of zero is no sequence
    weighted = problem.objective(weights=counts)
    assert_same(problem.objective(X=problem.X[repeated], y=problem.y[repeated], weights=ones), weighted)
    # so do minibatches
    objective = Objective(problem.stack, problem.X, problem.y, np.ones(len(problem.X)), n_threads=1)
    assert_same(objective(problem.factors, repeated), weighted)
    assert objective(problem.factors, repeated, gradient=False)[1] is None
    assert_same([objective(problem.factors, repeated, gradient=False)[0]], weighted[:1])


@settings(max_examples=30)
@given(problems(weight_decay=(0.0,)), st.floats(0.01, 10.0))
def test_weight_decay_is_a_nuclear_norm(problem, decay):
    stack = problem.stack
    d, width = stack.n_features, stack.width
    loss = problem.objective()[0]
    added = problem.objective(stack=replace(stack, weight_decay=decay))[0] - loss
    layers = by_layer(stack, problem.factors)
    if stack.scaling == "sequence-index":
        squares = np.sum(layers[:, :, : stack.rows - stack.fit_bias] ** 2, axis=(1, 2, 3))
        np.testing.assert_allclose(added, decay * squares / d / (1 if stack.tied else 2), rtol=1e-6)
        return
    norms = np.linalg.norm(stack.interactions(problem.factors), "nuc", axis=(2, 3)).sum(axis=1)
    if stack.tied:
        np.testing.assert_allclose(added, decay * norms / d, rtol=1e-6)
        return
    # untied factors bound it from above, and reach it where they are balanced
    assert (added >= decay * norms / d * (1 - 1e-6)).all()
    for start, layer in np.ndindex(*layers.shape[:2]):
        U, V = layers[start, layer, :width].T, layers[start, layer, width : 2 * width].T
        left, singular, right = np.linalg.svd(U @ V.T)
        rank = min(width, d)
        root = np.sqrt(singular[:rank])[:, None]
        layers[start, layer, : 2 * width] = 0
        layers[start, layer, :rank] = root * left.T[:rank]
        layers[start, layer, width : width + rank] = root * right[:rank]
    balanced = layers.reshape(problem.factors.shape)
    best = problem.objective(balanced, stack=replace(stack, weight_decay=decay))[0] - loss
    np.testing.assert_allclose(best, decay * norms / d, rtol=1e-6)


@settings(max_examples=25)
@given(problems(), st.integers(1, 12), st.sampled_from([1, 2, 16]))
def test_blocks_round_and_threads_do_not(problem, rows, lanes):
    expected = problem.objective()
    results = []
    sizes = {"_BLOCK_ELEMENTS": 1, "_BLOCK_ROWS": rows, "_LANES": lanes}
    with patch.multiple(attention_stack, **sizes):
        for n_threads in (1, 3):
            with Objective(problem.stack, problem.X, problem.y, problem.weights, n_threads=n_threads) as objective:
                results.append(objective(problem.factors))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same(results[0], expected)


# ----------------------------------------------------------------------------------------------------------------
# the estimator

# what a few iterations make of rounding
ROUNDING = 1e-7
SOLVERS = st.sampled_from([{"solver": "lbfgs"}, {"solver": "adam"}, {"solver": "sgd", "learning_rate": 0.01}])


@st.composite
def data(draw):
    """Teacher data of some setting, and the parameters of an estimator of it that stops early."""
    link, tied, d = draw(st.sampled_from(["identity", "softmax"])), draw(st.booleans()), draw(st.integers(2, 6))
    params = {"width": 2, "tied": tied, "link": link, "max_iter": 8, "tol": 0.0, "random_state": draw(SEEDS)}
    if link == "softmax":
        params |= {"n_layers": draw(st.integers(1, 2)), "fit_bias": draw(st.booleans())}
    n_samples, n_tokens = draw(st.integers(5, 40)), draw(st.integers(2, 4))
    X, y = make_attention_sequences(
        n_samples, n_tokens, d, width=2, tied=tied, link=link, noise=0.1, random_state=draw(SEEDS)
    )
    return X, y, params


def fit(X, y, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GDAttentionRegressor(**params).fit(X, y)


def fit_from(factors, X, y, **params):
    """Fit that starts from given factors."""
    estimator = GDAttentionRegressor(warm_start=True, **params)
    estimator._factors = factors
    # what the factors mean, as a fit on the same data says
    estimator._stack = fit(X, y, **{**params, "max_iter": 1})._stack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y)


def starts_of(X, y, **params):
    """Random factors of the right shape."""
    return fit(X, y, **{**params, "max_iter": 1})._factors


@settings(max_examples=25)
@given(data(), SOLVERS, SEEDS)
def test_rotated_features_and_starts_rotate_the_estimate(problem, solver, seed):
    X, y, params = problem
    params = params | solver
    d = X.shape[2]
    Q = rotation(d, seed)
    if solver["solver"] == "adam":
        # adam takes entries one by one: no more than reordered features, and their signs
        rng = np.random.default_rng(seed)
        Q = np.eye(d)[rng.permutation(d)] * rng.choice([-1, 1], d)
    start = starts_of(X, y, **params)
    one, other = fit_from(start, X, y, **params), fit_from(start @ Q.T, X @ Q.T, y, **params)
    np.testing.assert_allclose(other.interaction_, Q @ one.interaction_ @ Q.T, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(other.bias_, one.bias_ @ Q.T, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(other.predict(X @ Q.T), one.predict(X), rtol=0, atol=10 * ROUNDING)
    np.testing.assert_allclose(other.loss_curve_[0], one.loss_curve_[0], rtol=1e-6, atol=ROUNDING)
    # and it did move
    assert one.loss_curve_[0].min() < one.loss_curve_[0][0]


@settings(max_examples=25)
@given(data(), SOLVERS, SEEDS)
def test_order_of_samples_and_tokens_leaves_the_estimate(problem, solver, seed):
    X, y, params = problem
    params = params | solver
    rng = np.random.default_rng(seed)
    samples = rng.permutation(len(X))
    tokens = np.array([rng.permutation(X.shape[1]) for _ in samples])
    X_moved = np.take_along_axis(X[samples], tokens[:, :, None], axis=1)

    def moved(maps):
        maps = np.take_along_axis(maps[samples], tokens[:, :, None], axis=1)
        return np.take_along_axis(maps, tokens[:, None, :], axis=2)

    one, other = fit(X, y, **params), fit(X_moved, moved(y), **params)
    np.testing.assert_allclose(other.interaction_, one.interaction_, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(one.predict(X_moved), moved(one.predict(X)), rtol=0, atol=1e-10)


@settings(max_examples=20)
@given(data(), st.sampled_from([0.1, 1e-3]))
def test_first_step_of_adam(problem, rate):
    # both means are the gradient's own: all entries move by the rate, but those of next to no gradient
    X, y, params = problem
    estimator = fit(X, y, **params)
    before, stack = estimator._factors.copy(), estimator._stack
    loss, gradient = Objective(stack, X, y, np.ones(len(X)))(before)
    estimator.set_params(learning_rate=rate).partial_fit(X, y)
    after = stack.interactions(before - rate * gradient / (np.abs(gradient) + 1e-8))
    np.testing.assert_allclose(estimator.interactions_.reshape(after.shape), after, rtol=0, atol=1e-10)
    assert estimator.loss_curve_[0][-1] == pytest.approx(loss[0], rel=1e-9, abs=1e-15)


@settings(max_examples=20)
@given(data(), st.sampled_from([{"solver": "adam"}, {"solver": "sgd"}]), st.sampled_from([None, 4, 100]))
def test_partial_fit_is_an_epoch_of_fit(problem, solver, batch_size):
    X, y, params = problem
    params = params | {**solver, "learning_rate": 0.003, "batch_size": batch_size, "max_iter": 3, "n_init": 2}
    estimator = fit(X, y, **params)
    # fit keeps the best iterates: here the last ones
    assume(all(np.argmin(curve) == 3 for curve in estimator.loss_curve_))
    stepwise = GDAttentionRegressor(**params)
    for _ in range(3):
        stepwise.partial_fit(X, y)
    # one batch of all sequences takes them in another order, which rounds differently
    np.testing.assert_allclose(stepwise.interactions_, estimator.interactions_, rtol=0, atol=1e-12)
    if batch_size is None:
        # one batch: the loss before each step is that of the last iterate
        np.testing.assert_allclose(stepwise.loss_curve_[0], estimator.loss_curve_[0][:-1], rtol=1e-12)


@settings(max_examples=10)
@given(data(), SOLVERS, st.sampled_from([None, 7]))
def test_jobs_change_no_digit(problem, solver, batch_size):
    X, y, params = problem
    params = params | {**solver, "n_init": 5}
    if solver["solver"] != "lbfgs":
        params["batch_size"] = batch_size
    # few columns a group, so that there are several
    with patch.object(_training, "_GROUP_COLUMNS", 8):
        one, other = (fit(X, y, n_jobs=n_jobs, **params) for n_jobs in (1, 2))
    for name in ("interactions_", "interaction_", "bias_", "losses_", "start_spread_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.n_iter_ == other.n_iter_
    for curves in zip(one.loss_curve_, other.loss_curve_, strict=True):
        np.testing.assert_array_equal(*curves)


@settings(max_examples=15)
@given(data())
def test_starts_do_not_depend_on_their_number(problem):
    X, y, params = problem
    three, five = (fit(X, y, n_init=n_init, **params) for n_init in (3, 5))
    np.testing.assert_array_equal(five.interactions_[:3], three.interactions_)
    np.testing.assert_array_equal(five.losses_[:3], three.losses_)
    assert len({*five.losses_}) == 5


@settings(max_examples=20)
@given(data(), SOLVERS, st.booleans())
def test_what_is_said_of_starts(problem, solver, average):
    X, y, params = problem
    estimator = fit(X, y, n_init=4, average=average, **params, **solver)
    best = np.argmin(estimator.losses_)
    assert estimator.best_loss_ == estimator.losses_[best]
    each, d, width = estimator.interactions_, X.shape[2], estimator.width_
    expected = each.mean(axis=0) if average else each[best]
    np.testing.assert_allclose(estimator.interaction_, expected, rtol=0, atol=1e-13)
    left, right = (estimator.W_, estimator.W_) if estimator.tied else (estimator.U_, estimator.V_)
    product = left @ np.swapaxes(right, -1, -2) / np.sqrt(width * d)
    np.testing.assert_allclose(product, each[best], rtol=0, atol=1e-13)
    # unbiased variance, and the mean square distance of the mean, or of one start, to an independent one
    spread = np.var(each, axis=0, ddof=1).sum(axis=(-1, -2)) / d
    np.testing.assert_allclose(estimator.start_spread_, spread, rtol=1e-10)
    # only where every start fits the maps is a run like a draw from the posterior
    exact = estimator.losses_.max() <= estimator.tol**2 * np.sum((y - 1 / y.shape[1]) ** 2) / len(y)
    assert hasattr(estimator, "estimation_error_") == exact
    if exact:
        np.testing.assert_allclose(estimator.estimation_error_, spread * (1.25 if average else 2), rtol=1e-10)


@pytest.mark.parametrize("params", [{"solver": "adam"}, {"solver": "sgd", "batch_size": 50}], ids=str)
def test_starts_that_share_passes_end_as_if_alone(params):
    X, y = make_attention_sequences(100, 2, 4, width=2, random_state=0)
    params = {"width": 2, "n_init": 5, "random_state": 0, "max_iter": 300, **params}
    together = fit(X, y, **params)
    with patch.object(_training, "_GROUP_COLUMNS", 1):
        alone = fit(X, y, **params)
    lengths = [len(curve) for curve in together.loss_curve_]
    assert lengths == [len(curve) for curve in alone.loss_curve_]
    # some went on when others had ended
    assert len(set(lengths)) > 1
    np.testing.assert_allclose(together.interactions_, alone.interactions_, rtol=0, atol=1e-6)


@settings(max_examples=15)
@given(data(), st.sampled_from([1, 3, 7]), SEEDS)
def test_loss_of_an_epoch_is_the_weighted_mean_of_its_minibatches(problem, batch_size, seed):
    X, y, params = problem
    weights = np.random.default_rng(seed).uniform(0, 5, len(X))
    # steps too small to be seen: all minibatches meet the same factors
    estimator = GDAttentionRegressor(**params | {"learning_rate": 1e-14, "batch_size": batch_size})
    estimator.partial_fit(X, y, sample_weight=weights)
    loss, _ = Objective(estimator._stack, X, y, weights)(estimator._factors)
    assert estimator.best_loss_ == estimator.loss_curve_[0][0] == pytest.approx(loss[0], rel=1e-9)
