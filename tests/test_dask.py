"""X as a dask array: the same answers as in memory, X is never gathered, and what is lost is computed again."""

import copy
import gc
import os
import pickle
import signal
import threading
import time
import warnings

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter
from test_blocks import (
    CASES,
    FITS,
    FORMS,
    GD,
    assert_same,
    attributes,
    check_case,
    check_one_pass,
    check_passes,
    check_precisions,
    check_refused,
    check_refused_in_predict,
    check_subsets,
    close,
    data,
    learn,
    learned,
    noise,
    one_pass,
    run,
    same,
    sum_and_squares,
    token_means,
)

from sklearn_aim import (
    AMPAttentionRegressor,
    AMPDeepAttentionRegressor,
    PositionMeanRegressor,
    TokenWhitener,
    make_attention_sequences,
    make_deep_attention_sequences,
)
from sklearn_aim.algorithms.attention_stack import Lanes
from sklearn_aim.channels import make_channel
from sklearn_aim.kernels import threads
from sklearn_aim.kernels.blocks import as_blocks
from sklearn_aim.kernels.dask_blocks import DaskBlocks, _add_all, is_dask_array
from sklearn_aim.kernels.indices import attention_indices
from sklearn_aim.kernels.moments import token_sums, whitened

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

# runs are cut short, so that rounding has no time to grow
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def cut(x, sizes=None):
    """A dask array of uneven chunks of samples."""
    if sizes is None:
        n = len(x)
        sizes = (n // 5, 1, n // 3, n - n // 5 - 1 - n // 3)
    return da.from_array(x, chunks=(tuple(sizes), *x.shape[1:]))


@pytest.fixture(scope="module")
def pair():
    """Maps that every estimator can learn from."""
    return make_deep_attention_sequences(400, 2, 20, n_layers=1, random_state=0)


@pytest.fixture
def ungathered(monkeypatch):
    """Dask arrays can't be gathered, and the largest number of bytes that one computation brings is noted."""

    def refuse(*args, **kwargs):
        raise AssertionError("a dask array is gathered")

    sizes = []
    compute = dask.compute

    def watched(*args, **kwargs):
        out = compute(*args, **kwargs)
        sizes.append(sum(nbytes(one) for one in out))
        return out

    for name in ("__array__", "compute", "persist", "__iter__", "compute_chunk_sizes"):
        monkeypatch.setattr(da.Array, name, refuse)
    monkeypatch.setattr(dask, "compute", watched)
    return sizes


def nbytes(answer):
    return sum(map(nbytes, answer)) if isinstance(answer, (tuple, list)) else np.asarray(answer).nbytes


# ----------------------------------------------------------------------------------------------------------------
# passes


CHUNKS = {
    "one": (100,),
    "even": (25,) * 4,
    "uneven": (3, 50, 1, 46),
    "single samples": (1,) * 20 + (80,),
    "more than one task adds up": (1,) * 75 + (5,) * 5,
}


@pytest.mark.parametrize("chunks", CHUNKS)
def test_passes(chunks, ungathered):
    x = noise(100)
    blocks = DaskBlocks(cut(x, CHUNKS[chunks]))
    check_passes(blocks, x)
    check_passes(blocks.take(np.arange(0, 100, 7)), x[::7])
    if chunks == "uneven":
        check_subsets(blocks, x)
        check_precisions(blocks, x)
    assert blocks.contiguous() is blocks
    assert as_blocks(blocks) is blocks
    assert ungathered


def test_subsets_that_leave_chunks_empty():
    x = noise(100)
    blocks = DaskBlocks(cut(x, (10, 20, 30, 15, 25)))
    for samples in ([0], [99], [10], [9, 10], [29, 30, 59, 60], list(range(30, 60)), [0, 99], list(range(0, 100, 33))):
        samples = np.array(samples)
        check_passes(blocks.take(samples), x[samples])
        # a take of a take may empty more of them
        check_passes(blocks.take(samples).take(np.array([len(samples) - 1])), x[samples[-1:]])


def double(x):
    return 2.0 * x[:, :, :2]


def test_map_stays_where_it_is(ungathered):
    x = noise(100)
    array = cut(x)
    out = DaskBlocks(array).map(double)
    mapped = DaskBlocks(array).map(whitened, x.mean(axis=(0, 1)), np.eye(10)[:, :4])
    assert not ungathered
    assert isinstance(out, da.Array)
    assert out.chunks == (array.chunks[0], (3,), (2,))
    assert mapped.chunks == (array.chunks[0], (3,), (4,))
    assert out.dtype == mapped.dtype == float
    np.testing.assert_array_equal(dask.compute(out)[0], double(x))
    close(dask.compute(mapped)[0], (x - x.mean(axis=(0, 1)))[:, :, :4], 1e-13)
    # block by block too
    np.testing.assert_array_equal(dask.compute(out.blocks[2])[0], double(x[21:54]))
    single = DaskBlocks(array).astype(np.float32).map(double)
    assert single.dtype == np.float32
    close(dask.compute(single)[0], double(x.astype(np.float32)), 0)


def test_map_of_a_subset():
    x = noise(100)
    samples = np.arange(0, 100, 2)
    out = DaskBlocks(cut(x)).take(samples).map(double)
    np.testing.assert_array_equal(out.compute(), double(x[samples]))
    assert out.shape == (50, 3, 2)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<f2", "<i8", ">i2", "u1", "?"])
def test_dtypes(dtype):
    x = noise(500)
    x = (x > 0 if dtype == "?" else 40 * np.abs(x)).astype(dtype)
    array = cut(x)
    rtol = 1e-5 if dtype[1:] in ("f4", "f2") else 1e-10
    one, other = TokenWhitener().fit(array), TokenWhitener().fit(x)
    assert_same(one, other, rtol)
    out = one.transform(array)
    assert out.dtype == other.transform(x).dtype
    close(out.compute(), other.transform(x), rtol)


def mean_and_shape(x, factor, note):
    assert note == {"a": [1, 2]}
    return factor * x.sum(axis=(1, 2))


def test_shared_arguments_come_as_they_are(ungathered):
    x = noise(40)
    blocks = DaskBlocks(cut(x))
    close(blocks.collect(mean_and_shape, 3.0, {"a": [1, 2]}), 3 * x.sum(axis=(1, 2)), 1e-13)

    def own(x, array):
        # what is shared, or a part, is not copied for every block
        return np.full(len(x), id(array))

    assert len(set(blocks.collect(own, np.ones(1000)))) == 1


def count_and_sum(x, weights):
    return np.ones((2, 2)) * weights.sum(), (x * weights[:, None, None]).sum(axis=(1, 2)).sum()[None]


def test_totals_do_not_change_what_tasks_gave(ungathered):
    x, weights = noise(200), np.ones(200)
    blocks = DaskBlocks(cut(x, (2,) * 100))
    one, other = (blocks.total(count_and_sum, parts=(weights,)) for _ in range(2))
    same(one, other, 0, "totals")
    np.testing.assert_array_equal(one[0], 200)
    # what comes back may be written
    one[0][:] = 0
    single = DaskBlocks(cut(x, (200,))).total(count_and_sum, parts=(weights,))
    single[0][:] = 0


def test_answers_of_tasks_are_added_up_in_a_copy():
    for answers in ([np.ones(2), np.full(2, 2.0)], [(np.ones(2), np.array(3))] * 3):
        before = copy.deepcopy(answers)
        _add_all(answers, {})
        same(answers, before, 0, "answers")


def holders_of_one_blas_thread(x):
    return np.full(len(x), threads._one_blas_thread._holders)


def test_tasks_leave_cores_to_each_other():
    # not the number of threads itself: OpenBLAS may ignore what other threads than the first ask for
    assert DaskBlocks(cut(noise(100))).collect(holders_of_one_blas_thread).min() >= 1
    assert threads._one_blas_thread._holders == 0


def test_only_what_a_subset_needs_is_computed():
    seen = []

    def make(block_info=None):
        place = block_info[None]["chunk-location"][0]
        seen.append(place)
        return np.ones(block_info[None]["chunk-shape"])

    array = da.map_blocks(make, chunks=((10,) * 6, 3, 4), dtype=float)
    with dask.config.set(scheduler="synchronous"):
        DaskBlocks(array).take(np.array([5, 31, 38])).total(token_sums)
        assert sorted(seen) == [0, 3]
        seen.clear()
        DaskBlocks(array).take(np.arange(20, 60)).take(np.arange(20, 30)).collect(token_means)
        assert sorted(seen) == [4]


def test_what_a_dask_array_is():
    x = noise(10)
    assert is_dask_array(cut(x))
    assert not any(is_dask_array(one) for one in (x, x.tolist(), None, cut(x).to_delayed()))


def test_a_delayed_object_is_refused_by_name():
    x, y = data(("softmax", True, 0.5))
    with pytest.raises((TypeError, ValueError), match=r"\bX\b"):
        AMPAttentionRegressor(0.5).fit(dask.delayed(x), y)


# ----------------------------------------------------------------------------------------------------------------
# estimators


# every estimator in both precisions; the other two forms, which lie between these, for a few
SOME = ["AMP", "lbfgs", "deep AMP", "whitener", "whitener, AMP"]


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in CASES for form in FORMS if form in ("double", "single, flat") or name in SOME],
)
def test_estimators(name, form):
    check_case(name, form, cut)


