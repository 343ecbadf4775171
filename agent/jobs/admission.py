"""Requirements on a request that depend on this node, beyond those on the spec alone."""

import contextlib
import errno
import os
import pwd
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import fields, replace

from muster.agent.config.schema import Config, HangTable
from muster.agent.errors import InvalidRequest, NoRoom, PortInUse
from muster.agent.jobs.hardening.decided import CallersView
from muster.probes import hang
from muster.probes.settings import near_names
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS, JobSpec, Violation
from muster.supervisors.supervision_errors import NotStartable

#: Limits of a setting of the hang rule, in characters: a text (the longest default, a list of names, has 500), a
#: number.
_MAX_TEXT, _MAX_NUMBER = 4096, 32
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

#: Device and inode of a folder: the same in every mount namespace of a host, under whatever path.
FolderId = tuple[int, int]
#: What follows from a caller's folder that is another one here.
_ELSEWHERE = "the command and musterd are in different containers: give --workdir, a folder that musterd has"


def new_job_id() -> str:
    """`job-`, the time (so that ids sort by it) and four random characters."""
    number, text = int(time.time() * 1000), ""
    while number:
        number, digit = divmod(number, 36)
        text = _ALPHABET[digit] + text
    return f"job-{text}-" + "".join(secrets.choice(_ALPHABET) for _ in range(4))


def refuse_configured(spec: JobSpec, config: Config) -> None:
    """Raises InvalidRequest with everything in a spec that this node's configuration does not allow."""
    found = _hang(spec.hang, config.hang)
    if spec.local_ranks > config.jobs.max_ranks:
        found.append(Violation("ranks", f"{spec.local_ranks}: this node allows at most {config.jobs.max_ranks}"))
    if found:
        raise InvalidRequest(found)


def refuse_here(spec: JobSpec, workdir_of_caller: FolderId | None, held: dict[int, str], asked_by: str = "") -> None:
    """As `refuse_unfit` and `refuse_port`, in one go. Blocks."""
    refuse_unfit(spec, workdir_of_caller, asked_by)
    refuse_port(spec, held)


def refuse_unfit(spec: JobSpec, workdir_of_caller: FolderId | None = None, asked_by: str = "") -> None:
    """Raises InvalidRequest if this node lacks the spec's folder, files or user. `workdir_of_caller`: the folder is the
    caller's own, and this one there. `asked_by`: a user who learns nothing of files that this user cannot see; empty:
    anything may be named. Blocks."""
    names = ("pre_start", "requirements", "epilog", "staging_credentials")
    files = {name: path for name in names if (path := getattr(spec, name)) and not _is_in_code(path, spec)}
    paths = files | ({"workdir": spec.workdir} if spec.workdir else {})
    if asked_by and (unseen := _unseen(paths, CallersView.of(asked_by))):
        raise InvalidRequest(unseen)
    found = [*_workdir(spec.workdir, workdir_of_caller), *_files(files)]
    found += _user(spec.user)
    if spec.code or spec.inputs or spec.outputs:
        from muster.agent.jobs import staging_needs  # most daemons have no such job

        found += staging_needs.lacking(spec)
    if found:
        raise InvalidRequest(found)


def refuse_port(spec: JobSpec, held: dict[int, str]) -> None:
    """Raises PortInUse if rank 0 of this job could not listen on its master_port: another job has it (`held`: job ids
    by port), or a process listens there. Ignores a port on another node. Blocks."""
    if not spec.master_port or spec.node_rank:
        return
    remedy = "use another master_port, on every node of the job"
    if job_id := held.get(spec.master_port):
        raise PortInUse(f"master_port {spec.master_port}: job {job_id} uses it: {remedy}")
    try:
        found = socket.getaddrinfo(spec.master_addr or "127.0.0.1", spec.master_port, type=socket.SOCK_STREAM)
    except OSError:
        return  # the pre-check reports whether the name resolves
    for family, kind, number, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, number) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    what = f"master_port {spec.master_port}: a process already listens on {address[0]!s}"
                    raise PortInUse(f"{what}: {remedy}") from None


def resolved(spec: JobSpec, config: Config) -> JobSpec:
    """The effective spec: with this node's default grace, if it differs from muster's."""
    if spec.grace_steps or config.jobs.grace_steps == DEFAULT_GRACE_STEPS:
        return spec
    return replace(spec, grace_steps=config.jobs.grace_steps)


