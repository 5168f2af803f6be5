"""What can go wrong while KV moves between instances, and the caller's next move.

* KvTransportError
  + KvParamsInvalid   the peer answered something we cannot read; do not retry it, recompute
  + LinkError
    - PullTimeout     the pull did not finish in time; recompute is safe
    - PeerGone        the peer restarted or died; place the request again"""


class KvTransportError(Exception):
    """Root of the tree."""


class KvParamsInvalid(KvTransportError):
    """A hand-off that is not one: recompute the prompt on D."""


class LinkError(KvTransportError):
    """The bytes did not arrive."""


class PullTimeout(LinkError):
    """A pull that made no progress within its limit; the decode side recomputes the prompt."""


class PeerGone(LinkError):
    """The other end restarted or died; what it pinned for us is lost."""
