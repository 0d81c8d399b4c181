"""Problems: one integer seed makes estimator, parameters and data; `solve` says what came of it."""

import copy
import signal
import threading

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from campaign import data
from campaign.judge import (
    Violation,
    check_attributes,
    check_error,
    check_finite,
    demand,
    state,
    watched,
)
from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    BayesOptimalBound,
    DeepBayesOptimalBound,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    fit_path,
    pad_sequences,
)

_TAKES_MASK = (AMPAttentionRegressor, GDAttentionRegressor)


def pick(rng, *values):
    """One of some values, of any kind."""
    return values[rng.integers(len(values))]


def width_of(rng, auto=False):
    """A width of any kind."""
    kinds = [lambda: int(rng.integers(1, 12)), lambda: float(np.exp(rng.uniform(np.log(0.01), np.log(5))))]
    return "auto" if auto and rng.random() < 0.25 else kinds[rng.integers(2)]()


def amp(rng):
    """AMPAttentionRegressor by message passing."""
    return AMPAttentionRegressor(
        width_of(rng),
        tied=pick(rng, True, False),
        link=pick(rng, "softmax", "softmax", "softmax", "identity", "identity", "hardmax"),
        inverse_temperature=pick(rng, 1.0, 1.0, 1.0, 1.0, 0.1, 10.0, 1e-6, 1e6, 1e-15, 1e15),
        noise=pick(rng, 0.0, "estimate", "estimate", 0.1, 1.0, 1e-12, 1e6, 1e15),
        fit_bias=bool(rng.random() < 0.3),
        whiten=pick(rng, None, None, 0.0, 1.0, 1e-6, 1e3, 1e300),
        damping=pick(rng, "adaptive", "adaptive", 0.0, 0.5, 0.99),
        clamp=bool(rng.random() < 0.8),
        max_iter=int(rng.integers(1, 25)),
        tol=pick(rng, 0.01, 0.0, 1e-6, 1.0, 1e-300, 1e15),
        warm_start=bool(rng.random() < 0.2),
    )


def annealed(rng):
    """AMPAttentionRegressor by annealing, or a width found from data."""
    est = amp(rng).set_params(
        solver=pick(rng, "annealed", "annealed", "linear", "amp"), max_iter=int(rng.integers(1, 12))
    )
    return est.set_params(
        link=pick(rng, "softmax", "softmax", "identity"),
        width="auto" if est.solver == "amp" else width_of(rng, auto=True),
    )


def descent(rng):
    """GDAttentionRegressor."""
    n_layers = pick(rng, 1, 1, 1, 2, 3)
    link = "softmax" if n_layers > 1 else pick(rng, "softmax", "softmax", "softmax", "identity")
    solver = pick(rng, "auto", "lbfgs", "adam", "sgd")
    return GDAttentionRegressor(
        width_of(rng, auto=n_layers == 1 and rng.random() < 0.1),
        tied=pick(rng, True, False),
        n_layers=n_layers,
        skip=pick(rng, 1.0, 1.0, 0.0, -1.0, 0.5, 1e3, 1e200),
        link=link,
        inverse_temperature=pick(rng, 1.0, 1.0, 1.0, 1.0, 0.1, 10.0, 1e-6, 1e6, 1e-15, 1e15),
        loss="squared_error" if link == "identity" else pick(rng, "squared_error", "cross_entropy", "log_ratio"),
        fit_bias=bool(rng.random() < 0.4),
        scaling=pick(rng, "attention-index", "attention-index", "sequence-index"),
        center=pick(rng, "auto", "auto", True, False),
        solver=solver,
        learning_rate=pick(rng, 0.1, 0.1, 0.01, 1.0, 1e-8, 1e8, 1e15),
        momentum=pick(rng, 0.9, 0.0, 0.999),
        batch_size=None if solver == "lbfgs" else pick(rng, None, 1, 7, 1000),
        max_iter=int(rng.integers(1, 12)),
        tol=pick(rng, 1e-3, 0.0, 0.5, 1e-300, 1e15),
        n_iter_no_change=int(rng.integers(1, 6)),
        weight_decay=pick(rng, 0.0, 0.0, 0.0, 0.1, 1e6, 1e300),
        n_init=pick(rng, 1, 1, 2, 4),
        n_refreshes=pick(rng, 0, 0, 0, 1, 2),
        average=bool(rng.random() < 0.7),
        init_scale=pick(rng, 1.0, 0.1, 1e-10, 1e3, 1e160),
        early_stopping=bool(rng.random() < 0.25),
        validation_fraction=pick(rng, 0.1, 0.5, 0.9),
        warm_start=bool(rng.random() < 0.2),
        n_jobs=pick(rng, None, None, None, 2),
        random_state=int(rng.integers(1000)),
    )


