"""What AMPAttentionRegressor does inside `fit`, and keeps of it."""

import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_aim.algorithms.amp import amp, cavity_means
from sklearn_aim.algorithms.annealing import anneal
from sklearn_aim.algorithms.nuisance import KeyBias, bias_indices
from sklearn_aim.estimators._amp_checks import check_parameters
from sklearn_aim.estimators._base import MaskedAttentionRegressor
from sklearn_aim.estimators._diagnostics import energy_statistics, sampled, spread_statistics, token_statistics
from sklearn_aim.estimators._sizes import check_indices, check_tokens, encoded
from sklearn_aim.estimators._width import seen_pairs
from sklearn_aim.kernels.indices import attention_indices
from sklearn_aim.kernels.masks import padding
from sklearn_aim.kernels.threads import ONE_THREAD, one_blas_thread
from sklearn_aim.parameters import resolve_width, width_is_auto
from sklearn_aim.preprocessing import TokenWhitener
from sklearn_aim.priors import make_prior
from sklearn_aim.sequences import sequence_blocks

# columns of `history_` that verbose=2 prints, and their names there
_SHOWN = {
    "estimation_error": "V",
    "information": "q_hat",
    "residual": "residual",
    "log_likelihood": "log-likelihood",
    "held_out_square": "held-out square",
    "width": "width",
    "noise_level": "v",
}


