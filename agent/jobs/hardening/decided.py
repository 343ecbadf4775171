"""What a job may not do: its spec, and where that is silent the settings of this node for jobs of other users."""

import os
import secrets
import stat
import struct
from pathlib import PurePath
from typing import Any

from muster.agent.config.hardening_settings import HardeningTable
from muster.agent.errors import InvalidRequest
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.hardening import private_tmp
from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.rules import capabilities
from muster.supervisors.model.spec import JobSpec, Violation

#: The limits of a node: pids at all, and threads.
_NODE_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")
#: Fields of a spec that name a file which the job's processes open.
_FILES = ("requirements", "pre_start", "epilog", "staging_credentials")
_FILE = "file://"
_NOT_PRIVATE = "or start the job with private_tmp no"
#: Bits of a mode.
_READ, _SEARCH = 4, 1
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK = 2, 4, 8, 16
_NOTHING = HardeningTable(False, (capabilities.ALL,), 0.0, False, (), "")


class BadFile(Exception):
    """Raised for a profile that cannot be used, or that the caller may not name. The text is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The hardening of a job, and the filter of its system calls: classic BPF, or nothing."""

    hardening: Hardening
    filter: bytes = b""


@dataclass(frozen=True, slots=True)
class CallersView:
    """What of this node's files a user may know of, by the modes and access lists of files and folders. The daemon of
    root looks at paths that a user names: what it says of them must not tell more than the user's own look would."""

    name: str
    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, user: str) -> "CallersView":
        """Raises NotStartable for a user that this node does not know."""
        account = Account.of(user)
        return cls(account.name, account.uid, frozenset(os.getgrouplist(account.name, account.gid)))

    @property
    def unseen(self) -> str:
        """The end of a sentence about a path that the user does not reach."""
        return f"user {self.name} cannot see such a file: give a path that this user may read"

    def reaches(self, path: str) -> bool:
        """Whether the user may pass all folders on the way to an absolute path, and on the way that its links lead.
        Blocks."""
        return all(self._passes(way) for way in (path, os.path.realpath(path)))

    def reads(self, path: str, found: os.stat_result) -> bool:
        """Whether the user may read this file."""
        return self._may(path, found, _READ)

    def _passes(self, path: str) -> bool:
        for folder in reversed(PurePath(path).parents):
            try:
                found = os.stat(folder)
            except OSError:
                return True  # the user's own look ends here, too
            if stat.S_ISDIR(found.st_mode) and not self._may(folder, found, _SEARCH):
                return False
        return True

    def _may(self, path: str | PurePath, found: os.stat_result, what: int) -> bool:
        if self.uid == 0:
            return True
        if found.st_uid == self.uid:
            return bool(found.st_mode >> 6 & what)
        entries = _access_list(path)
        if not entries:
            return bool(found.st_mode >> (3 if found.st_gid in self.groups else 0) & what)
        # In the order of acl(5). The mask bounds what users and groups have, the owner and all others not.
        mask = next((may for tag, may, _ in entries if tag == _ACL_MASK), 7)
        users = [may for tag, may, number in entries if tag == _ACL_USER and number == self.uid]
        groups = [may for tag, may, number in entries if tag == _ACL_GROUP and number in self.groups]
        groups += [may for tag, may, _ in entries if tag == _ACL_GROUP_OBJ and found.st_gid in self.groups]
        if users or groups:
            return any(may & mask & what for may in users or groups)
        return bool(found.st_mode & what)


def _access_list(path: str | PurePath) -> list[tuple[int, int, int]]:
    """Tag, permissions and uid or gid of each entry; none where the file has only a mode. The form is the kernel's, of
    include/uapi/linux/posix_acl_xattr.h."""
    try:
        raw = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return []
    return list(struct.iter_unpack("<HHI", raw[4:])) if len(raw) % 8 == 4 else []


