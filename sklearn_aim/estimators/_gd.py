"""GDAttentionRegressor: gradient descent for one attention layer or many."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sklearn_aim.estimators._descent import DescentRegressor
from sklearn_aim.sequences import kept_on_failure


class GDAttentionRegressor(DescentRegressor):
    r"""Learn attention layers by gradient descent on their factors, from many random starts.

    One layer has attention indices :math:`h_{ab} = (x_a^\top S x_b - \delta_{ab} \mathrm{tr} S)/\sqrt d`
    with :math:`S = W W^\top/\sqrt{r d}` (tied) or :math:`U V^\top/\sqrt{r d}`, and answers softmax(beta h). Of
    several layers, those before the last pass on :math:`X_l = [c I + \mathrm{softmax}(\beta h_l)] X_{l-1}`, c the skip
    strength.

    On exact maps of such a layer, at the right width, a run that fits them all ends at about twice the Bayes-optimal
    error V (`BayesOptimalBound`), like a draw from the posterior, and the mean of `n_init` such runs at about V +
    V/n_init (a few to ten per cent more; see `n_refreshes`). Noisy maps are overfitted by every run alike: use
    `weight_decay`, or `AMPAttentionRegressor`.

    Parameters
    ----------
    width : int, float or "auto", default=1.0
        Width of keys and queries. An int is the width r, a float the width ratio r/d. "auto" (one layer, `fit` alone):
        what `AMPAttentionRegressor` finds with it, the fewest singular values that predict held-out sequences well.
    tied : bool, default=True
        Keys and queries share their weights.
    n_layers : int, default=1
    skip : float, default=1.0
        Skip strength c, for two layers or more.
    link : "softmax" or "identity", default="softmax"
        identity: y is the index itself (one layer).
    inverse_temperature : float, default=1.0
        beta of the softmax.
    loss : "squared_error", "cross_entropy" or "log_ratio", default="squared_error"
        Of a sequence: ||y - output||_F^2; or the sum over rows of the Kullback-Leibler divergence KL(y || output),
        which is the cross-entropy less the labels' own entropy; or ||P (log(y)/beta - h)||_F^2, P the centring of rows,
        the squared (Aitchison) distance of log-ratios. The last two are for softmax. "log_ratio" needs y > 0. Where
        maps are exact, all three vanish together and it is by far the fastest, since nothing saturates; it takes
        moderate noise of the indices well too, but noise of the maps themselves is for the cross-entropy.
    fit_bias : bool, default=False
        Learn a key bias b, which adds b^T x_b/sqrt(d) to h_ab: what the query bias of a transformer's head leaves after
        the softmax, and the mean of tokens that are not centred. See `center`.
    scaling : "attention-index" or "sequence-index", default="attention-index"
        "attention-index": as above. "sequence-index": the low-rank model of arXiv:2502.00901, S = W W^T/sqrt(d), so
        that h_ab = x_a^T W W^T x_b/d, for widths that are small numbers.
    center : bool or "auto", default="auto"
        Take tr S off the diagonal indices, which centres them for tokens of unit variance (others bring a warning).
        "auto": for "attention-index" without `fit_bias`, since the indices of a transformer's head are not centred.
    solver : "auto", "lbfgs", "adam" or "sgd", default="auto"
        "lbfgs" takes all sequences at once and converges much further in the same time; "adam" and "sgd" (with
        momentum) can take minibatches. "auto": "lbfgs" without `batch_size`, else "adam".
    learning_rate : float, default=0.1
        Of adam, in entries of the factors. Of sgd, in natural units, so that the same rate suits all sizes: steps are
        multiplied by d sqrt(r d) min(1, 10 B/d^2) ("attention-index") or d min(1, B/d), B the sequences in a batch, and
        divided by a curvature: beta^2 (squared error), 2 T beta^2 (cross-entropy), 4 T^2 (log-ratio, identity).
    momentum : float in [0, 1), default=0.9
        Of sgd: steps follow the running mean of gradients that decays by this factor.
    batch_size : int, optional
        Sequences in a minibatch of adam and sgd. None: all of them.
    max_iter : int, default=1000
        Iterations; epochs with minibatches.
    tol : float, default=1e-3
        A start has converged when residuals are below tol times those of uniform attention (of zero, for identity), or
        when its loss falls by less than a fraction tol over `n_iter_no_change` iterations. 0 goes on until `max_iter`,
        or until L-BFGS finds no smaller loss.
    n_iter_no_change : int, default=20
    weight_decay : float, default=0.0
        Adds weight_decay * sum of ||S||_*/d over layers, the nuclear norm that the squared norm of the factors stands
        for; with "sequence-index", weight_decay * ||W||_F^2/d. Untied: W stands for U and V, each counted half. Of use
        are about 0.01 to 1, for log_ratio and identity 0.1 to 10. A path with `warm_start` goes up: zero is a saddle
        that a smaller decay does not leave.
    n_init : int, default=1
        Random starts.
    n_refreshes : int, default=0
        Rounds after the first fit. Each moves every start's factors part of the way back to the prior, W <- 0.8 W + 0.6
        N(0, init_scale^2), and fits again: what is left are fairer draws from the posterior, whose mean comes closer to
        the bound. 5 to 10 suffice; of use with exact maps and loss="log_ratio".
    average : bool, default=True
        Answer with the mean interaction (several layers: the mean prediction) of all starts but those that diverged,
        that ended worse than uniform attention, or, where others fit the maps to `tol`, above a hundredth of its loss
        (local minima); else with the best start.
    init_scale : float, default=1.0
        Standard deviation of the entries of the factors at the start. 1 is the prior's, under which runs are closest to
        draws from the posterior: best for averages. A single run alone does better from 0.1 to 0.3.
    early_stopping : bool, default=False
        Stop, and choose the iterate, by the loss of held-out sequences. Needs memory for a copy of X.
    validation_fraction : float, default=0.1
        Sequences held out by `early_stopping`.
    warm_start : bool, default=False
        Start from the factors of the last fit, where they mean the same (width, layers, bias, scaling, link, n_init).
    n_tokens : int, optional
        Tokens of a sequence when X is 2-D, (n_samples, n_tokens * n_features). None: one token.
    n_jobs : int, optional
        Groups of starts that run at a time, in threads. None: one, whose passes over X use all cores. Results do not
        depend on it.
    random_state : int, RandomState or None, default=None
        Starts, order of minibatches, and held-out sequences.
    verbose : int, default=0
        1 prints a line every other second and one for each group of starts, 2 one for each iteration.

    Attributes
    ----------
    interaction_ : ndarray of shape (n_features, n_features) or (n_layers, n_features, n_features)
        S: mean over starts, or of the best start.
    interactions_ : ndarray of shape (n_init, n_features, n_features) or (n_init, n_layers, n_features, n_features)
        S of every start.
    W_ : ndarray of shape (n_features, width_) or (n_layers, n_features, width_)
        Factors of the best start, if tied.
    U_, V_ : ndarray of the same shape
        Its factors if untied, queries and keys.
    bias_ : ndarray of shape (n_features,) or (n_layers, n_features)
        Key bias b, mean over starts or of the best; zeros without `fit_bias`.
    width_ : int
        Width r.
    width_ratio_ : float
        r/d.
    best_loss_ : float
        Smallest loss of all starts, weight decay included; with `early_stopping` the validation loss, without it.
    losses_ : ndarray of shape (n_init,)
        That of each.
    loss_curve_ : list of ndarray of shape (n_iterations + 1,)
        Training loss of each start, from its first iterate on, without losses that are not finite.
    validation_loss_curve_ : list of ndarray of shape (n_iterations + 1,)
        Only with `early_stopping`.
    start_spread_ : float or ndarray of shape (n_layers,)
        Variance of S between the m starts averaged, a dimension: sum_k ||S_k - mean||_F^2/((m - 1) d). Only if m > 1.
        Where runs are draws from the posterior it estimates the posterior variance V, the error that the mean of ever
        more starts tends to. The error of the mean of m is that limit plus start_spread_/m, draws or not.
    estimation_error_ : float or ndarray of shape (n_layers,)
        The error of `interaction_` that this implies: start_spread_ (1 + 1/m) for the mean, twice the spread for one
        start. Only if m > 1 and all of them fit the maps to `tol`. Trust it for exact maps, the layer's own width,
        init_scale=1 and loss="log_ratio"; elsewhere it is too small (squared_error: by about a fifth).
    sample_complexity_ : float
        alpha = n/d^2 ("attention-index") or n/d.
    mask_ : None, "causal" or ndarray
        Mask of `fit`.
    converged_ : bool
        Every start did.
    n_iter_ : int
        Iterations of the longest start.
    n_tokens_ : int
    n_features_in_ : int
        Features of a token for 3-D X, columns of X for 2-D X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only for 2-D X with names.

    Notes
    -----
    Every layer sees X through X W alone, so that an iteration of any number of layers is two matrix products, 4 n T d r
    operations a layer and start (untied: twice that). With adam and sgd, starts share the products. Memory: X, a few
    megabytes, the factors (L-BFGS: about 45 copies of one start's) and the d x d interactions of all starts.

    scikit-learn's callbacks (`set_callbacks`, from version 1.9 on) see every group of starts and iteration; what they
    return stops the group, and refreshments. A scorer for 3-D maps is `attention_r2_scorer`.

    References
    ----------
    arXiv:2506.01582 (gradient descent on the full-width model), arXiv:2502.00901 (deep attention of low rank).

    Examples
    --------
    >>> from sklearn_aim import GDAttentionRegressor, estimation_error, make_attention_sequences
    >>> X, y, S = make_attention_sequences(
    ...     900, n_tokens=3, n_features=30, width=3, random_state=0, return_interaction=True)
    >>> est = GDAttentionRegressor(width=3, random_state=0).fit(X, y)
    >>> bool(estimation_error(S, est.interaction_) < 1e-3)
    True
    """

    def __init__(
        self,
        width: int | float | str = 1.0,
        *,
        tied: bool = True,
        n_layers: int = 1,
        skip: float = 1.0,
        link: str = "softmax",
        inverse_temperature: float = 1.0,
        loss: str = "squared_error",
        fit_bias: bool = False,
        scaling: str = "attention-index",
        center: bool | str = "auto",
        solver: str = "auto",
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        batch_size: int | None = None,
        max_iter: int = 1000,
        tol: float = 1e-3,
        n_iter_no_change: int = 20,
        weight_decay: float = 0.0,
        n_init: int = 1,
        n_refreshes: int = 0,
        average: bool = True,
        init_scale: float = 1.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        n_tokens: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        self.width = width
        self.tied = tied
        self.n_layers = n_layers
        self.skip = skip
        self.link = link
        self.inverse_temperature = inverse_temperature
        self.loss = loss
        self.fit_bias = fit_bias
        self.scaling = scaling
        self.center = center
        self.solver = solver
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.weight_decay = weight_decay
        self.n_init = n_init
        self.n_refreshes = n_refreshes
        self.average = average
        self.init_scale = init_scale
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.n_tokens = n_tokens
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, mask: ArrayLike | str | None = None
    ) -> Self:
        """Learn the factors.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features) or (n_samples, n_tokens * n_features)
            Sequences. 2-D X needs `n_tokens`, else each row is one token. Or a list of arrays (n_tokens, n_features)
            of unequal length, with a list y of their maps; see `pad_sequences`.
        y : array-like of shape (n_samples, n_tokens, n_tokens), flattened, or (n_samples,) for one token
            Attention maps: y[n, a, b] is query a, key b. Zeros are allowed.
        sample_weight : array-like of shape (n_samples,), optional
        mask : None, "causal" or ndarray, default=None
            Which keys a query may attend to. "causal": itself and those before it. Of shape (n_samples, n_tokens):
            True for tokens, False for padding. Of shape (n_samples, n_tokens, n_tokens) or (n_tokens, n_tokens): True
            where query a may attend to key b. y must be 0 elsewhere. All layers have the same mask.

        Returns
        -------
        self
            Also when the keyboard interrupts training: with a warning, and what was learned by then. As in
            scikit-learn's MLPRegressor the interrupt goes no further; a search goes on with its next candidate.

        Raises
        ------
        ValueError, TypeError
            For parameters or data that the model excludes; the message names them.
        """
        with kept_on_failure(self):
            return self._fit_padded(self._fit, X, y, mask, sample_weight)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, mask: ArrayLike | str | None = None
    ) -> Self:
        """Go once over some sequences, by minibatches of `batch_size` or all of them in one step.

        Factors, moments of adam and momentum of sgd go on from the last call; `loss_curve_` gets the mean loss of the
        minibatches, each before its step. Nothing is held out, whatever `early_stopping` says. After a `fit`, adam
        starts with full steps that leave a minimum: sgd, or a small learning_rate, goes on gently.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_features)
        y : array-like of shape (n_samples, n_tokens, n_tokens)
        sample_weight : array-like of shape (n_samples,), optional
        mask : None, "causal" or ndarray, default=None
            As in `fit`.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            As in `fit`; or if the loss overflows. The estimator is then as it was before the call.
        """
        with kept_on_failure(self):
            return self._fit_padded(self._partial_fit, X, y, mask, sample_weight)
