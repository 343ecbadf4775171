"""Names in certificates as an authority may have signed them, whatever it was asked to sign."""

import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.api import certificate

KEY = ec.generate_private_key(ec.SECP256R1())


def signed(
    subject: list[tuple[x509.ObjectIdentifier, str]],
    *others: x509.GeneralName,
    by: trustme.CA | None = None,
    until: datetime | None = None,
) -> bytes:
    """A certificate for KEY, in PEM; signed by itself where there is no authority."""
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the authority")])
    authority: Any = KEY
    if by is not None:
        issuer = x509.load_pem_x509_certificate(by.cert_pem.bytes()).subject
        authority = load_pem_private_key(by.private_key_pem.bytes(), None)
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(until or now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    )
    if others:
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)


def write_key(path: Path) -> None:
    """That of the certificates."""
    path.touch(0o600)
    path.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def common(name: str) -> list[tuple[x509.ObjectIdentifier, str]]:
    return [(NameOID.ORGANIZATION_NAME, "somebody"), (NameOID.COMMON_NAME, name)]


def test_names_of_each_kind() -> None:
    uri, mail = "spiffe://example/scheduler", "ops@example.com"
    kinds = (x509.DNSName("a.example"), x509.UniformResourceIdentifier(uri), x509.RFC822Name(mail))
    address = x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
    assert certificate.names(signed(common("c"), address, *kinds)) == ("a.example", uri, mail)
    assert certificate.names(signed(common("scheduler"))) == ("scheduler",)
    assert certificate.names(signed([])) == ()


def test_a_common_name_beside_alternative_names_is_none() -> None:
    assert certificate.names(signed(common("operator"), x509.DNSName("mallory.example"))) == ("mallory.example",)
    address = x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
    assert certificate.names(signed(common("operator"), address)) == ()


@pytest.mark.parametrize("tail", ["\0.mallory.example", "\n", "\x1bc", "\u202e"])
def test_what_is_not_printable_is_no_name(tail: str) -> None:
    assert certificate.names(signed(common("operator" + tail))) == ()
    if tail.isascii():
        kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier)
        assert certificate.names(signed([], *(kind("operator" + tail) for kind in kinds))) == ()


def test_a_name_of_one_kind_does_not_pass_for_another() -> None:
    host, uri, mail = "operator", "spiffe://operator", "ops@operator"
    for kind, names in (
        (x509.DNSName, (uri, mail)),
        (x509.RFC822Name, (host, uri)),
        (x509.UniformResourceIdentifier, (host, mail)),
    ):
        assert certificate.names(signed([], *(kind(name) for name in names))) == ()


@pytest.mark.parametrize("year", [2049, 2050, 9999])  # in two digits, then in four (RFC 5280)
def test_until_when_it_is_good(year: int) -> None:
    until = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    assert certificate.expires(signed(common("c"), until=until)) == until.timestamp()


@given(st.text(min_size=1, max_size=16))  # 64 bytes are the most
@settings(deadline=None)
def test_any_common_name(name: str) -> None:
    assert certificate.names(signed(common(name))) in ((name,), ())


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes(data: bytes) -> None:
    for look in (certificate.names, certificate.expires):
        with suppress(ValueError):
            look(data)