def deep(rng):
    """AMPDeepAttentionRegressor."""
    return AMPDeepAttentionRegressor(
        pick(rng, 1, 1, 2, 2, 2, 3),
        pick(rng, 1.0, 1.0, 0.0, 0.3, 10.0, 1e3, 1e200),
        inverse_temperature=pick(rng, 1.0, 1.0, 1.0, 0.1, 10.0, 1e-6, 1e6, 1e-15, 1e15),
        damping=pick(rng, 0.3, 0.0, 0.9),
        max_iter=int(rng.integers(1, 6)),
        tol=pick(rng, 0.01, 0.0, 1.0),
        warm_start=bool(rng.random() < 0.2),
        random_state=int(rng.integers(1000)),
    )


def baseline(rng):
    """PositionMeanRegressor."""
    return PositionMeanRegressor()


def whitened(rng):
    """A whitener and an estimator in a pipeline."""
    whitener = TokenWhitener(ridge=pick(rng, 0.0, 1.0, 1e-8, 1e3, 1e300), drop_below=pick(rng, 0.0, 1e-10, 0.5))
    return make_pipeline(whitener, pick(rng, amp, descent, annealed)(rng))


FITS = {"amp": amp, "annealed": annealed, "descent": descent, "deep": deep, "baseline": baseline, "whitened": whitened}
# those that are fitted beside each other, and interrupted
ALONE = ("amp", "annealed", "descent", "deep", "baseline")


