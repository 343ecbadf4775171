"""Why a process may not be read: the rules of ptrace(2), one at a time."""

import os
from dataclasses import replace

import pytest

from muster.probes.stacks import permission
from muster.probes.stacks.permission import Rights
from muster.probes.stacks.taking import PROC

PTRACE = 1 << 19
USER = Rights(uid=1000, permitted=0, passed_on=0, filtered=False, namespace="user:[1]", dumpable=True)
ROOT = replace(USER, uid=0, permitted=PTRACE, passed_on=PTRACE)


@pytest.mark.parametrize(
    ("own", "target", "scope", "why", "remedy"),
    [
        (USER, USER, 1, "kernel.yama.ptrace_scope is 1", "set kernel.yama.ptrace_scope=0"),
        (USER, USER, 2, "a reader needs CAP_SYS_PTRACE", "CAP_SYS_PTRACE"),
        (ROOT, USER, 3, "which forbids it until the next boot", "/etc/sysctl.d"),
        (USER, replace(USER, uid=1001), 0, "uid 1001 and musterd as uid 1000", "AmbientCapabilities=CAP_SYS_PTRACE"),
        (USER, replace(USER, dumpable=False), 0, "not dumpable", "--cap-add SYS_PTRACE"),
        (USER, replace(USER, permitted=1 << 12), 0, "capabilities that musterd lacks", "securityContext"),
        (replace(USER, filtered=True), USER, 0, "a seccomp filter", "CAP_SYS_PTRACE"),
        (replace(ROOT, filtered=True), USER, 0, "has CAP_SYS_PTRACE", "--security-opt seccomp=FILE"),
        (ROOT, replace(USER, namespace="user:[2]"), 0, "another user namespace", "user namespace of the host"),
        (ROOT, USER, 1, "a security module must be refusing", "AppArmor"),
        (USER, USER, 0, "a security module", "CAP_SYS_PTRACE"),
    ],
)
def test_each_rule_is_reported_with_what_to_allow(own: Rights, target: Rights, scope: int, why: str, remedy: str):
    said = permission.explain(own, target, scope)
    assert why in said
    assert remedy in said


def test_a_scope_is_not_to_be_changed_where_that_would_not_help():
    said = permission.explain(USER, replace(USER, uid=1001), 1)
    assert "uid 1001" in said and "ptrace_scope is 1" in said
    assert "sysctl" not in said


def test_the_rights_of_this_process_are_read():
    own = permission.read(PROC, "self")
    assert own is not None
    assert own.uid == os.geteuid()
    assert own.namespace == os.readlink("/proc/self/ns/user")
    assert permission.read(PROC, 0) is None
    assert permission.yama(PROC) in (0, 1, 2, 3)
