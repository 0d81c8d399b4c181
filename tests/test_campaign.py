"""A short slice of the campaign of random problems; `python tests/campaign/run.py` is the long one."""

import signal

import numpy as np
import pytest
from campaign.judge import Violation, check_error, check_finite, demand, state, watched
from campaign.problems import SHARES
from campaign.run import judged

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")

_CHUNK = 15


@pytest.mark.parametrize("first", range(0, 150, _CHUNK))
def test_random_problems(first):
    for seed in range(first, first + _CHUNK):
        _, _, notes, what, error = judged(seed, time_limit=60)
        assert error is None, f"seed {seed}: {what}; {'; '.join(notes)}"


def test_shares_name_every_kind():
    from campaign.problems import KINDS

    assert set(SHARES) == set(KINDS)


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_judge_tells_clear_errors_from_raw_ones():
    from sklearn_aim import AMPAttentionRegressor

    check_error(raised(lambda: AMPAttentionRegressor(width=-1).fit(np.ones((3, 2, 2)), np.ones((3, 2, 2)))), ["width"])
    check_error(raised(lambda: AMPAttentionRegressor().fit(np.full((3, 2, 2), np.nan), np.ones((3, 2, 2)))))
    for function in (
        lambda: np.ones(2) + np.ones(3),
        lambda: [][0],
        lambda: np.linalg.inv(np.zeros((2, 2))),
        lambda: int("X"),
    ):
        with pytest.raises(Violation):
            check_error(raised(function))


def test_the_judge_finds_what_is_not_finite_and_other_warnings():
    for value in (np.nan, {"a": [1.0, np.inf]}, np.array([1.0, np.nan]), [np.array([np.inf])]):
        with pytest.raises(Violation):
            check_finite(value, "value")
    check_finite({"a": None, "b": [1, 2.0], "c": np.ones(2), "d": "text"}, "value")
    with pytest.raises(Violation), watched():
        np.log(np.zeros(1))
    demand(True, "never")


def test_the_judge_sees_changed_estimators():
    from sklearn_aim import PositionMeanRegressor

    baseline = PositionMeanRegressor().fit(np.ones((2, 2, 2)), np.ones((2, 2, 2)))
    before = state(baseline)
    assert state(baseline) == before
    baseline.map_[0, 0] = 3
    assert state(baseline) != before
