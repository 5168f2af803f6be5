"""The certificate that clients see, checked before anything listens with it.

uvicorn would stop at a file that is wrong with a traceback that does not name the setting, and ask
on the terminal for the password of a key. Host: coordinator.__main__."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from configs.schema import TlsConfig


def tls_options(tls: TlsConfig | None) -> dict[str, Any]:
    """For uvicorn. Raises ValueError."""
    if tls is None:
        return {}
    for name, path in (("certificate", tls.certificate), ("private_key", tls.private_key)):
        _readable(name, path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a word for it an encrypted key would be asked for on the terminal.
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
    except ssl.SSLError as error:
        why = (error.reason or "no PEM file, or an encrypted key").replace("_", " ").lower()
        raise ValueError(
            f"coordinator.tls: certificate {tls.certificate!r} and private_key "
            f"{tls.private_key!r} cannot be used together: {why}"
        ) from None
    return {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.private_key}


def _readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        text = f"coordinator.tls.{name}: cannot read {path!r}: {error.strerror}"
        raise ValueError(text) from None
