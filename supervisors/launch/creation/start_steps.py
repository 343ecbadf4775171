"""What a process does between its creation and its command: the steps, their order, and what it says if one fails.

Both ways to create processes carry out these steps, so a process gets the same whichever way it came
(docs/concepts/creation.md).
"""

import enum
import os
import resource
from collections.abc import Iterator
from typing import Any, NamedTuple

from muster.probes.kernel import process
from muster.supervisors.launch import limits
from muster.supervisors.launch.child import Account, Confinement, ProcessSpec
from muster.supervisors.system import descriptors

_OOM_SCORE = "/proc/self/oom_score_adj"


class Op(enum.IntEnum):
    """What a step does. The numbers are those of muster-spawn.c."""

    #: A session of its own; signals are as a new process has them.
    SESSION = 1
    #: Path: /dev/null as stdin, this FIFO as stdout and stderr.
    OUTPUT = 2
    #: Three descriptors as stdin, stdout and stderr.
    STREAMS = 3
    #: The terminal on stdin becomes the controlling one.
    TERMINAL = 4
    #: Path of the cgroup to enter, unless the process was created in it.
    CGROUP = 5
    #: Path and text.
    WRITE = 6
    #: Waits until the supervisor lets all processes of the gang go.
    GATE = 7
    #: Number of a resource limit, soft and hard value.
    LIMIT = 8
    #: Numbers of CPUs to be bound to.
    CPUS = 9
    NICE = 10
    UMASK = 11
    #: uid, gid, supplementary groups.
    USER = 12
    #: Path of a folder, made with those above it.
    FOLDER = 13
    #: Path and text of a file, made with the folders above it.
    FILE = 14
    CHDIR = 15
    #: Paths to try one by one, arguments, environment: the last step.
    EXEC = 16
    #: Mounts of its own.
    OWN_MOUNTS = 17
    #: What is mounted, and where.
    BIND = 18
    #: Path of a mount, its options (MS_*), whether it is within another one that becomes read-only.
    READ_ONLY = 19
    #: Numbers of the capabilities that are taken away.
    BOUNDING_SET = 20
    NO_NEW_PRIVS = 21
    #: Classic BPF.
    SECCOMP = 22


class StartStep(NamedTuple):
    """If it fails, the process says "cannot" and `cannot`, and exits; where `cannot` is empty, it goes on. `values`: as
    the `Op` says."""

    op: Op
    cannot: str
    values: tuple[Any, ...] = ()