@pytest.mark.parametrize("name", ["AMP", "lbfgs", "adam, early stopping, weights, two layers", "deep AMP", "whitener"])
def test_refit_is_the_same_to_the_bit(name):
    one, first = learn(CASES[name], "double", cut)
    with dask.config.set(scheduler="synchronous"):
        other, second = learn(CASES[name], "double", cut)
    assert_same(one, other, 0)
    first, second = ({k: np.asarray(v) for k, v in answers.items()} for answers in (first, second))
    same(first, second, 0, name)


def sizes(n):
    """Chunk sizes that sum to n."""
    return st.lists(st.integers(1, n - 1), max_size=30, unique=True).map(
        lambda cuts: tuple(np.diff([0, *sorted(cuts), n]).tolist())
    )


@settings(max_examples=8)
@given(sizes(400))
def test_chunks_change_nothing(chunks):
    x, y = data(("softmax", True, 0.5))
    with dask.config.set(scheduler="synchronous"):
        check_one_pass(one_pass(DaskBlocks(cut(x, chunks)), y))


@settings(max_examples=8)
@given(sizes(400), sizes(400))
def test_chunks_change_no_fit(chunks, chunks_of_y):
    x, y = data(("softmax", True, 0.5))
    with dask.config.set(scheduler="synchronous"):
        one = AMPAttentionRegressor(0.5, noise=0.1).fit(cut(x, chunks), cut(y, chunks_of_y))
        assert_same(one, learned("AMP", "double")[0], 1e-10)
        close(one.predict(cut(x, chunks_of_y)), learned("AMP", "double")[1]["predict"], 1e-10)


