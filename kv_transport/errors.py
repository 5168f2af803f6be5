"""What can go wrong while KV moves between instances, and the caller's next move.

* KvTransportError
  + KvParamsInvalid   a hand-off that cannot be read; do not try it again, compute the prompt
    - HandOffForeign  it is not of one of our prefill instances, or not of this prompt; the same
    - HandOffUsed     its blocks were let go once it was read; the same
  + LinkError
    - PullTimeout     the transfer has not ended in time; computing is safe, but its target blocks
                      stay aside until it ends
    - PeerGone        the other end restarted or died; place the request again"""


class KvTransportError(Exception):
    """Root of the tree."""


class KvParamsInvalid(KvTransportError):
    """A hand-off that is not one: compute the prompt on D."""


class HandOffForeign(KvParamsInvalid):
    """Not signed by an engine of this cluster for this prompt: compute the prompt on D."""


class HandOffUsed(KvParamsInvalid):
    """A hand-off is consumed once: compute the prompt on D."""


class LinkError(KvTransportError):
    """The bytes did not arrive."""


class PullTimeout(LinkError):
    """A transfer that did not end within its limit: compute the prompt, and keep the blocks that it
    may still write to."""


class PeerGone(LinkError):
    """The other end restarted or died; what it pinned for us is lost."""