class Draw:
    """Sequences, maps and mask of a problem, in the form in which they are passed."""

    def __init__(self, rng, estimator, hard=True):
        last = estimator[-1] if hasattr(estimator, "steps") else estimator
        link = getattr(last, "link", "softmax")
        self.notes = []
        most = 12
        least, work = 1, 2e5
        if isinstance(last, AMPDeepAttentionRegressor):
            least, most, work = 2, {1: 12, 2: 3, 3: 2}[last.n_layers], 2e4 if last.n_layers > 1 else 2e5
        if link == "hardmax":
            most, work = 5, 2e4
        if rng.random() < 0.02:
            least, most = 1, 12
        samples = 300 if last is not None and not (most <= 3) else 60
        n, n_tokens, d = data.sizes(rng, least, most, samples, work)
        x = rng.standard_normal((n, n_tokens, d))
        self.mask, allowed = None, None
        masked = isinstance(last, _TAKES_MASK) and link != "hardmax" and not hasattr(estimator, "steps")
        if masked and rng.random() < 0.35:
            self.mask, allowed = self._mask(rng, n, n_tokens)
        with np.errstate(all="ignore"):
            self.teach = lambda tokens: (
                data.deep_teacher(rng, tokens, last)
                if isinstance(last, AMPDeepAttentionRegressor)
                else data.teacher(rng, tokens, link, getattr(last, "tied", True), allowed)
            )
            y = self.teach(x)
            if hard:
                x, y = self._spoiled(rng, x, y, link, allowed)
        self._contain(rng, x, y, allowed, estimator, hard)
        self.notes.append(f"n={n} T={n_tokens} d={d}")

    def _mask(self, rng, n, n_tokens):
        kind = pick(rng, "causal", "padding", "pairs", "shared", "ragged")
        self.notes.append(f"mask {kind}")
        if kind == "causal":
            return kind, np.broadcast_to(np.tri(n_tokens, dtype=bool), (n, n_tokens, n_tokens))
        each = np.arange(n_tokens)
        if kind in ("padding", "ragged"):
            self.lengths = rng.integers(1, n_tokens + 1, n)
            real = each < self.lengths[:, None]
            pairs = real[:, :, None] & real[:, None, :]
            return (kind if kind == "ragged" else real), pairs
        pairs = rng.random((n, n_tokens, n_tokens)) < rng.choice([0.3, 0.6, 0.95])
        pairs[:, each, each] |= rng.random() < 0.9
        if kind == "shared":
            pairs = np.broadcast_to(pairs[0], pairs.shape)
            return pairs[0].copy(), pairs
        return pairs, pairs

    def _spoiled(self, rng, x, y, link, allowed):
        """Tokens and maps that the model would not give, or that no one could pass."""
        if rng.random() < 0.4:
            name = pick(rng, *data.TOKENS)
            self.notes.append(f"tokens: {name}")
            data.TOKENS[name](rng, x)
            if rng.random() < 0.5:
                again = self.teach(x)
                y = again if np.isfinite(again).all() else y
        if rng.random() < 0.3:
            name = pick(rng, *data.MAPS)
            self.notes.append(f"maps: {name}")
            data.MAPS[name](rng, y)
            if allowed is not None and rng.random() < 0.8:
                y[~allowed] = 0
                if link == "softmax" and rng.random() < 0.7:
                    sums = y.sum(axis=2, keepdims=True)
                    y /= np.where(sums == 0, 1, sums)
        return x, y

    def _contain(self, rng, x, y, allowed, estimator, hard):
        dtype = pick(rng, *data.DTYPES) if hard and rng.random() < 0.4 else np.float64
        if dtype != np.float64:
            self.notes.append(np.dtype(dtype).name)
            with np.errstate(all="ignore"):
                x = np.nan_to_num(x).astype(dtype) if dtype == np.int64 else x.astype(dtype)
                if rng.random() < 0.5 and dtype != np.int64:
                    y = y.astype(dtype)
        layout = pick(rng, *data.LAYOUTS) if rng.random() < 0.4 else "C"
        container = pick(rng, *data.CONTAINERS) if rng.random() < 0.4 else "array"
        n_tokens = x.shape[1]
        if isinstance(self.mask, str) and self.mask == "ragged":
            self.mask = None
            self.notes.append("lists")
            self.X = [one[:k] for one, k in zip(x, self.lengths, strict=True)]
            self.y = [one[:k, :k] for one, k in zip(y, self.lengths, strict=True)]
            if rng.random() < 0.3:
                self.X = [one.tolist() for one in self.X]
            self.new = self.X[::-1]
            return
        if container in ("frame", "flat"):
            for one in estimator.named_steps.values() if hasattr(estimator, "steps") else [estimator]:
                one.set_params(n_tokens=n_tokens)
        self.notes.append(f"{layout} {container}")
        if container == "dask" and getattr(estimator, "batch_size", None) is not None:
            # minibatches are gathered from chunks one by one
            estimator.set_params(batch_size=1000)
        self.X = data.contained(data.laid_out(rng, x, layout), container)
        self.y = data.laid_out(rng, y, layout if rng.random() < 0.5 else "C")
        if n_tokens == 1 and rng.random() < 0.7:
            self.y = self.y.reshape(-1)
        elif rng.random() < 0.1:
            self.y = self.y.reshape(len(y), -1)
        elif rng.random() < 0.1:
            self.y = self.y.tolist()
        count = int(rng.integers(1, 5))
        with np.errstate(all="ignore"):
            spread = np.nan_to_num(np.std(x.astype(float)), nan=1.0, posinf=1.0) or 1.0
            new = (min(spread, 1e8) * rng.standard_normal((count, *x.shape[1:]))).astype(x.dtype)
        self.new = data.contained(new, container)
        if self.mask is not None and not isinstance(self.mask, str):
            self.mask = data.laid_out(rng, self.mask, layout)

    def options(self):
        """Keyword arguments of fit, predict and score."""
        return {} if self.mask is None else {"mask": self.mask}


def sample_weights(rng, n):
    """Weights of sequences, good or bad."""
    weights = rng.uniform(0, 1, n)
    kind = pick(rng, "good", "zeros", "equal", "tiny", "huge", "negative", "NaN", "short", "none")
    if kind == "zeros":
        weights[rng.random(n) < 0.7] = 0
    elif kind in ("tiny", "huge"):
        weights *= pick(rng, 1e-300, 5e-324) if kind == "tiny" else pick(rng, 1e100, 1e300, 1e308)
    elif kind in ("negative", "NaN"):
        weights[rng.integers(n)] = -1 if kind == "negative" else np.nan
    return {"equal": 2, "short": weights[:-1], "none": np.zeros(n)}.get(kind, weights)