@pytest.mark.parametrize("params", [{}, {"solver": "adam", "batch_size": 100}], ids=str)
def test_starts_in_threads(params):
    x, y = data(("softmax", True, 2))
    one, other = (GD(2, n_init=3, max_iter=3, n_jobs=n_jobs, **params).fit(cut(x), y) for n_jobs in (None, 3))
    assert_same(one, other, 0)


def test_maps_and_weights_may_be_dask_arrays():
    x, y = data(("softmax", True, 2))
    weights = np.random.default_rng(0).uniform(size=len(y))
    other_chunks = da.from_array(y, chunks=(90, 2, 1))
    for estimator in (GD(2), PositionMeanRegressor()):
        expected = clone(estimator).fit(x, y, sample_weight=weights)
        one = clone(estimator).fit(cut(x), other_chunks, sample_weight=da.from_array(weights, chunks=70))
        assert_same(one, expected, 1e-10)
        score = one.score(cut(x), other_chunks, sample_weight=da.from_array(weights, chunks=30))
        assert score == pytest.approx(expected.score(x, y, sample_weight=weights), rel=1e-10)
    # y alone
    assert_same(GD(2).fit(x, other_chunks), GD(2).fit(x, y), 1e-10)
    # in other shapes
    flat = GD(2, n_tokens=3).fit(cut(x.reshape(400, -1)), cut(y.reshape(400, -1)))
    assert flat.predict(cut(x.reshape(400, -1))).shape == (400, 9)


def test_one_token_a_sample():
    x, y = make_attention_sequences(400, 1, 8, width=0.5, link="identity", noise=0.1, random_state=0)
    x, y = x[:, 0], y[:, 0, 0]
    one, other = (AMPAttentionRegressor(0.5, noise=0.1, link="identity").fit(held, y) for held in (cut(x), x))
    assert_same(one, other, 1e-10)
    assert one.predict(cut(x)).shape == (400,)


def test_arrays_and_dask_arrays_may_be_mixed():
    x, y = data(("softmax", True, 0.5))
    one = AMPAttentionRegressor(0.5, noise=0.1).fit(cut(x), y)
    other = AMPAttentionRegressor(0.5, noise=0.1).fit(x, y)
    for held in (x, cut(x), cut(x[:, ::-1, :].copy())[:, ::-1]):
        close(one.predict(held), other.predict(x), 1e-10)
        close(other.predict(held), other.predict(x), 1e-10)
    # precision is that of fit, and tokens may be more or fewer
    assert one.predict(cut(x.astype(np.float32))).dtype == np.float64
    close(one.predict(cut(x[:, :2])), other.predict(x[:, :2]), 1e-10)
    state = AMPAttentionRegressor(0.5, noise=0.1, warm_start=True).fit(cut(x), y)
    assert state.fit(x, y).n_iter_ <= one.n_iter_


def test_a_memory_map_in_chunks(tmp_path):
    x, y = data(("softmax", True, 0.5))
    np.save(tmp_path / "x.npy", x)
    array = da.from_array(np.load(tmp_path / "x.npy", mmap_mode="r"), chunks=(90, -1, -1))
    assert_same(AMPAttentionRegressor(0.5, noise=0.1).fit(array, y), learned("AMP", "double")[0], 1e-10)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_transform_is_lazy(dtype, flat):
    x, _ = data("raw", np.dtype(dtype).name)
    x = x.reshape(400, -1) if flat else x
    array = cut(x)
    whitener = TokenWhitener(n_tokens=3 if flat else None).fit(array)
    computed = []
    counted = array.map_blocks(lambda block: computed.append(len(block)) or block, meta=array._meta, dtype=dtype)
    computed.clear()
    out = whitener.transform(counted)
    # looked at once, for NaN
    assert sum(computed) == 400
    assert isinstance(out, da.Array)
    assert out.dtype == dtype
    assert out.chunks == (array.chunks[0], *((n,) for n in x.shape[1:]))
    assert sum(computed) == 400
    some = out.blocks[2].compute()
    assert sum(computed) == 400 + array.chunks[0][2]
    expected = TokenWhitener(n_tokens=3 if flat else None).fit(x).transform(x)
    close(some, expected[81 : 81 + len(some)], 1e-4 if dtype == np.float32 else 1e-10)
    # what is whitened later is whitened with what was learned then
    whitener.fit(2 * x + 1)
    result = out.compute()
    assert result.dtype == dtype
    close(result, expected, 1e-4 if dtype == np.float32 else 1e-10)
    np.testing.assert_array_equal(TokenWhitener(n_tokens=3 if flat else None).fit_transform(array).compute(), result)


