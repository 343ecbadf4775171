"""What /proc says of a process, made up."""

from muster.probes.kernel.process import TICKS_PER_S, Stat


def stat(
    pid: int,
    comm: str = "x",
    state: str = "S",
    ppid: int = 1,
    session: int | None = None,
    cpu_s: float = 0.0,
    start: int = 1,
    rss: int = 4096,
) -> Stat:
    """A process that leads its own group."""
    ticks = round(cpu_s * TICKS_PER_S)
    return Stat(pid, comm, state, ppid, pid, pid if session is None else session, 0, ticks, 0, 1, start, 0, rss)