def check_answers(est, draw, X, options, tally):
    """Predictions are finite, or refused by name."""
    names = list(est.get_params())
    for call in ("predict", "predict_index"):
        if not hasattr(est, call):
            continue
        given = options if call == "predict" or isinstance(est, GDAttentionRegressor) else {}
        if isinstance(X, list) and call == "predict_index" and not isinstance(est, GDAttentionRegressor):
            continue
        try:
            with watched():
                answer = getattr(est, call)(X, **given)
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, names)
            tally.add("prediction refused")
            continue
        check_finite(answer, call)
    if type(est) in (AMPAttentionRegressor, AMPDeepAttentionRegressor):
        try:
            with watched():
                answer = est.predict(X, return_std=True, **options)
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, names)
        else:
            check_finite(answer, "predict(return_std=True)")


def fit_problem(rng, kind, notes):
    """One estimator, fitted before or not, on data of any kind."""
    est = FITS[kind](rng)
    draw = Draw(rng, est)
    notes += [repr(est), *draw.notes]
    steps = [one for _, one in est.steps] if hasattr(est, "steps") else [est]
    names = [name.split("__")[-1] for name in est.get_params()]
    tally = set()
    if rng.random() < 0.3 and not hasattr(est, "steps"):
        first = Draw(rng, est, hard=False)
        try:
            with watched():
                est.fit(first.X, first.y, **first.options())
            notes.append("fitted before")
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, names)
        est.set_params(**({"n_tokens": None} if isinstance(draw.X, np.ndarray) and draw.X.ndim == 3 else {}))
    X, y = draw.X, draw.y
    partial = kind == "descent" and est.solver != "lbfgs" and rng.random() < 0.25
    given = draw.options()
    if kind in ("descent", "baseline") and rng.random() < 0.25:
        given["sample_weight"] = sample_weights(rng, len(X))
        notes.append("sample_weight")
    before = data.trace(X), data.trace(y), data.trace(draw.mask), data.trace(given.get("sample_weight"))
    kept = [state(one) for one in steps]
    learn = est.partial_fit if partial else est.fit
    if partial:
        notes.append("partial_fit")
    try:
        with watched() as caught:
            learn(X, y, **given)
            if partial and rng.random() < 0.5:
                kept = [state(one) for one in steps]
                learn(X, y, **given)
    except (Violation, KeyboardInterrupt):
        raise
    except Exception as error:
        check_error(error, names)
        notes.append(f"refused: {str(error)[:70]}")
        demand(hasattr(est, "steps") or [state(one) for one in steps] == kept, "a failed fit changed the estimator")
        outcome = "refused"
    else:
        outcome = "warning" if caught else "fit"
        if any(one.category is ConvergenceWarning for one in caught):
            outcome = "ConvergenceWarning"
        elif caught:
            outcome = "UserWarning"
        for one in steps:
            check_attributes(one)
        check_answers(est, draw, X, draw.options(), tally)
        new_options = draw.options() if np.ndim(draw.mask) == 0 else {}
        if np.ndim(draw.mask) == 0 or isinstance(draw.X, list):
            check_answers(est, draw, draw.new, new_options, tally)
        try:
            with watched():
                score = est.score(X, y, **given)
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, names)
            tally.add("score refused")
        else:
            check_finite(score, "score")
    after = data.trace(X), data.trace(y), data.trace(draw.mask), data.trace(given.get("sample_weight"))
    demand(before == after, "an input was changed")
    return outcome + "".join(f", {one}" for one in sorted(tally))


def path_problem(rng, notes):
    """fit_path over sample sizes or a parameter."""
    est = pick(rng, amp, descent, annealed)(rng)
    draw = Draw(rng, est, hard=rng.random() < 0.5)
    X = pad_sequences(draw.X)[0] if isinstance(draw.X, list) and isinstance(draw.X[0], np.ndarray) else draw.X
    y = pad_sequences(draw.X, draw.y)[1] if X is not draw.X else draw.y
    n = len(X)
    name, values = pick(
        rng,
        ("n_samples", sorted(int(k) for k in rng.integers(1, n + 1, 2))),
        ("width", [width_of(rng), width_of(rng)]),
        ("max_iter", [1, 3]),
    )
    notes += [repr(est), f"path of {name}={values}", *draw.notes]
    try:
        with watched():
            path = fit_path(est, X, y, param_name=name, values=values)
    except (Violation, KeyboardInterrupt):
        raise
    except Exception as error:
        check_error(error, list(est.get_params()))
        return "refused"
    for one in path:
        check_attributes(one)
    return "fit"