class StartSteps:
    """The steps of the processes of one gang. What is the same for all of them is found out once."""

    def __init__(self) -> None:
        self._protected = _read(_OOM_SCORE).strip() != b"0"
        self._urgent = os.getpriority(os.PRIO_PROCESS, 0) < 0
        self._ids = os.geteuid(), os.getegid()
        self._of_user: dict[Account, StartStep] = {}
        #: By command and PATH.
        self._files: dict[tuple[str, str | None], tuple[str, ...]] = {}

    def of(self, spec: ProcessSpec) -> list[StartStep]:
        """In the order in which they are carried out. What needs the rights of muster's user comes before that is given
        up; limits come late, since they would bind the steps before. The filter of system calls is the last: only
        `execve` must pass it."""
        confined = spec.confinement
        return [
            StartStep(Op.SESSION, "begin a session"),
            *self._streams(spec),
            # Best effort, both: without a cgroup there are process groups, and the score may not be ours to lower.
            *([StartStep(Op.CGROUP, "", (spec.cgroup,))] if spec.cgroup else ()),
            *(StartStep(Op.WRITE, f"enter {at}", (f"{at}/cgroup.procs", "0")) for at in spec.v1_cgroups),
            *([StartStep(Op.WRITE, "", (_OOM_SCORE, "0"))] if self._protected else ()),
            StartStep(Op.GATE, "pass the gate"),
            *_limits(spec),
            *([StartStep(Op.CPUS, "be bound to its CPUs", tuple(sorted(spec.cpus)))] if spec.cpus else ()),
            *self._nice(spec.nice),
            StartStep(Op.UMASK, "set its umask", (spec.umask,)),
            *_mounts(confined),
            *_capabilities(confined),
            *self._user(spec.account),
            *([StartStep(Op.NO_NEW_PRIVS, "give up new privileges")] if confined.no_new_privs else ()),
            *(StartStep(Op.FOLDER, f"make its folders and files ({path})", (path,)) for path in spec.folders),
            *(StartStep(Op.FILE, f"make its folders and files ({path})", (path, text)) for path, text in spec.files),
            StartStep(Op.CHDIR, f"enter the working folder {spec.workdir}", (spec.workdir,)),
            *([StartStep(Op.SECCOMP, "filter its system calls", (confined.filter,))] if confined.filter else ()),
            StartStep(Op.EXEC, f"execute {spec.argv[0]}", (self._candidates(spec), spec.argv, spec.env)),
        ]

    def _streams(self, spec: ProcessSpec) -> Iterator[StartStep]:
        if spec.stdio is None:
            yield StartStep(Op.OUTPUT, f"open its output {spec.fifo}", (str(spec.fifo),))
        else:
            yield StartStep(Op.STREAMS, "take its streams", spec.stdio)
        if spec.tty:
            yield StartStep(Op.TERMINAL, "take its terminal")

    def _nice(self, nice: int) -> Iterator[StartStep]:
        """What lets muster answer on a busy node is not for the ranks."""
        if nice or self._urgent:
            yield StartStep(Op.NICE, f"take the priority {nice}", (nice,))

    def _user(self, account: Account) -> list[StartStep]:
        """Groups are looked up here: a static program cannot ask the node's name services."""
        if (account.uid, account.gid) == self._ids:
            return []
        if account not in self._of_user:
            groups = os.getgrouplist(account.name, account.gid)
            values = (account.uid, account.gid, *groups)
            self._of_user[account] = StartStep(Op.USER, f"become user {account.name}", values)
        return [self._of_user[account]]

    def _candidates(self, spec: ProcessSpec) -> tuple[str, ...]:
        command, path = spec.argv[0], spec.env.get("PATH")
        if os.path.dirname(command):
            return (command,)
        if (command, path) not in self._files:
            folders = (os.defpath if path is None else path).split(os.pathsep)
            found = tuple(os.path.join(folder, command) for folder in folders)
            self._files[command, path] = found
        return self._files[command, path]


def _mounts(confined: Confinement) -> Iterator[StartStep]:
    if confined.binds or confined.read_only:
        yield StartStep(Op.OWN_MOUNTS, "have mounts of its own")
    for source, target in confined.binds:
        text = f"mount {source} at {target}" if source != target else f"make {target} a mount"
        yield StartStep(Op.BIND, text, (source, target))
    for path, options, within in confined.read_only:
        yield StartStep(Op.READ_ONLY, f"make {path} read-only", (path, options, within))


def _capabilities(confined: Confinement) -> list[StartStep]:
    if not confined.dropped:
        return []
    return [StartStep(Op.BOUNDING_SET, "limit its capabilities", confined.dropped)]


def _limits(spec: ProcessSpec) -> Iterator[StartStep]:
    given = descriptors.limit_for_ranks()
    if given is not None:
        yield StartStep(Op.LIMIT, "set its limit of open files", (resource.RLIMIT_NOFILE, *given))
    for name, value in spec.limits:
        number, wanted, allowed = limits.of(name, value)
        text = f"set its limits: {name} {value} (the daemon's own hard limit is {allowed})"
        yield StartStep(Op.LIMIT, text, (number, wanted, wanted))


def _read(path: str) -> bytes:
    """As bytes: a text would have each supervisor load the codec."""
    try:
        return process.read_file(path)
    except OSError:
        return b""