def decided(spec: JobSpec, table: HardeningTable, asked_by: str = "") -> Decided:
    """For a spec that has passed admission. `asked_by`: a user who may name only what that user sees; empty: anything
    may be named. Blocks. Raises InvalidRequest for what this daemon may not do, a profile that cannot be used, and
    files that the job would not see."""
    node = table if _is_of_another(spec) else _NOTHING
    caller = CallersView.of(asked_by) if asked_by else None
    kept = capabilities.normal(spec.capabilities or node.capabilities)
    mask = capabilities.effective()
    if kept is not None and not mask >> capabilities.SETPCAP & 1:
        if spec.capabilities:
            raise _refused("capabilities", "CAP_SETPCAP")
        kept = None
    seccomp = spec.seccomp or node.seccomp_profile
    private = _chosen(spec.private_tmp, node.private_tmp)
    hardening = Hardening(
        no_new_privs=_chosen(spec.no_new_privs, node.no_new_privs) or bool(seccomp),
        capabilities=kept,
        pids=int(spec.limits.get("pids", 0)) or _most_pids(node.max_pids_percent),
        private_tmp=secrets.token_hex(8) if private else "",
        read_only=_read_only(spec, node, private, caller),
        seccomp=seccomp,
    )
    if hardening.has_mounts and not mask >> capabilities.SYS_ADMIN & 1:
        raise _refused("private_tmp" if hardening.private_tmp else "read_only", "CAP_SYS_ADMIN")
    if private:
        _refuse_unseen(spec)
    if not seccomp:
        return Decided(hardening)
    try:
        of_node = seccomp == node.seccomp_profile
        return Decided(hardening, _filter(seccomp, kept, None if of_node else caller))
    except BadFile as error:
        whose = "" if spec.seccomp else " (seccomp_profile in [hardening] of this node)"
        raise InvalidRequest([Violation("seccomp", f"{seccomp!r}{whose}: {error}")]) from None


def odd(table: HardeningTable) -> list[str]:
    """What is odd about settings on this node: sentences. Blocks."""
    return [
        f"read_only in [hardening]: {path!r} does not exist on this node: jobs may write there once it does"
        for path in table.read_only
        if not os.path.exists(path)
    ]


def unusable(table: HardeningTable) -> str:
    """What makes settings unusable on this node, as jobs would find it out: a sentence, or nothing. Blocks."""
    try:
        if table.seccomp_profile:
            _filter(table.seccomp_profile, capabilities.normal(table.capabilities), None)
    except BadFile as error:
        return f"seccomp_profile in [hardening]: {table.seccomp_profile!r}: {error}"
    return ""


def weaker(spec: JobSpec, table: HardeningTable) -> str:
    """What of a spec undoes settings of this node, as the beginning of a sentence; empty: nothing does."""
    if spec.no_new_privs == "no" and (table.no_new_privs or table.seccomp_profile):
        return "no_new_privs: 'no'"
    usual = capabilities.normal(table.capabilities)
    if spec.capabilities and usual is not None:
        asked = capabilities.normal(spec.capabilities)
        if asked is None or not set(asked) <= set(usual):
            return f"capabilities: {', '.join(spec.capabilities)}"
    if spec.private_tmp == "no" and table.private_tmp:
        return "private_tmp: 'no'"
    if table.seccomp_profile and spec.seccomp not in ("", table.seccomp_profile):
        return f"seccomp: {spec.seccomp!r}"
    most = _most_pids(table.max_pids_percent)
    if most and spec.limits.get("pids", 0) > most:
        return f"limits.pids: {spec.limits['pids']:.0f} (more than {most})"
    return ""


def _is_of_another(spec: JobSpec) -> bool:
    """Whether a daemon of root starts it as somebody else. A daemon of another user starts its own jobs only."""
    return os.geteuid() == 0 and Account.of(spec.user).uid != 0


def _chosen(said: str, usual: bool) -> bool:
    return said == "yes" if said else usual


