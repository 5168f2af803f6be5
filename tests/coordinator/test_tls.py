"""The coordinator as a process behind a certificate, and what is said of one that is wrong."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from configs.schema import TlsConfig
from coordinator.tls import tls_options
from tests.coordinator.cluster_rig import ROOT, a_config, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def a_pair(folder: Path, name: str = "own", password: bytes | None = None) -> TlsConfig:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    locked = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(pem))
    files[1].write_bytes(
        key.private_bytes(
            pem,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password) if password else locked,
        )
    )
    return TlsConfig(certificate=str(files[0]), private_key=str(files[1]))


def configured(folder: Path, tls: TlsConfig) -> tuple[Path, int]:
    path = a_config(folder)
    document = yaml.safe_load(path.read_text())
    document["coordinator"]["tls"] = tls.model_dump()
    path.write_text(yaml.safe_dump(document))
    return path, document["coordinator"]["port"]


@contextlib.contextmanager
def a_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "coordinator", "--config", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def asked(url: str, trusted: str | None, data: bytes | None = None) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=trusted)
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def is_listening(url: str, trusted: str) -> bool:
    with contextlib.suppress(OSError):
        return asked(f"{url}/health", trusted)[0] == 200
    return False


def test_both_doors_speak_tls_and_only_to_who_trusts_the_certificate(tmp_path: Path) -> None:
    tls = a_pair(tmp_path)
    path, port = configured(tmp_path, tls)
    url = f"https://127.0.0.1:{port}"
    with a_process(path) as process:
        assert until(lambda: is_listening(url, tls.certificate)), process.poll()
        body = b'{"model":"a","messages":[{"role":"user","content":"hi"}]}'
        status, answer = asked(f"{url}/v1/chat/completions", tls.certificate, body)
        assert (status, b"no_instance" in answer) == (503, True), "no engine is behind this one"
        assert asked(f"{url}/v1/models", tls.certificate)[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            asked(f"{url}/health", None)
        with pytest.raises(OSError):  # noqa: PT011  (plain HTTP: closed, or an empty answer)
            asked(f"http://127.0.0.1:{port}/health", None)
        assert is_listening(url, tls.certificate), "neither has disturbed it"


def test_a_certificate_that_cannot_be_used_ends_the_start_with_a_clear_word(
    tmp_path: Path,
) -> None:
    tls = a_pair(tmp_path).model_copy(update={"private_key": str(tmp_path / "gone.key")})
    path, _ = configured(tmp_path, tls)
    with a_process(path) as process:
        assert process.wait(60) == 2
        assert process.stderr is not None
        said = process.stderr.read()
    assert said == f"coordinator.tls.private_key: cannot read {tls.private_key!r}: " + (
        "No such file or directory\n"
    )


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    own, other = a_pair(tmp_path), a_pair(tmp_path, "other")
    mixed = own.model_copy(update={"private_key": other.private_key})
    with pytest.raises(ValueError, match="mismatch"):
        tls_options(mixed)


def test_an_encrypted_key_asks_nobody_for_its_password(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coordinator\.tls: .*own\.key"):
        tls_options(a_pair(tmp_path, password=b"secret"))


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    tls = a_pair(tmp_path)
    (tmp_path / "own.pem").write_text("not PEM")
    with pytest.raises(ValueError, match=r"own\.pem"):
        tls_options(tls)
