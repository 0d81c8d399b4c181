"""Random problems for every estimator and bound, and what may come of them."""