def _read_only(spec: JobSpec, node: HardeningTable, private: bool, caller: CallersView | None) -> tuple[str, ...]:
    """Without links: what is mounted below a path is found by its name. What [hardening] names and this node does not
    have cannot be written to either, and neither can what a private /tmp hides."""
    for i, path in enumerate(spec.read_only):
        if why := _not_there(path, caller):
            raise InvalidRequest([Violation(f"read_only[{i}]", f"{path!r}: {why}")])
        if private and private_tmp.is_hidden(os.path.realpath(path), _shown(spec)):
            text = f"{path!r}: is hidden by the job's private /tmp, where it writes: leave it out, {_NOT_PRIVATE}"
            raise InvalidRequest([Violation(f"read_only[{i}]", text)])
    paths = [os.path.realpath(path) for path in (*filter(os.path.exists, node.read_only), *spec.read_only)]
    return tuple(private_tmp.in_view(paths, _shown(spec)) if private else dict.fromkeys(paths))


def _not_there(path: str, caller: CallersView | None) -> str:
    """The end of a sentence; empty: the path exists, and the caller may know."""
    if caller is not None and not caller.reaches(path):
        return caller.unseen
    try:
        os.stat(path)
    except OSError as error:
        return f"{str(error.strerror).lower()}: give a path that exists on this node"
    return ""


def _shown(spec: JobSpec) -> list[str]:
    return private_tmp.shown(spec.workdir)


def _refuse_unseen(spec: JobSpec) -> None:
    """What the job's processes read or write by name must not be behind its private /tmp."""
    urls = {"code": spec.code} | {f"inputs[{path[:40]!r}]": url for path, url in spec.inputs.items()}
    urls |= {f"outputs[{path[:40]!r}]": url for path, url in spec.outputs.items()}
    paths = {field: url[len(_FILE) :] for field, url in urls.items() if url.startswith(f"{_FILE}/")}
    paths |= {name: getattr(spec, name) for name in _FILES if getattr(spec, name)}
    found = [
        Violation(field, f"{path!r}: is hidden by the job's private /tmp: move it elsewhere, {_NOT_PRIVATE}")
        for field, path in paths.items()
        if private_tmp.is_hidden(os.path.realpath(path), _shown(spec))
    ]
    if found:
        raise InvalidRequest(found)


def _refused(field: str, needed: str) -> InvalidRequest:
    text = f"this musterd cannot do that: it lacks {needed}, which root has outside of containers"
    return InvalidRequest([Violation(field, text)])


def _most_pids(percent: float) -> int:
    if not percent:
        return 0
    found = []
    for path in _NODE_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return max(1, int(min(found) * percent / 100)) if found else 0


def _filter(path: str, kept: tuple[str, ...] | None, caller: CallersView | None) -> bytes:
    """Raises BadFile."""
    # Only here: most jobs have none.
    from muster.agent.jobs.hardening import seccomp_filter, seccomp_profile, syscalls

    try:
        if (architecture := syscalls.here()) is None:
            raise seccomp_profile.BadProfile(f"muster has no table of system calls for {os.uname().machine}")
        profile = seccomp_profile.parse(_loaded(path, caller), architecture, kept)
        return seccomp_filter.compiled(profile, architecture)
    except seccomp_profile.BadProfile as error:
        raise BadFile(str(error)) from None
    except OSError as error:
        raise BadFile(f"{str(error.strerror).lower()}: give a profile on this node") from None


def _loaded(path: str, caller: CallersView | None) -> dict[str, Any]:
    """Raises BadFile, BadProfile, OSError. What is looked at is what is read: the path may lead elsewhere by then."""
    from muster.agent.jobs.hardening import seccomp_profile

    if caller is not None and not caller.reaches(path):
        raise BadFile(caller.unseen)
    with seccomp_profile.found(path) as file:
        if caller is not None and not (caller.reaches(file.path) and caller.reads(file.path, file.status)):
            raise BadFile(caller.unseen)
        return seccomp_profile.load(file)
