"""The names in a client's certificate and its expiry, read from the certificate itself.

gRPC reports names, too, but cut at a NUL ("operator.example\\0.mallory.example" would be the operator), with addresses
and names of other kinds among those of hosts, and with a common name that counts beside them. The TLS handshake has
verified the caller: the authority signed the certificate, which has the only possible encoding (DER, X.690; RFC 5280).
TLS verifies neither an open connection nor a resumed session again.
"""

import base64
import time
from functools import lru_cache

_SEQUENCE, _EXTENSIONS = 0x30, 0xA3
_COMMON_NAME, _SUBJECT_ALT_NAME = b"\x55\x04\x03", b"\x55\x1d\x11"
#: Strings that are UTF-8 or a part of it: UTF8String, PrintableString, IA5String.
_TEXTS = (0x0C, 0x13, 0x16)
#: Kinds of alternative names that count, each with characters that it has, and with those that it cannot have: so none
#: of one kind passes for another. In turn: of mail, of hosts, URIs.
_KINDS = {0x81: ("@", ":/"), 0x82: ("", ":/@"), 0x86: (":", "")}


#: UTCTime and GeneralizedTime, always in UTC and with seconds (RFC 5280, 4.1.2.5).
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


@lru_cache(maxsize=1024)
def names(pem: bytes) -> tuple[str, ...]:
    """Names of hosts and mail addresses and URIs; the common name where the certificate has no alternative names at
    all. What is not printable is no name. Raises ValueError for what is no certificate."""
    try:
        fields = _fields(pem)
        subject = [value for tag, value in fields if tag == _SEQUENCE][3]
        alternative = [
            _parts(value)[-1][1] for value in _extensions(fields) if _parts(value)[0][1] == _SUBJECT_ALT_NAME
        ]
        found = [name for value in alternative for name in _alternative(value)] if alternative else _common(subject)
    except IndexError:
        raise ValueError("no certificate") from None
    return tuple(name for name in found if name.isprintable() and name)


@lru_cache(maxsize=1024)
def expires(pem: bytes) -> float:
    """The last second in which the certificate is valid, since the epoch. Raises ValueError if `pem` is no
    certificate."""
    try:
        validity = [value for tag, value in _fields(pem) if tag == _SEQUENCE][2]
        tag, last = _parts(validity)[1]
        import calendar

        return float(calendar.timegm(time.strptime(last.decode("ascii"), _TIMES[tag])))
    except (IndexError, KeyError):
        raise ValueError("no certificate") from None


def _fields(pem: bytes) -> list[tuple[int, bytes]]:
    """Of what was signed: version, number, algorithm, issuer, validity, subject, key, extensions. Raises IndexError,
    ValueError."""
    lines = pem.split(b"\n")
    der = base64.b64decode(b"".join(line for line in lines if not line.startswith(b"-----")))
    return _parts(_parts(_parts(der)[0][1])[0][1])


def _extensions(fields: list[tuple[int, bytes]]) -> list[bytes]:
    return [value for tag, inner in fields if tag == _EXTENSIONS for _, value in _parts(_parts(inner)[0][1])]


def _alternative(value: bytes) -> list[str]:
    found = []
    for tag, data in _parts(_parts(value)[0][1]):
        if tag in _KINDS:
            must, never = _KINDS[tag]
            text = data.decode("utf-8", "replace")
            if all(char in text for char in must) and not any(char in text for char in never):
                found.append(text)
    return found


def _common(subject: bytes) -> list[str]:
    pairs = [_parts(pair) for _, group in _parts(subject) for _, pair in _parts(group)]
    return [
        text.decode("utf-8", "replace") for (_, kind), (tag, text) in pairs if kind == _COMMON_NAME and tag in _TEXTS
    ]


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Consecutive tags and values. Raises IndexError if the last one is truncated."""
    found, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(data[at : at + more], "big"), at + more
        if at + size > len(data):
            raise IndexError
        found.append((tag, data[at : at + size]))
        at += size
    return found
