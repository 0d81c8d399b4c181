"""Displays: what they draw is what was computed, in the axes given, and matplotlib stays out until then."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from conftest import refused
from matplotlib import pyplot as plt
from matplotlib import rcParams
from matplotlib.figure import Figure
from scipy.integrate import trapezoid
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    AttentionMapDisplay,
    BayesOptimalBound,
    BoundDisplay,
    DeepBayesOptimalBound,
    GDAttentionRegressor,
    LayerOverlapDisplay,
    PhaseDiagramDisplay,
    SpectrumDisplay,
    TeacherError,
    TokenWhitener,
    TrajectoryDisplay,
    attention_error,
    cosine_similarity,
    make_attention_sequences,
    make_deep_attention_sequences,
)
from sklearn_aim.plotting import figure_style
from sklearn_aim.priors import make_prior


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    """One of four axes of a figure that pyplot does not know."""
    return Figure().subplots(2, 2)[1, 0]


@pytest.fixture(scope="module")
def amp():
    """A fit that knows its true errors, with X, y and S."""
    X, y, S = make_attention_sequences(
        700, n_tokens=2, n_features=60, width=0.5, random_state=0, return_interaction=True
    )
    return AMPAttentionRegressor(width=0.5).fit(X[:360], y[:360], callback=TeacherError(S)), X, y, S


@pytest.fixture(scope="module")
def deep():
    """A one-layer fit, whose bound takes no time, and the true weights."""
    X, y, weights = make_deep_attention_sequences(60, n_features=100, n_layers=1, random_state=0, return_weights=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AMPDeepAttentionRegressor(n_layers=1, random_state=1).fit(X, y), weights


BOUND = BayesOptimalBound(0.5)
ONE_LAYER = DeepBayesOptimalBound(n_layers=1)
MAPS = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 3))
DRAWN = {
    "bound": lambda **kw: BoundDisplay.from_bound(BOUND, **kw),
    "trajectory": lambda **kw: TrajectoryDisplay(estimation_error=[0.9, 0.5], evolution=[0.8, 0.6], limit=0.4).plot(
        **kw
    ),
    "spectrum": lambda **kw: SpectrumDisplay.from_interaction(np.diag([0.0, 1.0, 2.0]), 0.5, **kw),
    "phase": lambda **kw: PhaseDiagramDisplay.from_bound(BOUND, alpha=[0.1, 0.2], width_ratio=[0.5, 1.0], **kw),
    "layers": lambda **kw: LayerOverlapDisplay.from_bound(ONE_LAYER, alpha=[0.1, 0.4], **kw),
}


def test_the_package_imports_without_matplotlib():
    code = (
        "import sys, sklearn_aim, sklearn_aim.plotting\n"
        "assert not any(name.split('.')[0] == 'matplotlib' for name in sys.modules)\n"
        "sys.modules['matplotlib'] = None\n"
        "for draw in (lambda: sklearn_aim.BoundDisplay.from_bound(sklearn_aim.BayesOptimalBound()),\n"
        "             lambda: sklearn_aim.AttentionMapDisplay.from_predictions([[[1.0]]], [[[1.0]]], sequences=0),\n"
        "             sklearn_aim.plotting.figure_style):\n"
        "    try:\n"
        "        draw()\n"
        "    except ImportError as error:\n"
        "        assert 'pip install \"sklearn-aim[plot]\"' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", DRAWN)
def test_displays_draw_where_they_are_told_and_change_nothing_else(name, ax):
    before = rcParams.copy()
    display = DRAWN[name](ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert not plt.get_fignums()
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    # the others were left alone
    assert [other.has_data() for other in ax.figure.axes[:4]] == [False, False, True, False]
    other = DRAWN[name]()
    assert plt.get_fignums() == [other.figure_.number]
    other.figure_.canvas.draw()
    # it can be drawn again
    assert other.plot(ax=ax) is other
    assert other.ax_ is ax
    assert rcParams == before


@pytest.mark.parametrize("name", DRAWN)
def test_axes_must_be_axes(name):
    refused(lambda: DRAWN[name](ax=plt.figure()), "ax=", "Axes")


def test_style_holds_inside_its_context_only():
    before = rcParams.copy()
    with figure_style(**{"font.size": 7}):
        assert rcParams["font.size"] == 7
        assert not rcParams["axes.spines.top"]
    assert rcParams == before


# learning curves


def test_bound_and_points_are_those_computed():
    errors = np.array([[0.7, 0.74, 0.78], [0.38, 0.4, 0.45]])
    display = BoundDisplay.from_predictions([0.05, 0.3], errors, BOUND, name="AMP")
    alpha, curve = display.line_.get_data()
    np.testing.assert_allclose(curve, BOUND.estimation_error(alpha))
    # the curve reaches the points, and has a node at its corner
    assert alpha.max() >= 0.3
    assert 0.1875 in alpha
    assert display.threshold_line_.get_xdata()[0] == pytest.approx(0.1875)
    points, _, (bars,) = display.errorbar_
    np.testing.assert_allclose(points.get_data(), [[0.05, 0.3], errors.mean(axis=1)])
    ends = [segment[:, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(np.diff(ends)[:, 0] / 2, errors.std(axis=1, ddof=1))
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == [
        "Bayes-optimal bound",
        r"exact recovery, $\alpha = 0.1875$",
        "AMP, mean and s.d. of 3",
    ]


def test_bound_without_recovery_is_followed_to_small_errors():
    for bound in (BayesOptimalBound(0.5, noise=0.2), BayesOptimalBound(0.5, link="hardmax"), BayesOptimalBound(0)):
        display = BoundDisplay.from_bound(bound)
        alpha, curve = display.line_.get_data()
        np.testing.assert_allclose(curve, bound.estimation_error(alpha))
        assert curve[-1] < 0.11
        assert (display.threshold_line_ is None) == (bound.noise > 0 or bound.link == "hardmax")
    assert "n/(d r)" in display.ax_.get_xlabel()
    display = BoundDisplay.from_bound(BOUND, [0.1, 0.05], quantity="test_error")
    np.testing.assert_allclose(display.line_.get_ydata(), BOUND.test_error([0.05, 0.1]))
    assert "test error" in display.ax_.get_ylabel()
    assert display.threshold_line_ is None


@pytest.mark.parametrize(
    "bound",
    [
        BayesOptimalBound(0.5, noise=0.1, n_tokens=3),
        BayesOptimalBound(0.5, link="hardmax"),
        BayesOptimalBound(0.5),
        BayesOptimalBound(0.5, link="identity"),
    ],
    ids=["three tokens", "hardmax", "exact recovery", "identity"],
)
def test_curves_of_test_errors_are_interpolated(bound):
    alpha, curve = BoundDisplay.from_bound(bound, quantity="test_error").line_.get_data()
    assert (np.diff(curve) <= 1e-12).all()
    some = np.linspace(0, len(alpha) - 1, 7).astype(int)
    np.testing.assert_allclose(curve[some], bound.test_error(alpha[some]), rtol=1e-3, atol=1e-9)


def test_legend_of_a_run_that_leaves_state_evolution_covers_no_points():
    for end, place in ((0.1, "upper right"), (3.0, "lower right")):
        display = TrajectoryDisplay(
            estimation_error=[1.0, 0.5, 0.1], evolution=[1.0, 0.5, 0.1], limit=0.1, true_error=[1.0, 0.5, end]
        ).plot()
        legend = display.ax_.get_legend()
        assert legend._loc == legend.codes[place]


def test_learning_curve_of_an_estimator():
    X, y = make_attention_sequences(400, n_features=40, width=0.5, noise=0.3, random_state=0)
    est = make_pipeline(TokenWhitener(), AMPAttentionRegressor(width=0.5, noise=0.3))
    split = [(np.arange(300), np.arange(300, 400)), (np.arange(100, 400), np.arange(100))]
    display = BoundDisplay.from_estimator(est, X, y, train_sizes=(0.5, 300), cv=split)
    assert not hasattr(est[-1], "interaction_")
    np.testing.assert_allclose(display.measured_alpha, [150 / 1600, 300 / 1600])
    for j, (train, test) in enumerate(split):
        for i, size in enumerate((150, 300)):
            fit = est.fit(X[train[:size]], y[train[:size]])
            assert display.errors[i, j] == pytest.approx(attention_error(y[test], fit.predict(X[test])))
    alpha, curve = display.line_.get_data()
    # interpolated
    np.testing.assert_allclose(curve, BayesOptimalBound(0.5, noise=0.3).test_error(alpha), rtol=1e-5)


def test_keywords_of_matplotlib_reach_the_artists():
    display = BoundDisplay.from_predictions(
        [0.1], [0.4], BOUND, line_kw={"linewidth": 3, "label": "limit"}, errorbar_kw={"markersize": 9}
    )
    assert display.line_.get_linewidth() == 3
    assert display.line_.get_label() == "limit"
    assert display.errorbar_[0].get_markersize() == 9


def test_bad_learning_curves():
    draw = BoundDisplay.from_predictions
    refused(lambda: BoundDisplay.from_bound("bound"), "bound='bound'", "BayesOptimalBound")
    refused(lambda: BoundDisplay.from_bound(BOUND, quantity="loss"), "quantity='loss'", "test_error")
    refused(lambda: BoundDisplay.from_bound(BOUND, alpha=["x"]), "alpha=['x']", "numbers")
    refused(lambda: draw([0.1, np.nan], [1, 2], BOUND), "alpha=", "finite")
    refused(lambda: draw([-0.1], [1], BOUND), "alpha=[-0.1]", ">= 0")
    refused(lambda: draw([0.1, 0.2], [1], BOUND), "errors has shape (1,)", "(2, n_repeats)")
    refused(lambda: draw([0.1], ["x"], BOUND), "errors=['x']", "numbers")
    refused(lambda: draw([0.1], [np.inf], BOUND), "errors=[inf]", "finite")
    refused(lambda: draw([0.1], [0.5], BOUND, line_kw="red"), "line_kw='red'", "dict")
    refused(lambda: BoundDisplay(alpha=[0.1, 0.2], bound_error=[0.5]).plot(), "bound_error has shape (1,)", "(2,)")
    X, y = make_attention_sequences(20, n_features=4, random_state=0)
    est = AMPAttentionRegressor()
    for sizes, words in (
        ([], ("train_sizes is empty",)),
        ([1.5], ("train_sizes=1.5", "<= 1")),
        ([16], ("train_sizes=16", "<= 15")),
        ([True], ("train_sizes=True", "int")),
    ):
        refused(lambda s=sizes: BoundDisplay.from_estimator(est, X, y, train_sizes=s), *words)


# trajectories


def test_trajectory_compares_like_with_like(amp):
    est = amp[0]
    display = TrajectoryDisplay.from_estimator(est)
    steps = np.arange(1, est.n_iter_ + 1)
    path = BOUND.state_evolution(0.1, n_iter=est.n_iter_, damping=est.history_["damping"])
    np.testing.assert_allclose(display.evolution_line_.get_data(), [steps, path["estimation_error"]])
    np.testing.assert_allclose(display.line_.get_data(), [steps, est.history_["estimation_error"]])
    np.testing.assert_allclose(display.true_line_.get_data(), [steps, est.history_["true_error"]])
    np.testing.assert_allclose(display.limit_line_.get_ydata(), BOUND.estimation_error(0.1))
    # damping accounts for the whole difference: undamped state evolution is elsewhere
    np.testing.assert_allclose(path["estimation_error"], est.history_["estimation_error"], rtol=1e-6)
    assert abs(BOUND.state_evolution(0.1, n_iter=3)["estimation_error"] - path["estimation_error"][:3]).max() > 0.05
    # with keywords, and overlaps: Q0 = 1.5
    display = TrajectoryDisplay.from_estimator(est, quantity="overlap", points_kw={"ms": 3})
    np.testing.assert_allclose(display.line_.get_ydata(), est.history_["overlap"])
    np.testing.assert_allclose(display.true_line_.get_ydata(), 1.5 - est.history_["true_error"])
    assert display.true_line_.get_markersize() == 3


def test_trajectory_of_recovery_is_logarithmic():
    X, y = make_attention_sequences(500, n_features=40, width=0.1, random_state=0)
    display = TrajectoryDisplay.from_estimator(AMPAttentionRegressor(width=0.1).fit(X, y))
    assert display.ax_.get_yscale() == "log"
    assert display.true_line_ is None


def test_bad_trajectories(amp):
    est, X, y, _ = amp
    refused(lambda: TrajectoryDisplay.from_estimator(est, quantity="loss"), "quantity='loss'")
    refused(lambda: TrajectoryDisplay.from_estimator(est, bound=1), "bound=1")
    gd = GDAttentionRegressor(width=0.5, random_state=0, max_iter=5, tol=1.0).fit(X[:100], y[:100])
    refused(lambda: TrajectoryDisplay.from_estimator(gd), "no iterations of message passing")
    with pytest.raises(NotFittedError):
        TrajectoryDisplay.from_estimator(AMPAttentionRegressor())
    refused(
        lambda: TrajectoryDisplay(estimation_error=[1, 2], evolution=[1], limit=0).plot(), "evolution has shape (1,)"
    )


# spectra


def area(line, power=0):
    x, density = line.get_data()
    return trapezoid(density * x**power, x)


@pytest.mark.parametrize(("width", "tied"), [(0.5, True), (2.0, True), (0.5, False), (2.0, False)])
def test_prior_densities_have_the_moments_of_the_law(width, tied):
    *_, S = make_attention_sequences(2, n_features=300, width=width, tied=tied, random_state=0, return_interaction=True)
    display = SpectrumDisplay.from_interaction(S, width, tied=tied)
    assert area(display.line_) == pytest.approx(min(width, 1), rel=2e-3)
    assert area(display.line_, 2) == pytest.approx(1 + width if tied else 1, rel=2e-3)
    values = np.linalg.eigvalsh(S) if tied else np.linalg.svd(S, compute_uv=False)
    np.testing.assert_allclose(np.sort(display.values), np.sort(values), atol=1e-8)
    heights, edges, _ = display.patches_.get_data()
    assert heights @ np.diff(edges) == pytest.approx(1)
    np.testing.assert_allclose(heights, np.histogram(values, edges, density=True)[0])
    assert ("zeros" in display.line_.get_label()) == (width < 1)
    assert display.ax_.get_xlabel() == ("eigenvalue of $S$" if tied else "singular value of $S$")
    assert display.estimate_line_ is None


@pytest.mark.parametrize("tied", [True, False])
def test_posterior_means_have_a_density_of_their_own(tied):
    width = 0.7
    *_, S = make_attention_sequences(2, n_features=400, width=width, tied=tied, random_state=0, return_interaction=True)
    law, information = make_prior(width, tied), 3.0
    noise = np.random.default_rng(0).standard_normal(S.shape) / np.sqrt(len(S) * information)
    if tied:
        noise = (noise + noise.T) / np.sqrt(2)
    estimate = law.denoise(S + noise, information)
    display = SpectrumDisplay.from_interaction(estimate, width, tied=tied, information=information)
    x, density = display.estimate_line_.get_data()
    assert area(display.estimate_line_) == pytest.approx(1, rel=5e-3)
    # the second moment is that of the estimate: Q0 - V
    expected = law.second_moment - float(law.mmse(information))
    assert area(display.estimate_line_, 2) == pytest.approx(expected, rel=5e-3)
    assert np.mean(display.values**2) == pytest.approx(expected, rel=0.05)
    # quantiles of a drawn estimate are those of the curve
    cumulated = np.cumsum(np.append(0, np.diff(x) * (density[1:] + density[:-1]) / 2))
    for q in (0.25, 0.5, 0.75, 0.9):
        assert np.quantile(display.values, q) == pytest.approx(np.interp(q, cumulated, x), abs=0.06)


def test_spectrum_of_an_estimator(amp):
    est, X, y, _ = amp
    display = SpectrumDisplay.from_estimator(est)
    np.testing.assert_allclose(display.values, np.linalg.eigvalsh(est.interaction_), atol=1e-10)
    assert area(display.estimate_line_, 2) == pytest.approx(est.overlap_, rel=5e-3)
    assert display.ax_.get_legend().get_texts()[0].get_text() == "learned, $d$ = 60"
    # whitened features, of which the prior speaks, whoever whitens
    X = X[:360] @ np.diag(np.linspace(0.2, 3, 60))
    inside = AMPAttentionRegressor(width=0.5, whiten=0.0).fit(X, y[:360])
    outside = make_pipeline(TokenWhitener(0.0), AMPAttentionRegressor(width=0.5)).fit(X, y[:360])
    np.testing.assert_allclose(
        SpectrumDisplay.from_estimator(inside).values, SpectrumDisplay.from_estimator(outside).values, atol=1e-6
    )


def test_bad_spectra():
    draw = SpectrumDisplay.from_interaction
    refused(lambda: draw(np.ones((2, 3)), 0.5), "interaction has shape (2, 3)")
    refused(lambda: draw(np.full((2, 2), np.nan), 0.5), "interaction must be finite")
    refused(lambda: draw("S", 0.5), "interaction='S'", "array")
    refused(lambda: draw(np.eye(2), 0.0), "width_ratio=0.0", "> 0")
    refused(lambda: draw(np.eye(2), 0.5, tied=1), "tied=1")
    refused(lambda: draw(np.eye(2), 0.5, prior="flat"), "prior='flat'")
    refused(lambda: draw(np.eye(2), 0.5, information=-1.0), "information=-1.0", ">= 0")


# maps


def drawn_maps(display):
    return [[np.ma.filled(image.get_array(), np.nan) for image in row] for row in display.images_]


def test_maps_are_those_given_on_shared_scales():
    y, predicted = MAPS, MAPS[::-1]
    display = AttentionMapDisplay.from_predictions(y, predicted.reshape(4, 9), sequences=(3, 0), tokens=list("abc"))
    for j, i in enumerate((3, 0)):
        true, answer, error = (row[j] for row in drawn_maps(display))
        np.testing.assert_array_equal(true, y[i])
        np.testing.assert_array_equal(answer, predicted[i])
        np.testing.assert_allclose(error, predicted[i] - y[i])
        assert display.axes_[0, j].get_title() == f"sequence {i}"
    limits = [{image.get_clim() for image in row} for row in display.images_]
    assert limits[0] == limits[1] == {(0.0, max(y[[0, 3]].max(), predicted[[0, 3]].max()))}
    ((low, high),) = limits[2]
    assert low == -high
    assert [label.get_text() for label in display.axes_[2, 1].get_xticklabels()] == list("abc")
    assert len(display.colorbars_) == 2
    # numbers: 9 entries of 6 maps
    assert len(display.texts_) == 54
    assert not AttentionMapDisplay.from_predictions(y, y, include_values=False, colorbar=False).texts_


def test_maps_of_an_estimator_and_its_masks(amp):
    est, X, y, _ = amp
    display = AttentionMapDisplay.from_estimator(est, X, y, sequences=[5])
    np.testing.assert_array_equal(drawn_maps(display)[1][0], est.predict(X[[5]])[0])
    X, y = make_attention_sequences(300, n_tokens=4, n_features=20, width=0.5, noise=0.1, mask="causal", random_state=0)
    causal = AMPAttentionRegressor(width=0.5, noise=0.1).fit(X, y, mask="causal")
    display = AttentionMapDisplay.from_estimator(causal, X, y)
    upper = np.triu_indices(4, 1)
    for row in drawn_maps(display):
        for one in row:
            assert np.isnan(one[upper]).all()
            assert np.isnan(one).sum() == 6
    again = AttentionMapDisplay.from_estimator(causal, X, y, mask="causal")
    np.testing.assert_array_equal(drawn_maps(again), drawn_maps(display))
    # padding belongs to the sequences chosen
    keep = np.ones((300, 4), bool)
    keep[7, 3] = False
    display = AttentionMapDisplay.from_estimator(causal, X, y, sequences=(7, 8), mask=keep)
    assert [np.isnan(one).sum() for one in drawn_maps(display)[1]] == [7, 0]
    # lists of sequences
    parts, maps = [X[0], X[1, :3]], [y[0], y[1, :3, :3]]
    display = AttentionMapDisplay.from_estimator(causal, parts, maps, sequences=(0, 1))
    assert [one.shape for one in drawn_maps(display)[0]] == [(4, 4), (3, 3)]
    np.testing.assert_allclose(np.nan_to_num(drawn_maps(display)[1][1]), causal.predict(parts)[1], atol=1e-12)


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_maps_take_the_place_of_the_axes_given(layout):
    fig = Figure(layout=layout)
    left, right = fig.subplots(1, 2)
    display = AttentionMapDisplay.from_predictions(MAPS, MAPS, ax=left)
    assert display.bounding_ax_ is left
    assert display.figure_ is fig
    fig.draw_without_rendering()
    for panel in display.axes_.ravel():
        assert panel.get_position().x1 < right.get_position().x0
    free = Figure()
    corner = free.add_axes((0.5, 0.5, 0.4, 0.4))
    display = AttentionMapDisplay.from_predictions(MAPS, MAPS, ax=corner)
    for panel in display.axes_.ravel():
        box = panel.get_position()
        assert min(box.x0, box.y0) >= 0.499
        assert max(box.x1, box.y1) <= 0.901


def test_bad_maps(amp):
    est, X, y, _ = amp
    draw = AttentionMapDisplay.from_predictions
    refused(lambda: draw(MAPS, MAPS[:3]), "4 and 3 maps")
    refused(lambda: draw(MAPS, MAPS[:, :2, :2]), "differ in shape")
    refused(lambda: draw(MAPS[:, :2], MAPS), "y_true[0] has shape (2, 3)")
    refused(lambda: draw(["x"], MAPS), "y_true must hold attention maps")
    refused(lambda: draw([], []), "y_true holds no maps")
    refused(lambda: draw(MAPS * np.nan, MAPS), "y_true[0] holds NaN")
    refused(lambda: draw(MAPS, MAPS, sequences=(0, 4)), "sequences holds 4", "0 to 3")
    refused(lambda: draw(MAPS, MAPS, sequences=(0.5,)), "sequences=(0.5,)", "ints")
    refused(lambda: draw(MAPS, MAPS, sequences=()), "sequences is empty")
    refused(lambda: draw(MAPS, MAPS, tokens=["a"]), "tokens has [1, 1, 1] labels", "[3, 3, 3] tokens")
    refused(lambda: draw(MAPS, MAPS, titles=["a"]), "titles=['a']", "3 strings")
    refused(lambda: draw(MAPS, MAPS, mask=np.ones((4, 2, 2))), "mask must hold")
    refused(lambda: draw(MAPS, MAPS, include_values=1), "include_values=1")
    refused(lambda: draw(MAPS, MAPS, ax=3), "ax=3", "Axes")
    refused(lambda: AttentionMapDisplay.from_estimator(est, X, y, mask="past"), "mask='past'")


# phase diagrams


def test_phase_diagram_holds_the_bound_and_its_thresholds():
    alpha, widths = np.linspace(0.01, 0.3, 8), [0.1, 0.25, 1.0]
    display = PhaseDiagramDisplay.from_bound(BayesOptimalBound(0.9, n_tokens=2), alpha, widths, scale="linear")
    for row, width in zip(display.errors, widths, strict=True):
        np.testing.assert_allclose(row, BayesOptimalBound(width).estimation_error(alpha))
    np.testing.assert_array_equal(display.mesh_.get_array(), display.errors)
    recovery = [BayesOptimalBound(width).recovery_threshold() for width in widths]
    np.testing.assert_allclose(display.recovery_line_.get_data(), [recovery, widths])
    small = BayesOptimalBound(0).weak_recovery_threshold()
    np.testing.assert_allclose(display.onset_line_.get_data(), [small * np.array(widths[:2]), widths[:2]])
    assert display.ax_.get_xscale() == "linear"
    assert display.colorbar_.mappable is display.mesh_


def test_phase_diagram_on_its_own_grid():
    display = PhaseDiagramDisplay.from_bound(BOUND)
    # from nothing learned to exact recovery, at every width
    assert (display.errors[:, 0] > 0.97).all()
    assert (display.errors[:, -1] == 0).all()
    assert display.ax_.get_yscale() == "log"
    display = PhaseDiagramDisplay.from_bound(
        BayesOptimalBound(noise=0.5, prior="wishart"), [0.1, 0.2], [0.5, 1.0], quantity="test_error", colorbar=False
    )
    assert display.recovery_line_ is None
    assert display.onset_line_ is None
    assert display.colorbar_ is None


def test_bad_phase_diagrams():
    draw = PhaseDiagramDisplay.from_bound
    refused(lambda: draw(1), "bound=1")
    refused(lambda: draw(BOUND, alpha=[0.1]), "alpha=[0.1]", "at least two")
    refused(lambda: draw(BOUND, alpha=[0.0, 0.1]), "alpha=[0.0, 0.1]", "> 0")
    refused(lambda: draw(BOUND, width_ratio=[0.5, 0.4]), "width_ratio=[0.5, 0.4]", "increase")
    refused(lambda: draw(BOUND, quantity="loss"), "quantity='loss'")
    refused(lambda: draw(BOUND, [0.1, 0.2], [0.5, 1.0], scale="square"), "scale='square'")
    wrong = PhaseDiagramDisplay(alpha=[0.1, 0.2], width_ratio=[0.5, 1.0], errors=np.ones((2, 3)))
    refused(wrong.plot, "errors has shape (2, 3)", "(2, 2)")


# layers


def test_layers_are_those_of_the_bound():
    alpha = [0.1, 0.25, 0.4]
    display = LayerOverlapDisplay.from_bound(ONE_LAYER, alpha)
    x, overlap = display.lines_[0].get_data()
    np.testing.assert_allclose(x, [0.1, 1 / 6, 0.25, 0.4])
    np.testing.assert_allclose(overlap[[0, 2, 3]], ONE_LAYER.overlap(alpha)[:, 0, 0])
    assert overlap[1] == 0
    assert display.threshold_lines_[1].get_xdata()[0] == pytest.approx(1 / 6)
    assert display.errorbars_ == []
    whole = LayerOverlapDisplay.from_bound(ONE_LAYER)
    assert whole.overlaps[0] == 0
    assert whole.overlaps[-1] == 1
    assert (np.diff(whole.overlaps[:, 0]) >= 0).all()


def test_layers_of_fits(deep):
    est, weights = deep
    display = LayerOverlapDisplay.from_estimator(est, curve_alpha=[0.1, 0.4])
    np.testing.assert_allclose(display.errorbars_[0][0].get_data(), [[0.6], [est.overlap_[0, 0]]])
    display = LayerOverlapDisplay.from_estimator([est, est], weights=weights, curve_alpha=[0.1, 0.4])
    cosine = cosine_similarity(est, weights)[0] ** 2
    np.testing.assert_allclose(display.errorbars_[0][0].get_data(), [[0.6] * 2, [cosine] * 2])
    same = LayerOverlapDisplay.from_estimator([est, est], weights=[weights] * 2, curve_alpha=[0.1, 0.4])
    np.testing.assert_array_equal(same.measured, display.measured)


def test_layers_measured_elsewhere():
    overlaps = np.array([[[0.1, 0.8], [0.3, 0.9]], [[0.5, 1.0], [0.9, 1.0]]])
    display = LayerOverlapDisplay(
        alpha=[0, 1], overlaps=[[0, 0.1], [0.7, 1]], thresholds={2: 0.2, 1: 5.0}, measured_alpha=[0.3, 0.9],
        measured=overlaps,
    ).plot(errorbar_kw={"ms": 4})  # fmt: skip
    for layer, (points, _, (bars,)) in enumerate(display.errorbars_):
        np.testing.assert_allclose(points.get_ydata(), overlaps[:, :, layer].mean(axis=1))
        ends = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(np.diff(ends)[:, 0] / 2, overlaps[:, :, layer].std(axis=1, ddof=1))
        assert points.get_markersize() == 4
    assert list(display.threshold_lines_) == [2]
    # layers stay apart without colours
    assert len({line.get_linestyle() for line in display.lines_}) == 2
    assert len({points.get_marker() for points, *_ in display.errorbars_}) == 2


def test_bad_layers(deep):
    est, weights = deep
    refused(lambda: LayerOverlapDisplay.from_bound(BOUND), "bound=", "DeepBayesOptimalBound")
    refused(lambda: LayerOverlapDisplay.from_estimator([]), "estimator=[]")
    refused(lambda: LayerOverlapDisplay.from_estimator([est], weights=[weights] * 2), "weights holds those of 2")
    refused(lambda: LayerOverlapDisplay.from_estimator(est, weights=["x"]), "weights must be")
    refused(lambda: LayerOverlapDisplay.from_estimator(est, weights=[1.0]), "weights has shape (1,)")
    draw = LayerOverlapDisplay.from_predictions
    refused(lambda: draw([0.1], [[0.1, 0.2]], ONE_LAYER), "overlaps has shape (1, 2)", "(1, 1)")
    refused(lambda: draw([0.1], [["x"]], ONE_LAYER), "overlaps=[['x']]")
    refused(lambda: draw([0.1], [[np.nan]], ONE_LAYER), "must be finite")
    refused(lambda: LayerOverlapDisplay(alpha=[0.1], overlaps=[0.1]).plot(), "overlaps has shape (1,)")
