"""Groups of starts, run one after the other or in threads; what watches them: progress, callbacks, interruption."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import numba
from joblib import effective_n_jobs

from sklearn_aim.algorithms.descent import Adam, Momentum, Track, first_order, lbfgs
from sklearn_aim.kernels.threads import by_keyboard, one_blas_thread

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:
        """Stands in where scikit-learn has no callbacks."""

    def with_callbacks(method):
        """Stand in where scikit-learn has no callbacks."""
        return method


# columns of factors that share the passes over X: more of them bring no more speed
_GROUP_COLUMNS = 1024
# seconds between lines of verbose=1
_QUIET = 2.0


def group_size(solver, rows):
    """Starts that share passes over X. Fixed by the problem alone, so that n_jobs changes no digit."""
    return 1 if solver == "lbfgs" else max(1, _GROUP_COLUMNS // rows)


def make_rule(solver, shape, stack, batch_shape, learning_rate, momentum):
    """Step rule of a first-order solver for batches of (sequences, tokens)."""
    if solver == "adam":
        return Adam(shape, learning_rate)
    return Momentum(shape, learning_rate * stack.step_scale(*batch_shape), momentum)


def train(objective_of, groups, *, solver, rule, make_rule, batch_size, order, n_jobs, watch):
    """Train groups of starts.

    Parameters
    ----------
    objective_of : callable
        n_threads -> (Objective, validation or None), the latter factors -> losses.
    groups : list of ndarray (n_starts, ...)
        Starting points.
    solver : str
    rule : StoppingRule
    make_rule : callable
        shape -> step rule.
    batch_size : int or None
    order : callable
        () -> RandomState of the minibatches, the same for every group.
    n_jobs : int or None
        Groups at a time. The threads of passes over X are shared out among them.
    watch : Watch

    Returns
    -------
    tracks : list of Track
    interrupted : bool
        By the keyboard. Tracks hold what was learned by then.
    """
    n_workers = min(effective_n_jobs(n_jobs), len(groups))
    tracks = [Track(start, rule) for start in groups]

    def run(number):
        track = tracks[number]
        objective, track.validation = objective_of(max(1, numba.config.NUMBA_NUM_THREADS // n_workers))
        track.started = time.perf_counter()
        track.watch, track.halt = watch.group(number), watch.stop
        with objective:
            if solver == "lbfgs":
                lbfgs(objective, groups[number], track)
            else:
                first_order(objective, groups[number], make_rule(groups[number].shape), track, batch_size, order())
        watch.done(number, track)

    interrupted = False
    try:
        # blocks of sequences are spread over threads, so BLAS must not spread again
        with one_blas_thread():
            if n_workers == 1:
                for number in range(len(groups)):
                    run(number)
            else:
                with ThreadPoolExecutor(n_workers) as pool:
                    futures = [pool.submit(run, number) for number in range(len(groups))]
                    try:
                        for future in as_completed(futures):
                            future.result()
                    except BaseException:
                        watch.stop.set()
                        for future in futures:
                            future.cancel()
                        raise
    except (KeyboardInterrupt, SystemError) as error:
        if not by_keyboard(error):
            raise
        interrupted = True
        for track in tracks:
            track.stop("stopped")
    return tracks, interrupted


class Watch:
    """What is told of every iteration: the screen, scikit-learn's callbacks, and a request to stop."""

    def __init__(self, label, verbose, n_groups, context=None, arguments=None):
        self.label, self.verbose, self.n_groups = label, verbose, n_groups
        self.context, self.arguments = context, arguments
        self.stop = threading.Event()
        # the first fit, then refreshments
        self.round = 0
        self._contexts = {}
        self._lock = threading.Lock()

    def group(self, number):
        """A function of a track for one group of starts; True asks to stop."""
        context, arguments = None, None
        if self.context is not None:
            estimator, X, y, max_iter, learned = self.arguments
            arguments = {"estimator": estimator, "X": X, "y": y}
            with self._lock:
                context = self.context.subcontext(
                    "starts", task_id=self.round * self.n_groups + number, max_subtasks=max_iter
                )
                context.call_on_fit_task_begin(**arguments)
            self._contexts[number] = context
        last = time.perf_counter()

        def watch(track):
            nonlocal last
            now = time.perf_counter()
            if self.verbose > 1 or (self.verbose and now - last > _QUIET):
                last = now
                self._print(number, track, f"iteration {track.iteration:5d}")
            stop = self.stop.is_set()
            if context is not None and track.iteration > 0:
                with self._lock:
                    task = context.subcontext("iteration")
                    task.call_on_fit_task_begin(**arguments)
                    stop |= bool(
                        task.call_on_fit_task_end(
                            **arguments, reconstruction_attributes=lambda: learned(track.best, track.best_score)
                        )
                    )
            return stop

        return watch

    def done(self, number, track):
        """A group has ended."""
        if self.verbose:
            self._print(
                number, track, ", ".join(sorted(set(track.status))) + f" after {track.iteration - 1} iterations"
            )
        if number in self._contexts:
            with self._lock:
                self._contexts[number].call_on_fit_task_end(estimator=self.arguments[0])

    def _print(self, number, track, what):
        best = f"{track.best_loss.min():.4g}"
        if len(track.best_loss) > 1:
            best += f" to {track.best_loss.max():.4g}"
        score = "" if track.validation is None else f"  validation {track.best_score.min():.4g}"
        which = f"  starts {number + 1}/{self.n_groups}" if self.n_groups > 1 else ""
        print(f"[{self.label}]{which}  {what}  loss {best}{score}  {time.perf_counter() - track.started:.1f} s")