def as_asked(spec: JobSpec, digest: str) -> JobSpec:
    """The request behind an effective spec: the inverse of `resolved`, whatever this node's default was then. `digest`:
    of the request."""
    spec = replace(spec, card_count=0) if spec.all_cards else spec
    asked = replace(spec, grace_steps=())
    return asked if asked.has_digest(digest) else spec


def free_port(taken: set[int]) -> int:
    """A TCP port on which no process listens and that is not in `taken`. Raises NoRoom if there is none."""
    for _ in range(64):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
                sock.bind(("", 0))
                port = int(sock.getsockname()[1])
        except OSError as error:
            raise NoRoom(f"no free TCP port for master_port: {error.strerror}; name one in the request") from error
        if port not in taken:
            return port
    raise NoRoom("found no free TCP port for master_port in 64 tries: name one in the request")


def _workdir(path: str, of_caller: FolderId | None) -> list[Violation]:
    if not path:
        return []
    try:
        found = os.stat(path)
        if of_caller is not None and (found.st_dev, found.st_ino) != of_caller:
            return [Violation("workdir", f"{path!r}: is another folder than the command's there: {_ELSEWHERE}")]
        if stat.S_ISDIR(found.st_mode):
            return []
        why = "is not a folder"
    except OSError as error:
        why = str(error.strerror).lower()
        if of_caller is not None and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return [Violation("workdir", f"{path!r}: {why} where musterd runs: {_ELSEWHERE}")]
    return [Violation("workdir", f"{path!r}: {why}: give a folder that exists on this node")]


def _is_in_code(path: str, spec: JobSpec) -> bool:
    """Whether a file may come with the job's code, which is copied once the job has begun."""
    above = modelarts.above_code(spec)
    folder = os.path.join(above, staging_urls.name(spec.code), "")
    return bool(spec.code and above) and os.path.normpath(path).startswith(folder)


def _unseen(paths: Mapping[str, str], caller: CallersView) -> list[Violation]:
    return [Violation(field, f"{path!r}: {caller.unseen}") for field, path in paths.items() if not caller.reaches(path)]


def _files(paths: Mapping[str, str]) -> list[Violation]:
    """By field. A file that the daemon cannot access passes: the job's user may access it, as its use will show."""
    found = []
    for field, path in paths.items():
        why = ""
        try:
            if path and not stat.S_ISREG(os.stat(path).st_mode):
                why = "is not a file"
        except (FileNotFoundError, NotADirectoryError) as error:
            why = str(error.strerror).lower()
        except OSError:
            continue
        if why:
            found.append(Violation(field, f"{path!r}: {why}: give a file that exists on this node"))
    return found


def _hang(values: Mapping[str, str], node: HangTable) -> list[Violation]:
    """What is wrong with a job's own settings of the hang rule, which override those of the node."""
    if not values:
        return []
    rule = hang.HangSettings(**{field.name: getattr(node, field.name) for field in fields(hang.HangSettings)})
    names = [field.name for field in fields(rule)]
    found, left = [], dict(values)
    for name, value in values.items():
        most = _MAX_TEXT if isinstance(getattr(rule, name, None), str) else _MAX_NUMBER
        if name in names and len(value) <= most:
            continue
        del left[name]
        if name in names:
            text = f"has {len(value)} characters: at most {most} are allowed"
        elif name in ("enabled", "action"):
            text = "is a setting of the node only; on_hang sets the action for a job that hangs"
        else:
            near = ", ".join(near_names(name, names, 3))
            text = "is not a setting of the hang rule" + (f" (near it: {near})" if near else "")
            text += "; docs/concepts/hang.md lists them"
        found.append(Violation(f"hang[{name[:40]}]", text))
    while left:
        try:
            rule.with_written(left)
            break
        except ValueError as error:
            name, _, text = str(error).partition(": ")
            if left.pop(name, None) is not None:
                found.append(Violation(f"hang[{name}]", text))
                continue
            if not found:  # otherwise the error may come from a setting that is left out here
                own = next((own for own in left if own in text), next(iter(left)))
                found.append(Violation(f"hang[{own}]", f"conflicts with the node's setting: {error}; give both"))
            break
    return found


def _user(user: str) -> list[Violation]:
    if not user:
        return []
    try:
        uid = Account.of(user).uid
    except NotStartable as error:
        return [Violation("user", str(error))]
    if os.geteuid() not in (0, uid):
        ours = _name(os.geteuid())
        return [
            Violation("user", f"{user!r}: the daemon runs as {ours}, not as root, so it can run jobs as {ours} only")
        ]
    return []


def _name(uid: int) -> str:
    """A user's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
