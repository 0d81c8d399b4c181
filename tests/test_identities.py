"""A slice of the campaign of identities; the whole of it is `python tests/campaign/identities.py`."""

import pytest
from campaign.identities import CHECKS, run

# a few points of each kind; those whose averages take long to set up are left to the campaign
SLICE = {
    "prior": 12,
    "prior-information": 2,
    "small-width": 50,
    "channel-derivative": 25,
    "far-tails": 50,
    "hardmax-sums": 15,
    "test-error": 8,
    "bound": 3,
    "deep-channel": 2,
    "deep-nishimori": 1,
}


@pytest.mark.parametrize("name", SLICE)
def test_identities_hold(name):
    # seed 0 of the campaign begins with the same points
    report = run([name], 2000 * SLICE[name] // CHECKS[name][1], seed=0)
    assert report.rows
    assert not report.violated, f"\n{report}"
