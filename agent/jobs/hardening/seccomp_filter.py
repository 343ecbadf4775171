"""The filter program of a seccomp profile: classic BPF (linux/filter.h), as the kernel takes it.

The program looks for the call's number in a binary tree over ranges with the same action, so that a call passes some
ten instructions whatever the length of the profile; Linux 5.11 and later does not even run it for a call that always
passes.
"""

import errno
import struct
from collections.abc import Iterable

from muster.agent.jobs.hardening import syscalls
from muster.agent.jobs.hardening.seccomp_profile import ERRNO, PASSING, ArgumentTest, BadProfile, Profile, Rule
from muster.agent.jobs.hardening.syscalls import Architecture

#: Most instructions of a program (BPF_MAXINSNS).
MAX_INSTRUCTIONS = 4096
_LOAD, _AND, _JUMP, _EQUAL, _GREATER, _AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x25, 0x35, 0x06
#: Where struct seccomp_data has the number of the call, the architecture, and the first argument.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_KILL_PROCESS = 0x80000000

#: Code, jump if true, jump if not, value.
_Instruction = tuple[int, int, int, int]
_Code = list[_Instruction]


def compiled(profile: Profile, architecture: Architecture) -> bytes:
    """The program: an array of struct sock_filter. A program of another architecture (32 bits, x32) is killed at its
    first call. Raises BadProfile where no command could be executed, or the program would be too long."""
    actions = _by_number(profile, architecture)
    execve = actions.get(syscalls.numbers(architecture)["execve"], [(profile.usual, ())])
    if not any(action in PASSING for action, _ in execve):
        raise BadProfile("does not allow execve: no command could be started with it")
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture.audit), (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    code += _tree(list(_ranges(profile, actions, architecture)))
    if len(code) > MAX_INSTRUCTIONS:
        raise BadProfile(f"needs {len(code)} instructions: the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("=HBBI", *one) for one in code)


#: What happens to a call: actions with their conditions, the first that holds counts; the last one has none.
_Cases = list[tuple[int, tuple[ArgumentTest, ...]]]


def _by_number(profile: Profile, architecture: Architecture) -> dict[int, _Cases]:
    """Names that this architecture does not have are left out, as profiles are written for several. The first rule of
    a call without conditions counts, and those with conditions do not, as in libseccomp."""
    numbers = syscalls.numbers(architecture)
    found: dict[int, list[Rule]] = {}
    for rule in profile.rules:
        for name in rule.names:
            if name in numbers:
                found.setdefault(numbers[name], []).append(rule)
    return {number: _cases(rules, profile.usual) for number, rules in found.items()}


def _cases(rules: list[Rule], usual: int) -> _Cases:
    always = next((rule for rule in rules if not rule.conditions), None)
    if always is not None:
        return [(always.action, ())]
    return [*((rule.action, rule.conditions) for rule in rules), (usual, ())]


def _ranges(profile: Profile, actions: dict[int, _Cases], architecture: Architecture) -> Iterable[tuple[int, _Code]]:
    """First number of each range, and what is done there. Calls that are newer than all that the profile names do not
    exist for the job (ENOSYS), as under runc: a C library then uses the older ones, which it would not after EPERM."""
    usual: _Code = [(_RETURN, 0, 0, profile.usual)]
    last = max(actions, default=0)
    unknown = usual if profile.usual in PASSING else [(_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    points = {0: usual, last + 1: unknown}
    if architecture.foreign < 1 << 32:
        points[architecture.foreign] = [(_RETURN, 0, 0, _KILL_PROCESS)]
    for number in sorted(actions):
        points[number] = _decided(actions[number])
        if number + 1 not in actions and number != last:
            points[number + 1] = usual
    before: _Code = []
    for number in sorted(points):
        if points[number] != before:
            yield number, points[number]
        before = points[number]


def _tree(ranges: list[tuple[int, _Code]]) -> _Code:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    left, right = _tree(ranges[:middle]), _tree(ranges[middle:])
    # A conditional jump reaches 255 instructions, the other one all.
    return [(_AT_LEAST, 0, 1, ranges[middle][0]), (_JUMP, 0, 0, len(left)), *left, *right]


def _decided(cases: _Cases) -> _Code:
    code: _Code = []
    for action, conditions in reversed(cases):
        one: _Code = [(_RETURN, 0, 0, action)]
        for condition in reversed(conditions):
            one = _test(condition, len(one)) + one
        code = one + code
    return code


def _test(condition: ArgumentTest, fail: int) -> _Code:
    """Goes on behind itself where it holds, and otherwise `fail` instructions further. Arguments have 64 bits, and the
    machine 32: both architectures have the lower half first."""
    low_at = _ARGUMENTS + 8 * condition.argument
    high, low = condition.value >> 32, condition.value & 0xFFFFFFFF
    load_high, load_low = (_LOAD, 0, 0, low_at + 4), (_LOAD, 0, 0, low_at)
    match condition.comparison:
        case "EQ":
            return [load_high, (_EQUAL, 0, 2 + fail, high), load_low, (_EQUAL, 0, fail, low)]
        case "NE":
            return [load_high, (_EQUAL, 0, 2, high), load_low, (_EQUAL, fail, 0, low)]
        case "MASKED_EQ":
            masks = (_AND, 0, 0, condition.mask >> 32), (_AND, 0, 0, condition.mask & 0xFFFFFFFF)
            first, second = (_EQUAL, 0, 3 + fail, high), (_EQUAL, 0, fail, low)
            return [load_high, masks[0], first, load_low, masks[1], second]
        case "GT" | "GE":
            last = (_GREATER if condition.comparison == "GT" else _AT_LEAST, 0, fail, low)
            return [load_high, (_GREATER, 3, 0, high), (_EQUAL, 0, 2 + fail, high), load_low, last]
        case _:  # LT, LE
            last = (_AT_LEAST if condition.comparison == "LT" else _GREATER, fail, 0, low)
            return [load_high, (_GREATER, 3 + fail, 0, high), (_EQUAL, 0, 2, high), load_low, last]
