"""Messages to systemd (sd_notify(3)): ready, reloading, stopping and, if systemd asks for it, that the daemon lives."""

import os
import socket
import time

import structlog

_log = structlog.get_logger(__name__)


def notify(state: str) -> None:
    """Tells systemd, where it asked for that; else nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if state.startswith("RELOADING"):
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(state.encode())
    except OSError as error:
        _log.warning("systemd.unreachable", error=str(error))


def watchdog_s() -> float:
    """The period of systemd's watchdog (WatchdogSec) in seconds; 0 for none; meant for another process counts as none
    (WATCHDOG_PID)."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0
