"""Values of types, read by many threads at once."""

import subprocess
import sys
import textwrap

import msgspec
import pytest

from muster.probes import typed

#: Each class is new, and four threads use it at once for the first time; they change places all the time.
FIRST_USES = """
    import sys, threading
    from typing import Annotated, Literal
    import msgspec
    from muster.probes import typed

    sys.setswitchinterval(1e-6)
    words = [(f"f{n}", Annotated[str, msgspec.Meta(pattern=f"^[a-z]{{1,{n + 1}}}$")]) for n in range(20)]
    plain = {name: "a" for name, _ in words} | {"inner": {name: "a" for name, _ in words}}
    for _ in range(100):
        inner = msgspec.defstruct("Inner", words)
        kind = msgspec.defstruct("Outer", [*words, ("inner", inner)])
        begin = threading.Barrier(4)

        def use(way):
            begin.wait()
            if way:
                found = typed.convert(plain, kind)
            else:
                found = typed.decode(msgspec.json.encode(plain), kind)
            assert found.inner.f19 == "a"

        threads = [threading.Thread(target=use, args=(number % 2,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("held")
"""


class Row(msgspec.Struct):
    count: int


def test_threads_use_a_class_for_the_first_time_at_once():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FIRST_USES)], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_another_type_is_refused():
    assert typed.decode(b'{"count": 3}', Row) == typed.convert({"count": 3}, Row) == Row(3)
    for wrong in ({"count": "3"}, ["3"], "3"):
        with pytest.raises(msgspec.ValidationError):
            typed.convert(wrong, Row)
        with pytest.raises(msgspec.ValidationError):
            typed.decode(msgspec.json.encode(wrong), Row)
    assert typed.convert({"count": "3"}, Row, strict=False) == Row(3)
    with pytest.raises(msgspec.DecodeError):
        typed.decode(b"{", Row)


def test_a_type_has_one_decoder():
    assert typed.decoder(Row) is typed.decoder(Row)
