"""Filters of system calls: what a program does with a call is what the profile says."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.jobs.hardening import seccomp_filter, seccomp_profile, syscalls
from muster.agent.jobs.hardening.seccomp_profile import ArgumentTest, BadProfile, Profile, Rule, parse
from muster.agent.jobs.hardening.syscalls import ARCHITECTURES

X86, ARM = ARCHITECTURES["x86_64"], ARCHITECTURES["aarch64"]
ALLOW, KILL, TRAP, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00030000, 0x00050001, 0x00050026
PODMAN = Path("/usr/share/containers/seccomp.json")


def run(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel's machine for classic BPF returns."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        operation, if_true, if_not, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x06:
                return int(value)
            case 0x15 | 0x25 | 0x35:
                holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
                at += if_true if holds[operation] else if_not
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


def holds(condition: ArgumentTest, arguments: list[int]) -> bool:
    value, wanted = arguments[condition.argument], condition.value
    return {
        "EQ": value == wanted, "NE": value != wanted, "LT": value < wanted, "LE": value <= wanted, "GT": value > wanted,
        "GE": value >= wanted, "MASKED_EQ": value & condition.mask == wanted,
    }[condition.comparison]  # fmt: skip


#: Where halves of 64 bits meet.
words = st.one_of(
    st.integers(0, 2**64 - 1), st.sampled_from([x + y for x in (0, 2**32, 2**63) for y in (0, 1, 2**32 - 1)])
)
conditions = st.builds(
    lambda argument, comparison, value, mask: (
        ArgumentTest(argument, comparison, value & mask, mask)
        if comparison == "MASKED_EQ"
        else ArgumentTest(argument, comparison, value)
    ),
    st.integers(0, 5), st.sampled_from(seccomp_profile.COMPARISONS), words, words,
)  # fmt: skip
rules = st.builds(
    Rule,
    st.lists(st.sampled_from(["read", "write", "socket", "clone", "io_setup", "unknown"]), min_size=1).map(tuple),
    st.sampled_from([ALLOW, KILL, TRAP, EPERM]),
    st.lists(conditions, max_size=3).map(tuple),
)


@given(st.lists(rules, max_size=8), st.sampled_from([ALLOW, EPERM, KILL]), st.lists(words, min_size=6, max_size=6))
def test_a_program_does_what_the_profile_says(own, usual, arguments):
    profile = Profile(usual, (*own, Rule(("execve",), ALLOW)))
    for architecture in (X86, ARM):
        program = seccomp_filter.compiled(profile, architecture)
        for name in ("read", "write", "socket", "clone", "close", "execve"):
            of_it = [rule for rule in profile.rules if name in rule.names]
            always = [rule.action for rule in of_it if not rule.conditions]
            first = (rule.action for rule in of_it if all(holds(one, arguments) for one in rule.conditions))
            expected = always[0] if always else next(first, usual)
            number = syscalls.numbers(architecture)[name]
            if not of_it and number > max(
                syscalls.numbers(architecture).get(one, 0) for rule in profile.rules for one in rule.names
            ):
                expected = usual if usual == ALLOW else ENOSYS
            assert run(program, architecture.audit, number, *arguments) == expected, name


def test_calls_of_other_architectures_and_calls_that_are_newer():
    program = seccomp_filter.compiled(Profile(EPERM, (Rule(("execve", "clone3"), ALLOW),)), X86)
    clone3 = syscalls.numbers(X86)["clone3"]
    assert run(program, X86.audit, clone3) == ALLOW
    assert run(program, X86.audit, 0) == run(program, X86.audit, clone3 - 1) == EPERM
    assert run(program, X86.audit, clone3 + 1) == ENOSYS, "a C library then tries an older one"
    assert run(program, X86.audit, 0x40000000) == run(program, 0x40000003, 11) == KILL, "x32, i386"


@pytest.mark.skipif(not PODMAN.exists(), reason="needs podman's profile")
@pytest.mark.parametrize("architecture", [X86, ARM], ids=["x86-64", "aarch64"])
def test_podmans_profile(architecture):
    def result(name: str, *arguments: int, kept: Any = ()) -> int:
        program = seccomp_filter.compiled(parse(raw, architecture, kept), architecture)
        return run(program, architecture.audit, syscalls.numbers(architecture)[name], *arguments)

    raw = json.loads(PODMAN.read_text())
    assert {result(name) for name in ("read", "execve", "clone", "futex", "mbind", "io_setup")} == {ALLOW}
    assert (result("open_by_handle_at"), result("open_by_handle_at", kept=["dac_read_search"])) == (EPERM, ALLOW)
    assert (result("personality"), result("personality", 0x1234)) == (ALLOW, ENOSYS)
    assert result("socket", 16, 3, 9) == 0x00050016, "audit: EINVAL"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"defaultAction": "SCMP_ACT_PERHAPS"}, "is not an action"),
        ({"defaultErrnoRet": 70000, "defaultAction": "SCMP_ACT_ERRNO"}, "errnoRet 70000"),
        ({"syscalls": 7}, "is not a seccomp profile"),
        ({"syscalls": [{"action": "SCMP_ACT_ALLOW"}]}, "syscalls[0]: names no system call"),
        ({"syscalls": [{"names": ["read"]}]}, "is not a seccomp profile: KeyError"),
        ({"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 9, "op": "EQ"}]}]}, "index 9"),
        ({"syscalls": [{"names": ["a"], "action": "SCMP_ACT_LOG", "args": [{"index": 0, "op": "IN"}]}]}, "comparison"),
        ({"syscalls": [{"names": ["a"], "action": "SCMP_ACT_KILL", "includes": {"minKernel": "x"}}]}, "minKernel"),
    ],
)  # fmt: skip
def test_what_is_no_profile(changes, said):
    with pytest.raises(BadProfile, match=said.replace("[", r"\[").replace("]", r"\]")):
        parse({"defaultAction": "SCMP_ACT_ALLOW"} | changes, X86, None)


def test_files_that_are_no_profile(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(bytes(seccomp_profile.MAX_BYTES + 1))
    (tmp_path / "deep").write_text("[" * 100_000)
    for name, said in (
        ("fifo", "is not a file"),
        ("large", "at most"),
        ("deep", "is not JSON"),
        (".", "is not a file"),
    ):
        with pytest.raises(BadProfile, match=said), seccomp_profile.found(str(tmp_path / name)) as file:
            seccomp_profile.load(file)