def bound_problem(rng, notes):
    """BayesOptimalBound at any parameters."""
    bound = BayesOptimalBound(
        pick(rng, 0, 1, 0.0, 1e-9, 1e-3, 0.5, 1.0, 3.7, 1e3, float(rng.uniform(0, 3))),
        tied=pick(rng, True, False),
        n_tokens=int(rng.integers(1, 8)),
        link=pick(rng, "softmax", "softmax", "identity", "hardmax"),
        inverse_temperature=pick(rng, 1.0, 1e-6, 1e6, 3.0),
        noise=pick(rng, 0.0, 0.0, 1e-12, 0.3, 1e6, 1e300),
        mask=pick(rng, None, None, None, "causal"),
    )
    if bound.link == "hardmax":
        bound.set_params(n_tokens=int(rng.integers(1, 3)), mask=None)
    alpha = pick(
        rng,
        0,
        [],
        1e-300,
        1e30,
        1e100,
        1e300,
        float(10 ** rng.uniform(-6, 3)),
        list(10 ** rng.uniform(-4, 1, 3)),
        np.nan,
        -1.0,
        "much",
        None,
    )
    notes += [repr(bound), f"alpha={alpha!r}"]
    outcomes = set()
    exact = bound.noise == 0 and bound.link != "hardmax"
    calls = {
        "estimation_error": lambda: bound.estimation_error(alpha, return_error=True),
        "overlap": lambda: bound.overlap(alpha),
        "information": lambda: bound.information(alpha),
        "free_entropy": lambda: bound.free_entropy(alpha),
        "mutual_information": lambda: bound.mutual_information(alpha),
        "state_evolution": lambda: bound.state_evolution(alpha, n_iter=5, damping=float(rng.uniform(0, 0.9))),
        "recovery_threshold": bound.recovery_threshold,
        "weak_recovery_threshold": bound.weak_recovery_threshold,
        "sample_size": lambda: bound.sample_size(pick(rng, 0, 1e-9, 0.3, 1.0), 50, width=3),
    }
    if rng.random() < 0.3 and bound.n_tokens <= 3:
        calls["test_error"] = lambda: bound.test_error(alpha)
    for name, call in calls.items():
        try:
            with watched():
                answer = call()
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            try:
                check_error(error, [*bound.get_params(), "alpha", "error"])
            except Violation as wrong:
                raise Violation(f"{name}: {wrong}") from error
            outcomes.add("refused")
            continue
        outcomes.add("answer")
        values = np.concatenate([np.ravel(v) for v in (answer.values() if isinstance(answer, dict) else [answer])])
        demand(not np.isnan(values.astype(float)).any(), f"{name} is NaN: {answer}")
        if name in ("estimation_error", "overlap", "test_error"):
            check_finite(np.asarray(answer), name)
            demand((values >= -1e-9).all(), f"{name} is negative: {answer}")
        moderate = isinstance(alpha, (float, int)) and alpha < 1e10 and bound.noise < 1e100
        if name in ("information", "free_entropy", "state_evolution") and not exact and moderate:
            check_finite(answer, name)
        if name == "estimation_error":
            demand((np.asarray(answer[0]) <= 1 + 1e-9 + bound.width_ratio * bound.tied).all(), f"{name}: {answer}")
    return "+".join(sorted(outcomes))


def deep_bound_problem(rng, notes):
    """DeepBayesOptimalBound, where it is cheap."""
    bound = DeepBayesOptimalBound(
        pick(rng, 1, 1, 1, 2, 4, 0),
        pick(rng, 0.0, 1.0, 0.5, -1.0, 1e3),
        pick(rng, 1, 2, 2, 3, 5),
        inverse_temperature=pick(rng, 1.0, 0.1, 1e-6, 1e6, 0),
        effort=pick(rng, 0.01, 0.02),
        random_state=int(rng.integers(100)),
    )
    cheap = bound.n_layers != 2 or bound.n_tokens == 1 or bound.n_tokens > 4 or bound.skip < 0
    alpha = pick(rng, 0.0, 1e-300, 1e-3, 0.1, 1.0, 1e3, 1e300, [0.05, 0.2], np.inf, None)
    notes += [repr(bound), f"alpha={alpha!r}"]
    outcome = set()
    calls = {"overlap": lambda: bound.overlap(alpha), "thresholds": bound.weak_recovery_thresholds}
    for name, call in calls.items():
        if not cheap:
            # fixed points of two layers take seconds: one step of state evolution instead
            call = lambda: bound.state_evolution(0.1, n_iter=1)  # noqa: E731
        try:
            with watched():
                answer = call()
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, [*bound.get_params(), "alpha"])
            outcome.add("refused")
            continue
        outcome.add("answer")
        check_finite(answer, name) if name == "overlap" else None
        if not cheap:
            break
    return "+".join(sorted(outcome))


