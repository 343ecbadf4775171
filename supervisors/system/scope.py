"""A transient scope of systemd for each job: `muster-<job>.scope` in `muster.slice`.

Nothing that happens to the daemon's unit affects the job's own unit, and systemd delegates the controllers of the
cgroup to it (Delegate). muster requests the scope over D-Bus; it disappears with its last process.
"""

import contextlib
import os
import re
import time
import zlib
from pathlib import Path

from muster.probes.kernel import process
from muster.supervisors.paths import Root

SLICE = "muster.slice"
#: Seconds that D-Bus and systemd have for an answer, and the scope for being there. Nothing else of the job is done
#: meanwhile.
ANSWER_S = 5.0
_LOOK_S = 0.001
_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_PLAIN = re.compile(r"[^A-Za-z0-9:_.\-]")


def is_available() -> bool:
    """Whether systemd runs this machine and takes orders from us (sd_booted(3))."""
    return os.geteuid() == 0 and os.path.isdir("/run/systemd/system")


def unit_of(root: Root, name: str) -> str:
    """The unit's name. Of a root that is not the system's it has a mark, so that two never meet."""
    mark = "" if root == Root.system() else f"{zlib.crc32(os.fsencode(root.state)):08x}-"
    return f"muster-{mark}{_PLAIN.sub('_', name)}.scope"


def of_nursery(root: Root, pid: int) -> str:
    """The unit of a nursery: no job has a colon in its id, and so none has this name."""
    return unit_of(root, f"nursery:{pid}")


def own() -> str:
    """The scope that this process is in, by its cgroup's path; empty for none of muster's."""
    with contextlib.suppress(OSError):
        paths = process.cgroup(), process.cgroup(hierarchy="name=systemd")  # v1 alone: systemd has a hierarchy there
        for part in "/".join(paths).split("/"):
            if part.startswith("muster-") and part.endswith(".scope"):
                return part
    return ""


def enter(unit: str, description: str) -> str:
    """Moves this process into the scope `unit`, which systemd creates unless it exists. Returns why it could not be, a
    sentence; empty where it is done."""
    if own() == unit:
        return ""
    try:
        trouble = _start(unit, description)
    except (OSError, TimeoutError, ValueError, EOFError) as error:
        trouble = f"{type(error).__name__}: {error}"
    if trouble.startswith(_UNIT_EXISTS):
        trouble = _join(unit)
    if trouble:
        return f"systemd did not create scope {unit}: {trouble}"
    deadline = time.monotonic() + ANSWER_S
    while own() != unit:  # the answer says that it is to be done, not that it is
        if time.monotonic() >= deadline:
            return f"systemd did not create scope {unit}: it did not exist after {ANSWER_S:g} s"
        time.sleep(_LOOK_S)
    return ""


def _start(unit: str, description: str) -> str:
    # Only where there is a systemd: it is megabytes that a supervisor elsewhere does without.
    from jeepney import DBusAddress, MessageType, new_method_call
    from jeepney.io.blocking import open_dbus_connection

    systemd = DBusAddress(
        "/org/freedesktop/systemd1", bus_name="org.freedesktop.systemd1", interface="org.freedesktop.systemd1.Manager"
    )
    properties = [
        ("Description", ("s", description)),
        ("PIDs", ("au", [os.getpid()])),
        ("Slice", ("s", SLICE)),
        ("Delegate", ("b", True)),
        ("TasksMax", ("t", 2**64 - 1)),
        # A node that is shut down ends the daemon first, which stops the jobs (musterd.service, ExecStop).
        ("Before", ("as", ["musterd.service"])),
        ("CollectMode", ("s", "inactive-or-failed")),
    ]
    call = new_method_call(systemd, "StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "fail", properties, []))
    with open_dbus_connection("SYSTEM", auth_timeout=ANSWER_S) as bus:
        answer = bus.send_and_get_reply(call, timeout=ANSWER_S)
    if answer.header.message_type is MessageType.error:
        name = next((str(value) for field, value in answer.header.fields.items() if field.name == "error_name"), "")
        return f"{name}: {answer.body[0] if answer.body else 'no reason given'}"
    return ""


def _join(unit: str) -> str:
    """Joins an existing scope: a predecessor's, with a living process of the job. Returns why it could not."""
    mounts = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
    for folder in (Path(mount, SLICE, unit) for mount in mounts):
        # Where controllers are handed down, processes live in the leaves only (leaves: cgroups.py).
        for leaf in (folder / "supervisor", folder):
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text("0")
                return ""
    return "it exists, but cannot be entered"
