"""Interrupts and other fits at the same time: an estimator is as it was, and learns the same another time."""

import signal
import threading

import numpy as np
import pytest
from campaign.judge import state
from campaign.problems import ALONE, interrupted_problem, same, threads_problem
from conftest import draw_teacher
from sklearn.base import clone

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    GDAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    make_deep_attention_sequences,
)

timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")


@timer
@pytest.mark.parametrize("kind", ALONE)
def test_interrupts_at_random_moments(kind):
    outcomes = [interrupted_problem(np.random.default_rng(seed), [], (kind,)) for seed in range(12)]
    assert {"fit", "interrupted"} & set(outcomes)


@timer
@pytest.mark.parametrize(
    "estimator",
    [
        AMPAttentionRegressor(0.5, noise=0.1, tol=0.0, max_iter=60),
        AMPAttentionRegressor("auto", solver="annealed", fit_bias=True, whiten=1.0),
        GDAttentionRegressor(0.5, n_init=3, tol=0.0, max_iter=100, random_state=0),
        GDAttentionRegressor(0.5, solver="adam", batch_size=20, n_init=3, max_iter=30, n_jobs=2, random_state=0),
        AMPDeepAttentionRegressor(random_state=0, tol=0.0, max_iter=10),
        PositionMeanRegressor(),
        TokenWhitener(),
    ],
    ids=lambda estimator: f"{type(estimator).__name__}-{getattr(estimator, 'solver', '')}",
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:Training was interrupted")
def test_interrupts_all_along_a_fit(estimator):
    if isinstance(estimator, AMPDeepAttentionRegressor):
        X, y = make_deep_attention_sequences(120, n_features=60, random_state=0)
    else:
        teacher = draw_teacher("softmax", True)
        X, y = teacher.X, teacher.y
    fresh = clone(estimator).fit(X, y)
    armed = False

    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt

    past = signal.signal(signal.SIGVTALRM, interrupt)
    interrupted = 0
    try:
        for moment in np.geomspace(2e-4, 0.1, 12):
            # once as new, once fitted before
            for estimator in (clone(fresh), clone(fresh).fit(X, y)):
                before = state(estimator)
                armed = True
                try:
                    signal.setitimer(signal.ITIMER_VIRTUAL, moment)
                    estimator.fit(X, y)
                    armed = False
                except KeyboardInterrupt:
                    armed = False
                    interrupted += 1
                    # or the interrupt came when all was learned
                    assert state(estimator) == before or same(estimator, fresh)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                assert same(estimator.fit(X, y), fresh)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, past)
    # gradient descent keeps what it has learned by then
    assert interrupted or isinstance(estimator, (GDAttentionRegressor, PositionMeanRegressor, TokenWhitener))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_interrupt_from_a_callback():
    teacher = draw_teacher("softmax", True)
    X, y = make_deep_attention_sequences(100, n_features=50, random_state=0)

    def stop(state):
        if state["iteration"] == 2:
            raise KeyboardInterrupt

    for estimator, data in (
        (teacher.estimator(), (teacher.X, teacher.y)),
        (teacher.estimator(solver="annealed"), (teacher.X, teacher.y)),
        (AMPDeepAttentionRegressor(random_state=0, max_iter=5, tol=0.0), (X, y)),
    ):
        fresh = clone(estimator).fit(*data)
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(*data, callback=stop)
        assert not [name for name in vars(estimator) if name.endswith("_")]
        assert same(estimator.fit(*data), fresh)


@pytest.mark.parametrize("seed", range(8))
def test_two_fits_at_once(seed):
    assert threads_problem(np.random.default_rng(seed), []) in ("fit", "refused")


def test_many_threads_predict_with_one_estimator():
    teacher = draw_teacher("softmax", True)
    for estimator in (teacher.estimator(), GDAttentionRegressor(0.5, max_iter=20, tol=0.5, random_state=0)):
        estimator.fit(teacher.X, teacher.y)
        expected = estimator.predict(teacher.X)
        answers = [None] * 6

        def predict(k, estimator=estimator, answers=answers):
            answers[k] = estimator.predict(teacher.X)

        workers = [threading.Thread(target=predict, args=(k,)) for k in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for answer in answers:
            np.testing.assert_array_equal(answer, expected)