def threads_problem(rng, notes, kinds=ALONE):
    """Two estimators fitted at once learn what each learns alone."""
    pairs = []
    for _ in range(2):
        est = FITS[pick(rng, *kinds)](rng)
        est.set_params(**{"warm_start": False} if "warm_start" in est.get_params() else {})
        draw = Draw(rng, est, hard=False)
        pairs.append((est, draw))
        notes += [repr(est), *draw.notes]
    alone = []
    for est, draw in pairs:
        try:
            with watched():
                alone.append(clone(est).fit(draw.X, draw.y, **draw.options()))
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            check_error(error, list(est.get_params()))
            return "refused"
    errors = []

    def run(est, draw):
        try:
            est.fit(draw.X, draw.y, **draw.options())
        except BaseException as error:
            errors.append(error)

    with watched():
        workers = [threading.Thread(target=run, args=pair) for pair in pairs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    demand(not errors, f"beside another fit: {errors}")
    for (est, _), other in zip(pairs, alone, strict=True):
        demand(same(est, other), f"{type(est).__name__} learned something else beside another fit")
    return "fit"


def same(one, other):
    """Whether two estimators have learned the same, bit for bit."""
    names = [name for name in vars(other) if name.endswith("_")]
    return [n for n in vars(one) if n.endswith("_")] and all(
        hasattr(one, name) and np.array_equal(getattr(one, name), getattr(other, name))
        for name in names
        if isinstance(getattr(other, name), (np.ndarray, float, int, bool))
    )


def interrupted_problem(rng, notes, kinds=ALONE):
    """Ctrl-C at any moment of a fit: state as before, or what was learned by then; another fit is as good as ever."""
    est = FITS[pick(rng, *kinds)](rng)
    est.set_params(**{"warm_start": False} if "warm_start" in est.get_params() else {})
    draw = Draw(rng, est, hard=False)
    notes += [repr(est), *draw.notes]
    fresh = clone(est)
    try:
        with watched():
            fresh.fit(draw.X, draw.y, **draw.options())
    except (Violation, KeyboardInterrupt):
        raise
    except Exception as error:
        check_error(error, list(est.get_params()))
        return "refused"
    before = state(est)
    armed = True

    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt

    past = signal.signal(signal.SIGVTALRM, interrupt)
    outcome = "fit"
    try:
        with watched():
            signal.setitimer(signal.ITIMER_VIRTUAL, 10 ** rng.uniform(-4, -1.3))
            est.fit(copy.copy(draw.X), draw.y, **draw.options())
            armed = False
    except KeyboardInterrupt:
        armed = False
        outcome = "interrupted"
        # an interrupt may come when all is learned
        demand(state(est) == before or same(est, fresh), "an interrupted fit changed the estimator")
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, past)
    with watched():
        est.fit(draw.X, draw.y, **draw.options())
    demand(same(est, fresh), "a fit after an interrupt learned something else")
    return outcome


KINDS = {
    **{name: (lambda rng, notes, name=name: fit_problem(rng, name, notes)) for name in FITS},
    "path": path_problem,
    "bound": bound_problem,
    "deep bound": deep_bound_problem,
    "two threads": threads_problem,
    "interrupt": interrupted_problem,
}
SHARES = {
    "amp": 24,
    "annealed": 12,
    "descent": 28,
    "deep": 8,
    "baseline": 4,
    "whitened": 8,
    "path": 4,
    "bound": 6,
    "deep bound": 1,
    "two threads": 2,
    "interrupt": 3,
}


def solve(seed, notes):
    """Kind and outcome of the problem of a seed; notes are filled with what it was. A Violation if it went wrong."""
    rng = np.random.default_rng(seed)
    shares = np.array(list(SHARES.values()), float)
    kind = list(SHARES)[rng.choice(len(SHARES), p=shares / shares.sum())]
    notes.append(kind)
    return kind, KINDS[kind](rng, notes)