def test_transform_that_drops_directions():
    x = noise(200, 3, 4) @ np.random.default_rng(0).normal(size=(4, 6))
    whitener = TokenWhitener().fit(x)
    out = whitener.transform(cut(x))
    assert whitener.n_components_ == 4
    assert out.shape == (200, 3, 4)
    close(out.compute(), whitener.transform(x), 1e-10)


def test_searches_and_folds():
    x, y = data(("softmax", True, 0.5))
    estimator, grid = AMPAttentionRegressor(noise=0.1, max_iter=4), {"width": [0.3, 0.5]}
    one = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(cut(x), y)
    other = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(x, y)
    np.testing.assert_allclose(one.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"], rtol=1e-9)
    assert one.best_params_ == other.best_params_
    assert_same(one.best_estimator_, other.best_estimator_, 1e-10)
    close(one.predict(cut(x)), other.predict(x), 1e-10)
    # folds of shuffled samples, and y in chunks
    folds = KFold(2, shuffle=True, random_state=0)
    pipeline = make_pipeline(TokenWhitener(), estimator)
    scores = [cross_val_score(pipeline, *held, cv=folds, error_score="raise") for held in ((cut(x), cut(y)), (x, y))]
    np.testing.assert_allclose(*scores, rtol=1e-9)


def test_nothing_of_dask_is_kept():
    x, y = data(("softmax", True, 2))
    for estimator in (AMPAttentionRegressor(0.5, noise=0.1), GD(2), GD(2, solver="adam", batch_size=100, max_iter=2)):
        one = pickle.dumps(clone(estimator).fit(cut(x), y))
        assert b"dask" not in one
        assert len(one) < x.nbytes / 4


# ----------------------------------------------------------------------------------------------------------------
# X is never gathered


def wide_cases():
    """X of 60 features a token: what may come back, n T^2 numbers, is small against it."""
    x, y = make_attention_sequences(400, 2, 60, width=2, noise=0.1, random_state=0)
    deep = make_deep_attention_sequences(400, 2, 60, random_state=0)
    return {
        "AMP": (AMPAttentionRegressor(2, noise=0.1, max_iter=3), x, y),
        "lbfgs": (GD(2, max_iter=2, n_init=2), x, y),
        "adam": (
            GD(2, solver="adam", batch_size=100, max_iter=2, early_stopping=True, n_layers=2, n_init=2),
            x,
            y,
        ),
        "deep AMP": (AMPDeepAttentionRegressor(2, max_iter=3, random_state=0), *deep),
        "mean map": (PositionMeanRegressor(), x, y),
        "whitener": (TokenWhitener(), x, y),
        "pipeline": (make_pipeline(TokenWhitener(), GD(2, max_iter=2)), x, y),
    }


WIDE = wide_cases()


def use(estimator, x, y):
    weights = (
        {"sample_weight": np.r_[np.zeros(50), np.ones(350)]} if has_fit_parameter(estimator, "sample_weight") else {}
    )
    estimator.fit(x, y, **weights)
    if hasattr(estimator, "partial_fit"):
        estimator.partial_fit(x, y)
    for method in ("predict", "predict_index"):
        if hasattr(estimator, method) and not (
            method == "predict_index" and isinstance(estimator, PositionMeanRegressor)
        ):
            getattr(estimator, method)(x)
    if hasattr(estimator, "score"):
        estimator.score(x, y)
    else:
        assert is_dask_array(estimator.transform(x))


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
@pytest.mark.parametrize("name", WIDE)
def test_x_is_never_gathered(name, scheduler, ungathered):
    estimator, x, y = WIDE[name]
    estimator = clone(estimator)
    if name == "lbfgs":
        # for partial_fit
        estimator.set_params(solver="sgd")
    with dask.config.set(scheduler=scheduler):
        use(estimator, cut(x), y)
    assert len(ungathered) > 2
    assert max(ungathered) <= x.nbytes / 7, max(ungathered) / x.nbytes
    if name not in ("mean map", "adam"):
        assert max(ungathered) >= 8 * len(x)


def test_the_watch_sees_what_is_gathered(ungathered):
    x = noise(50)
    for gather in (np.asarray, lambda a: a.compute(), lambda a: a.persist(), list):
        with pytest.raises(AssertionError, match="gathered"):
            gather(cut(x))
    dask.compute(cut(x))
    assert ungathered == [x.nbytes]


# ----------------------------------------------------------------------------------------------------------------
# bad input


def bad_chunks(x):
    n, n_tokens, n_features = x.shape
    unknown = cut(x)[cut(x)[:, 0, 0] > -np.inf]
    filtered = cut(x)[da.from_array(np.arange(n) >= n // 5, chunks=(cut(x).chunks[0],))].compute_chunk_sizes()
    return {
        "chunks over features": (da.from_array(x, chunks=(100, n_tokens, 7)), r"rechunk\(\{1: -1, 2: -1\}\)"),
        "chunks over tokens": (da.from_array(x, chunks=(100, 1, n_features)), "tokens and features must not be split"),
        "an empty chunk": (
            cut(x, (100, 0, 300)),
            r"an empty chunk, number 1 of 3: .*X.rechunk\(\{0: 'auto'\}\)",
        ),
        "an empty chunk, after a filter": (
            filtered,
            "an empty chunk, number 0 of 4",
        ),
        "unknown sizes": (unknown, "chunks of unknown size: call X.compute_chunk_sizes"),
        "complex": (cut(x + 0j), "X holds complex128, but must hold real numbers"),
        "objects": (cut(x.astype(object)), "X holds object, but must hold real numbers"),
        "strings": (cut(x.astype("U3")), "X holds <U3, but must hold real numbers"),
        "no samples": (cut(x[:0], (0,)), "0 sample"),
        "no tokens": (cut(x[:, :0]), "0 token"),
        "no features": (cut(x[:, :, :0]), "0 feature"),
        "one dimension": (cut(x[:, 0, 0]), r"X must have shape .*1 dimension"),
        "four dimensions": (cut(x[:, None]), "4 dimensions"),
    }


BAD_CHUNKS = list(bad_chunks(np.ones((400, 2, 20))))


@pytest.mark.parametrize("what", BAD_CHUNKS)
@pytest.mark.parametrize("name", FITS)
def test_bad_chunks(name, what, pair):
    x, match = bad_chunks(pair[0])[what]
    fitted = check_refused(FITS[name], pair, (x, pair[1]), ValueError, match)
    if what != "no tokens":
        check_refused_in_predict(fitted, x, ValueError, match)


def test_flat_sequences_in_chunks_over_columns(pair):
    x, y = pair
    flat = da.from_array(x.reshape(400, -1), chunks=(100, 20))
    for estimator in FITS.values():
        with pytest.raises(ValueError, match=r"must not be split. Use X.rechunk\(\{1: -1\}\)"):
            clone(estimator).set_params(n_tokens=2).fit(flat, y)
        with pytest.raises(ValueError, match="X has 40 columns, which n_tokens=3 does not divide"):
            clone(estimator).set_params(n_tokens=3).fit(flat.rechunk((100, -1)), y)
        # as the message says
        clone(estimator).set_params(n_tokens=2).fit(flat.rechunk({1: -1}), y)


def test_advice_on_chunks_is_good(pair):
    x, y = pair
    expected = clone(FITS["AMP"]).fit(x, y)
    unknown = bad_chunks(x)["unknown sizes"][0]
    for mended in (
        bad_chunks(x)["chunks over features"][0].rechunk({1: -1, 2: -1}),
        bad_chunks(x)["an empty chunk"][0].rechunk({0: "auto"}),
        unknown.compute_chunk_sizes(),
    ):
        assert_same(clone(FITS["AMP"]).fit(mended, y), expected, 1e-10)


def spoilt(x, spoil, where=2):
    """A dask array in four chunks of 100, one of which is not what the array says."""
    return cut(x, (100,) * 4).map_blocks(
        lambda block, block_id=None: spoil(block) if block_id[0] == where else block, dtype=x.dtype, meta=x[:0]
    )


LIES = {
    "dtype": (lambda block: block.astype(np.float32), r"holds float32, but X says \(100, .* of float64"),
    "complex": (lambda block: block + 1j, r"holds complex128, but X says \(100, .* of float64"),
    "fewer samples": (lambda block: block[:-1], r"has shape \(99, .*, but X says \(100"),
    "more samples": (lambda block: np.concatenate([block, block]), r"has shape \(200, .*, but X says \(100"),
    "no samples": (lambda block: block[:0], r"has shape \(0, "),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", FITS)
def test_chunks_that_are_not_what_the_array_says(name, lie, pair):
    spoil, match = LIES[lie]
    x = spoilt(pair[0], spoil)
    fitted = check_refused(FITS[name], pair, (x, pair[1]), ValueError, match)
    check_refused_in_predict(fitted, x, ValueError, match)


def one_token_less(block):
    return block[:, :1]


def one_feature(block):
    return block[:, :, :1]


@pytest.mark.parametrize("spoil", [one_token_less, one_feature])
@pytest.mark.parametrize("name", ["AMP", "deep AMP", "mean map", "whitener"])
def test_chunks_of_other_tokens_or_features(name, spoil, pair):
    x = spoilt(pair[0], spoil)
    check_refused(FITS[name], pair, (x, pair[1]), ValueError, "a chunk of X")


# in a process of its own: compiled code would write where it must not
OTHER_TOKENS = """
import dask.array as da
from sklearn_aim import *
X, y = make_attention_sequences(400, 3, 20, width=2, random_state=0)
for tokens in (2, 4):
    def change(block):
        return block[:, [0, 1, 2, 2][:tokens]]

    array = da.from_array(X, chunks=(100, 3, 20)).map_blocks(change, dtype=float, meta=X[:0])
    for solver in ("lbfgs", "adam"):
        try:
            GDAttentionRegressor(2, solver=solver, max_iter=2, tol=0.0, random_state=0).fit(array, y)
        except ValueError as error:
            print(error)
"""


def test_chunks_of_other_tokens_in_compiled_code():
    done = run(OTHER_TOKENS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a chunk of X") == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FITS)
def test_nan_in_one_chunk(name, value, pair):
    for sample, chunks in ((0, (400,)), (299, (99, 200, 101)), (399, (1,) * 10 + (390,))):
        x = np.array(pair[0])
        x[sample, 1, 7] = value
        match = rf"NaN or infinity.* in X\[{sample}\]"
        fitted = check_refused(FITS[name], pair, (cut(x, chunks), pair[1]), ValueError, match)
        check_refused_in_predict(fitted, cut(x, chunks), ValueError, match)


def broken(block):
    raise OSError("disk on fire")


@pytest.mark.parametrize("name", FITS)
def test_a_graph_that_raises(name, pair):
    x, y = pair
    match = "a block of X or y could not be computed: OSError: disk on fire"
    bad = spoilt(x, broken)
    fitted = check_refused(FITS[name], pair, (bad, y), RuntimeError, match)
    check_refused_in_predict(fitted, bad, RuntimeError, match)
    if name != "whitener":
        check_refused(FITS[name], pair, (cut(x), spoilt(y, broken)), RuntimeError, match)
        check_refused(FITS[name], pair, (x, spoilt(y, broken)), RuntimeError, match)
    with pytest.raises(OSError, match="on fire"):
        bad.blocks[2].compute()


@pytest.mark.parametrize("name", ["AMP", "GD", "adam", "deep AMP", "whitener"])
def test_a_graph_that_raises_later(name, pair):
    x, y = pair
    count = 0

    def tires(block):
        nonlocal count
        count += 1
        if count > 6:
            raise OSError("disk on fire")
        return block

    with dask.config.set(scheduler="synchronous"):
        good = clone(FITS[name]).fit(x, y)
        before = copy.deepcopy(vars(good))
        for estimator in (good, clone(FITS[name])):
            array = spoilt(x, tires)
            count = 5
            with pytest.raises(RuntimeError, match="disk on fire"):
                estimator.fit(array, y)
        same(vars(good), before, 0, name)
        assert not attributes(estimator)


def test_errors_of_lazily_whitened_tokens(pair):
    x, y = pair
    whitener = TokenWhitener().fit(x)
    ready = False

    def late(block):
        if ready:
            raise OSError("disk on fire")
        return block

    with dask.config.set(scheduler="synchronous"):
        out = whitener.transform(spoilt(x, late))
        ready = True
        with pytest.raises(RuntimeError, match="could not be computed: OSError: disk on fire"):
            AMPAttentionRegressor(0.5).fit(out, y)
        with pytest.raises(OSError, match="disk on fire"):
            out.compute()


@pytest.mark.parametrize("name", [name for name in FITS if name != "whitener"])
def test_bad_maps(name, pair):
    x, y = pair
    estimator = FITS[name]
    nan = y.copy()
    nan[250, 1, 1] = np.nan
    for maps, error, match in (
        (y[:-1], ValueError, r"inconsistent numbers of samples: \[400, 399\]"),
        (cut(y[:-1]), ValueError, r"inconsistent numbers of samples: \[400, 399\]"),
        (cut(y[:, :1]), ValueError, r"y has shape \(400, 1, 2\)"),
        (cut(nan), ValueError, "Input y contains NaN"),
        (cut(y + 0j), ValueError, "Complex data not supported"),
        (None, ValueError, "requires y"),
    ):
        check_refused(estimator, pair, (cut(x), maps), error, match)


def test_bad_weights(pair):
    x, y = pair
    for estimator in (GD(2), PositionMeanRegressor()):
        for weights, match in (
            (np.ones(399), "sample_weight"),
            (-np.ones(400), "sample_weight"),
            (np.zeros(400), "non-zero"),
        ):
            with pytest.raises(ValueError, match=match):
                clone(estimator).fit(cut(x), y, sample_weight=weights)


def test_one_sample():
    x, y = make_attention_sequences(1, 2, 4, random_state=0)
    with pytest.raises(ValueError, match="n_samples = 1"):
        AMPAttentionRegressor().fit(da.from_array(x), y)
    with pytest.raises(ValueError, match="n_samples = 1"):
        TokenWhitener().fit(da.from_array(x[:, :1]))


def test_features_too_large(pair):
    x, y = pair
    with pytest.raises(ValueError, match="too large to square"):
        TokenWhitener().fit(1e200 * cut(x))
    with pytest.raises(ValueError, match="unit variance"):
        AMPDeepAttentionRegressor(1).fit(1e200 * cut(x), y)
    fitted = GD(2).fit(x, y)
    with pytest.raises(ValueError, match="too large for finite attention indices"):
        fitted.predict(1e308 * cut(np.sign(x)))
    with pytest.raises(ValueError, match="overflows at every start"):
        GD(2).fit(1e200 * cut(x), y)


def test_wrong_features_in_predict(pair):
    x, y = pair
    for name, estimator in FITS.items():
        fitted = clone(estimator).fit(cut(x), y)
        check_refused_in_predict(fitted, cut(x[:, :, :10]), ValueError, "10 features")
        assert name in FITS


# ----------------------------------------------------------------------------------------------------------------
# a cluster


distributed = pytest.importorskip("distributed")


def start_cluster():
    # None would ask for port 8787
    return distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")


@pytest.fixture(scope="module")
def cluster():
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


def test_work_is_done_on_the_workers(client):
    x = noise(100)
    pids = DaskBlocks(cut(x, (10,) * 10)).collect(process_of)
    assert os.getpid() not in pids
    assert set(pids) <= set(client.run(os.getpid).values())


def process_of(x):
    return np.full(len(x), os.getpid())


def test_passes_on_a_cluster(client):
    x = noise(100)
    # dask's workers get what pickles; one task, and sums of sums
    for chunks in ((100,), (7,) * 14 + (2,)):
        blocks = DaskBlocks(cut(x, chunks))
        check_passes(blocks, x)
        samples = np.arange(0, 100, 7)
        check_passes(blocks.take(samples), x[samples])
        for answer in blocks.total(sum_and_squares, 2.0, parts=(np.ones(100),)):
            # what comes back may be written
            answer += 1
        out = blocks.collect(token_means)
        out += 1
        close(blocks.map(double).compute(), double(x), 0)


ON_A_CLUSTER = [
    "AMP, estimated noise",
    "AMP, hardmax",
    "lbfgs, untied, bias, three starts",
    "adam, early stopping, weights, two layers",
    "deep AMP",
    "mean map",
    "whitener, AMP",
]


@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_estimators_on_a_cluster(name, client):
    # on the workers already, as it would be
    check_case(name, "double", lambda held: cut(held, (150, 1, 249)).persist())


def test_transform_on_a_cluster(client):
    x, _ = data("raw")
    array = cut(x).persist()
    whitener = TokenWhitener().fit(array)
    out = whitener.transform(array)
    assert out.chunks[0] == array.chunks[0]
    close(out.compute(), TokenWhitener().fit(x).transform(x), 1e-10)


def test_transform_keeps_what_it_needs(client):
    x, _ = data("raw")
    array = cut(x).persist()
    out = TokenWhitener().fit(x).transform(array)
    del array
    gc.collect()
    for _ in range(50):
        if client.futures:
            time.sleep(0.01)
    close(out.compute(), TokenWhitener().fit(x).transform(x), 1e-10)


def test_refit_on_a_cluster_is_the_same_to_the_bit(client):
    one, first = learn(CASES["lbfgs"], "double", cut)
    other, second = learn(CASES["lbfgs"], "double", cut)
    assert_same(one, other, 0)
    same(first, second, 0, "answers")


@pytest.mark.parametrize("name", [name for name in WIDE if name != "pipeline"])
def test_x_is_never_gathered_from_a_cluster(name, client, ungathered):
    estimator, x, y = WIDE[name]
    estimator = clone(estimator)
    if name == "lbfgs":
        estimator.set_params(solver="sgd")
    use(estimator, lazy(400, 2, 60), y)
    assert len(ungathered) > 2
    assert max(ungathered) <= x.nbytes / 7, max(ungathered) / x.nbytes


def draw(block_info=None):
    info = block_info[None]
    return np.random.default_rng(info["chunk-location"][0]).normal(size=info["chunk-shape"])


def lazy(n, n_tokens, n_features, n_chunks=4):
    """X that exists where and when it is needed."""
    return da.map_blocks(draw, chunks=((n // n_chunks,) * n_chunks, n_tokens, n_features), dtype=float)


def test_starts_in_threads_on_a_cluster(client):
    x, y = data(("softmax", True, 2))
    one, other = (GD(2, n_init=2, max_iter=2, n_jobs=n_jobs).fit(cut(x), y) for n_jobs in (None, 2))
    assert_same(one, other, 0)


def test_lanes_are_sent():
    sent = copy.deepcopy(Lanes(4))
    assert sent.n_threads == 1
    lanes = Lanes(4)
    lanes.open()
    assert distributed.protocol.deserialize(*distributed.protocol.serialize(lanes)).n_threads == 1
    lanes.close()


def test_a_search_whose_fits_are_tasks(client):
    x, y = data(("softmax", True, 0.5))
    estimator, grid = AMPAttentionRegressor(noise=0.1, max_iter=3), {"width": [0.3, 0.5]}
    serial = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(x, y)
    for held in (x, cut(x, (200, 200))):
        with joblib.parallel_config(backend="dask"):
            search = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(held, y)
        np.testing.assert_allclose(
            search.cv_results_["mean_test_score"], serial.cv_results_["mean_test_score"], rtol=1e-10
        )
        assert_same(search.best_estimator_, serial.best_estimator_, 1e-10)


def test_fits_inside_tasks(client):
    # more fits than workers: they must not wait for places that they hold themselves
    x, y = data(("softmax", True, 0.5))
    futures = [client.submit(fit_in_a_task, cut(x, (200, 200)), y, width) for width in (0.3, 0.4, 0.5)]
    got = client.gather(futures)
    expected = fit_in_a_task(x, y, 0.5)
    close(got[-1], expected, 1e-10)


def fit_in_a_task(x, y, width):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AMPAttentionRegressor(width, noise=0.1, max_iter=3).fit(x, y).interaction_


def test_bad_blocks_on_a_cluster(client, pair):
    x, y = pair
    for name in ("AMP", "whitener"):
        check_refused(FITS[name], pair, (spoilt(x, broken), y), RuntimeError, "OSError: disk on fire")
        check_refused(FITS[name], pair, (spoilt(x, LIES["dtype"][0]), y), ValueError, LIES["dtype"][1])
    nan = x.copy()
    nan[201] = np.nan
    check_refused(FITS["AMP"], pair, (cut(nan), y), ValueError, r"X\[201\]")
    # and the cluster is as it was
    AMPAttentionRegressor(0.5, noise=0.1, max_iter=2).fit(cut(x), y)


@pytest.fixture
def strict_workers(client):
    """A warning is an error on the workers too."""
    client.run(warnings.simplefilter, "error", RuntimeWarning)
    yield
    client.run(warnings.resetwarnings)


def test_overflow_that_is_looked_for_is_no_warning_of_a_worker(client, strict_workers, pair):
    with pytest.raises(ValueError, match="too large to square"):
        TokenWhitener().fit(1e200 * cut(pair[0]))


# ----------------------------------------------------------------------------------------------------------------
# workers that are lost


@pytest.fixture(scope="module")
def frail():
    """A cluster that may lose workers, once a task."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), start_cluster() as cluster:
        yield cluster


@pytest.fixture
def frail_client(frail):
    with distributed.Client(frail) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


def killed_in_a_task(flag, block_info=None):
    """A block whose worker ends in the middle, the first time that a file `flag` is there."""
    if block_info[None]["chunk-location"][0] == 1:
        try:
            os.unlink(flag)
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return draw(block_info)


LOSSES = {
    "between passes": lambda flag: lazy(400, 3, 12),
    "that hold X": lambda flag: lazy(400, 3, 12).persist(),
    "in a pass": lambda flag: da.map_blocks(
        killed_in_a_task, flag, chunks=((100,) * 4, 3, 12), dtype=float, meta=np.empty((0, 0, 0))
    ),
}


@pytest.fixture(scope="module")
def drawn():
    """X of `lazy` in memory, with maps of a teacher of its own."""
    x = lazy(400, 3, 12).compute(scheduler="synchronous")
    _, _, S = make_attention_sequences(2, 3, 12, width=0.5, random_state=1, return_interaction=True)
    return x, make_channel("softmax", 3).link(attention_indices(x, S))


LEARNER = AMPAttentionRegressor(0.5, noise=0.1, max_iter=5, tol=0.0)


@pytest.fixture(scope="module")
def undisturbed(drawn):
    """`LEARNER` fitted on chunks of which none is lost."""
    with dask.config.set(scheduler="synchronous"):
        return clone(LEARNER).fit(lazy(400, 3, 12), drawn[1])


@pytest.mark.parametrize("loss", LOSSES)
def test_workers_are_lost(loss, frail_client, drawn, undisturbed, tmp_path):
    x, y = drawn
    array = LOSSES[loss](str(tmp_path / "flag"))
    before = set(frail_client.run(os.getpid).values())

    def lose(state):
        if state["iteration"] != 2:
            return
        if loss == "in a pass":
            (tmp_path / "flag").touch()
        else:
            os.kill(min(before), signal.SIGKILL)

    one = clone(LEARNER).fit(array, y, callback=lose)
    assert not (tmp_path / "flag").exists()
    frail_client.wait_for_workers(2, timeout=30)
    assert set(frail_client.run(os.getpid).values()) != before
    assert one.n_iter_ == 5
    assert_same(one, undisturbed, 0)
    assert_same(one, clone(LEARNER).fit(x, y), 1e-10)


def test_a_worker_is_lost_at_any_time(frail_client, drawn):
    _, y = drawn
    estimator = GD(2, max_iter=10)
    with dask.config.set(scheduler="synchronous"):
        expected = clone(estimator).fit(lazy(400, 3, 12), y)
    pid = min(frail_client.run(os.getpid).values())
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    one = clone(estimator).fit(lazy(400, 3, 12), y)
    killer.join()
    assert_same(one, expected, 0)


def ends_its_worker(block):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_block_that_ends_every_worker(frail_client, drawn):
    x, y = drawn
    fitted = AMPAttentionRegressor(0.5, noise=0.1).fit(x, y)
    before = dict(vars(fitted))
    array = lazy(400, 3, 12).map_blocks(ends_its_worker, dtype=float, meta=np.empty((0, 0, 0)))
    with pytest.raises(RuntimeError, match="a block of X or y could not be computed: KilledWorker"):
        fitted.fit(array, y)
    assert all(vars(fitted)[name] is before[name] for name in before)
