"""Channels: what one sequence says about its attention indices, one file a link."""

from sklearn_aim.channels.base import Channel
from sklearn_aim.channels.gaussian import GaussianChannel
from sklearn_aim.channels.hardmax import HardmaxChannel
from sklearn_aim.channels.identity import IdentityChannel
from sklearn_aim.channels.masked import MaskedChannel
from sklearn_aim.channels.softmax import SoftmaxChannel
from sklearn_aim.parameters import check_name

LINKS = {"identity": IdentityChannel, "softmax": SoftmaxChannel, "hardmax": HardmaxChannel}

__all__ = [
    "LINKS",
    "Channel",
    "GaussianChannel",
    "HardmaxChannel",
    "IdentityChannel",
    "MaskedChannel",
    "SoftmaxChannel",
    "make_channel",
    "register_link",
]


def register_link(name: str, channel_class: type) -> None:
    """Make a link known by name to the estimators, the bounds and the data sets.

    Parameters
    ----------
    name : str
        A new name; built-in links can't be replaced.
    channel_class : type
        A subclass of `Channel`; try it with `sklearn_aim.channels.check.check_channel`. Workers of a process pool know
        it only if it is registered in a module that they import.
    """
    if not (isinstance(channel_class, type) and issubclass(channel_class, Channel)):
        raise TypeError(f"channel_class must be a subclass of sklearn_aim.channels.Channel, got {channel_class!r}.")
    check_name(name, "name")
    if name in ("identity", "softmax", "hardmax"):
        raise ValueError(f"name={name!r} is a built-in link: choose another name.")
    if channel_class in LINKS.values():
        raise ValueError(f"channel_class={channel_class.__name__} is registered already, as {channel_class.name!r}.")
    channel_class.name = name
    LINKS[name] = channel_class


def make_channel(link, n_tokens, *, tied=True, noise=0.0, inverse_temperature=1.0, allowed=None):
    """Channel of a link by its registered name.

    Parameters
    ----------
    link : str
        "identity", "softmax", "hardmax" or a name given to `register_link`.
    n_tokens : int
    tied : bool, default=True
    noise : float, default=0.0
        Variance scale Delta of the index noise.
    inverse_temperature : float, default=1.0
    allowed : ndarray of shape (n, T, T), optional
        What masks let through, see `kernels.masks.allowed_pairs`; softmax and identity only.

    Returns
    -------
    Channel
    """
    if not isinstance(link, str):
        raise TypeError(f"link={link!r} must be a string, one of {sorted(LINKS)}.")
    if link not in LINKS:
        raise ValueError(f"link={link!r} is not known: use one of {sorted(LINKS)}, or register_link for your own.")
    if allowed is not None and not MaskedChannel.supports(link):
        raise ValueError(f"mask is for link='softmax' and 'identity', not for link={link!r}: use one of these.")
    channel = LINKS[link](n_tokens, tied=tied, noise=noise, inverse_temperature=inverse_temperature)
    return channel if allowed is None else MaskedChannel(channel, allowed)