class MessagePassingRegressor(MaskedAttentionRegressor):
    """Base of AMPAttentionRegressor: checks, the run, fitted attributes and what it says of them."""

    def _fit(self, X, y, mask, callback):
        damping, estimate = check_parameters(self)
        x, maps = self._check_fit(X, y)
        n_samples, n_tokens, _ = x.shape
        if n_samples < 2:
            raise ValueError(f"n_samples = 1: found 1 sample, but {type(self).__name__} needs at least 2 sequences.")
        if not width_is_auto(self.width):
            resolve_width(self.width, x.shape[2])
        # the link's own word on numbers of tokens
        self._channel(n_tokens)
        allowed = self._learn_mask(mask, x)
        seen = seen_pairs(self.link, maps, allowed)
        if seen is not allowed:
            warnings.warn(
                "y holds zeros, which say of their indices only that they are small: they are taken as not seen. "
                "Where they come from masks pass mask to fit and predict.",
                UserWarning,
                stacklevel=4,
            )
        channel = self._channel(n_tokens, 0.0 if estimate else float(self.noise), seen)
        code = encoded(channel, maps, self)
        started = time.perf_counter()
        vars(self).pop("whitener_", None)
        if self.whiten is not None:
            self.whitener_ = TokenWhitener(self.whiten).learn(x, allowed)
            x = sequence_blocks(self.whitener_.apply(x))
        check_tokens(x, allowed)
        with one_blas_thread(x.shape[2] <= ONE_THREAD):
            result, prior = self._learn(x, code, channel, damping, estimate, self._with_progress(callback))
        self._keep(x, result, channel, prior)
        self.diagnostics_ = self._diagnose(x, maps, result, prior, allowed)
        if self.verbose:
            state = "converged" if self.converged_ else "not converged"
            failed = self.diagnostics_["failed"]
            print(
                f"[AMP] {state} after {self.n_iter_} iterations, {time.perf_counter() - started:.2f} s: "
                f"V={self.estimation_error_:.4g}, alpha={self.sample_complexity_:.4g}"
                + (f"; assumptions that fail: {', '.join(failed)}" if failed else "")
            )
        if not self.converged_:
            self._warn_of_iterations()
        return self

    def _learn(self, x, code, channel, damping, estimate, callback):
        """Run the solver, after a search for the width if it is "auto": its result, and the prior of the width."""
        n_features = x.shape[2]
        width = None if width_is_auto(self.width) else resolve_width(self.width, n_features)[0]
        annealed = self.solver != "amp"
        memory = (None, None, None)
        if width is None or annealed:
            result = anneal(
                x,
                code,
                channel,
                width=width,
                denoise=self.solver != "linear",
                bias=self.fit_bias,
                max_iter=self.max_iter,
                tol=self.tol,
                callback=callback if annealed else None,
            )
            width = result.width
        prior = make_prior(width / n_features, channel.tied, self.prior)
        if not annealed:
            result = amp(
                x,
                code,
                channel,
                prior,
                damping=damping,
                clamp=self.clamp,
                max_iter=self.max_iter,
                tol=self.tol,
                estimate_noise=estimate,
                bias=KeyBias(x, code, channel) if self.fit_bias else None,
                start=self._warm_state(n_features, prior, code),
                callback=callback,
            )
            if self.warm_start:
                memory = (code, result.gradient, self._setting())
        self._memory = memory
        self.width_, self.width_ratio_ = width, width / n_features
        return result, prior

    def _keep(self, x, result, channel, prior):
        """Fitted attributes."""
        self._core = interaction = result.interaction.astype(x.dtype, copy=False)
        self._coefficients = result.coefficients
        bias, self.diagonal_ = self._linear_terms()
        if self.whiten is not None:
            interaction, _, from_mean = self.whitener_.interaction_to_raw(interaction, return_bias=True)
            bias = self.whitener_.bias_to_raw(bias) + from_mean
            self.diagonal_ += float(
                np.trace(interaction) / np.sqrt(len(interaction)) - np.trace(self._core) / np.sqrt(len(self._core))
            )
        self.interaction_, self.bias_ = interaction.astype(x.dtype, copy=False), bias.astype(x.dtype, copy=False)
        self.estimation_error_ = float(result.estimation_error)
        self.sample_complexity_ = len(x) / x.shape[2] ** 2
        if self.solver == "amp":
            self.overlap_ = prior.second_moment - self.estimation_error_
            self.information_ = float(result.information)
            self.noise_ = float(result.noise)
        else:
            self.overlap_ = float(np.sum(self._core.astype(float) ** 2)) / x.shape[2]
            self.noise_ = channel.noise
            self.information_ = self.sample_complexity_ * float(
                # held-out sequences may be predicted exactly
                channel.information(max(self.estimation_error_, np.finfo(float).eps), None)[0]
            )
        self.history_ = result.history
        self.converged_ = result.converged
        self.n_iter_ = result.n_iter

    def _linear_terms(self):
        """Key bias (d,) and offset of the diagonal, in the features that message passing sees."""
        if self._coefficients is None:
            return np.zeros(len(self._core)), 0.0
        return self._coefficients[:-1], float(self._coefficients[-1])

    def _indices(self, x, allowed=None):
        """Indices of blocks of raw sequences, 0 where masked."""
        if self.whiten is None:
            interaction, linear = self.interaction_, (self.bias_, self.diagonal_)
        else:
            # not by raw features, which may lie far from zero and close to a hyperplane
            x = sequence_blocks(self.whitener_.apply(x))
            interaction, linear = self._core, self._linear_terms()
        with np.errstate(over="ignore", invalid="ignore"):
            indices = x.collect(attention_indices, interaction)
            if self._coefficients is not None:
                indices += bias_indices(x, np.append(*linear))
        # what is masked may be anything; squares are taken
        indices = indices if allowed is None else np.where(allowed, indices, 0)
        return check_indices(indices, np.sqrt(np.finfo(indices.dtype).max))

    def _diagnose(self, x, maps, result, prior, allowed):
        """`diagnostics_`."""
        chosen = sampled(*x.shape)
        padded = None if allowed is None else padding(allowed[chosen])
        tokens, failed = token_statistics(x.take(chosen), padded)
        ratio = None
        if self.solver != "amp":
            chosen, predicted = result.held, result.held_indices
        else:
            ratio = float(result.history["energy_ratio"][-1]) if result.n_iter else None
            gradient = None if result.gradient is None else result.gradient[chosen]
            some = x.take(chosen)
            predicted = cavity_means(some, result.interaction, result.estimation_error, gradient)
            if result.coefficients is not None:
                predicted += bias_indices(some, result.coefficients)
        allowed = None if allowed is None else allowed[chosen]
        channel = self._channel(x.shape[1], self.noise_, allowed)
        coverage, wrong = spread_statistics(
            channel, maps[chosen], predicted, self.estimation_error_, prior.prior_error, allowed
        )
        ratio, off = energy_statistics(ratio, self.estimation_error_, self.noise_, prior.prior_error, len(x))
        return {**tokens, "energy_ratio": ratio, "coverage": coverage, "failed": failed + off + wrong}

    def _warn_of_iterations(self):
        stopped = (
            f"reached max_iter={self.max_iter}"
            if self.n_iter_ >= self.max_iter
            else f"stopped after {self.n_iter_} iterations without progress"
        )
        failed = self.diagnostics_["failed"]
        mend = "more data, another width or a larger max_iter may help."
        if self.solver == "amp":
            mend = (
                "noise='estimate', more data, another width, damping=0.7 or a larger max_iter may help; features that "
                "are not white do harm, see whiten and TokenWhitener."
            )
            if failed:
                mend += (
                    f" The data contradict what it assumes ({', '.join(failed)}, see diagnostics_): solver='annealed' "
                    "assumes less."
                )
        warnings.warn(
            f"AMP did not converge: it {stopped}, and keeps the iterate of the largest leave-one-out likelihood. {mend}"
            if self.solver == "amp"
            else f"The annealed fit did not settle: it {stopped}, and keeps its best stage. {mend}",
            ConvergenceWarning,
            stacklevel=5,
        )

    def _warm_state(self, n_features, prior, code):
        if not (self.warm_start and hasattr(self, "_core") and len(self._core) == n_features):
            return None
        known, gradient, setting = self._memory
        seen = gradient is not None and len(known) <= len(code) and np.array_equal(known, code[: len(known)])
        if not self.converged_ and not (seen and setting == self._setting()):
            # where a run that went astray ended, another one goes astray
            return None
        start = self._core.astype(np.float64)
        if prior.tied:
            start = 0.5 * (start + start.T)
        if seen:
            return start, min(self.estimation_error_, prior.prior_error), gradient
        # V is set back part of the way, since the data may be others
        return start, min(max(2 * self.estimation_error_, 0.1 * prior.prior_error), prior.prior_error), None

    def _setting(self):
        return (
            self.width,
            self.tied,
            self.link,
            self.inverse_temperature,
            self.noise,
            self.prior,
            self.fit_bias,
            self.whiten,
            self.solver,
        )

    def _with_progress(self, callback):
        if self.verbose < 2:
            return callback

        def report(state):
            columns = (f"{shown}={state[name]:.4g}" for name, shown in _SHOWN.items() if name in state)
            print(f"[AMP] {state['iteration']:4d}  " + "  ".join(columns))
            return callback(state) if callback is not None else None

        return report
