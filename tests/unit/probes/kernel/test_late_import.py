"""Imports that wait, or are left out."""

import subprocess
import sys


def ran(code: str) -> str:
    """What a process of its own prints: this one has imported all of it."""
    begin = "import sys; from muster.probes.kernel import late_import\n"
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_what_is_imported_without_openssl_works_and_a_later_import_gives_ssl_itself() -> None:
    code = (
        "with late_import.without_openssl():\n"
        "    import asyncio, uvloop, anyio, hashlib, hmac\n"
        "    from anyio import connect_unix\n"
        "loaded = {'_ssl', '_hashlib', 'ssl'} & set(sys.modules)\n"
        "async def slept(): await anyio.sleep(0); return 'ran'\n"
        "said = anyio.run(slept, backend_options={'use_uvloop': True})\n"
        "digest = hmac.new(b'key', b'text', 'sha256').hexdigest()[:8], hashlib.sha256(b'text').hexdigest()[:8]\n"
        "import ssl\n"
        "print(loaded, said, *digest, ssl.create_default_context().verify_mode.name)"
    )
    assert ran(code) == "set() ran 6afa9046 982d9e3e CERT_REQUIRED"


def test_an_ssl_that_is_there_stays() -> None:
    code = "import ssl\nwith late_import.without_openssl():\n    import ssl as again\nprint(again is ssl)"
    assert ran(code) == "True"
