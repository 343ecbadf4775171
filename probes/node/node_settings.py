"""Thresholds of the node checks."""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What counts as wrong. Where a default is somebody's, its line says whose; docs/checks.md has the reasons.

    Lists are written with commas; an empty one and a 0 switch their rule off where nothing else is said. Raises
    ValueError for a value that cannot be meant.
    """

    #: Seconds after which a check that has not answered is UNKNOWN.
    look_deadline_s: float = 10.0
    #: Items that are not looked at.
    skip: str = ""
    #: How many looks in a row must agree before a noisy reading counts.
    looks_in_a_row: int = 3

    #: How many cards the node has; 0: as many as it shows.
    expected_cards: int = 0
    #: Of errors that were corrected, since the driver was loaded (the numbers of Azure's AzNHC).
    ecc_sram_corrected_max: int = 10_000
    ecc_dram_corrected_max: int = 20_000_000
    #: Share of a window in which the hardware slows a card down, in looks per minute of one-minute looks (gpud's).
    slowdown_window_s: float = 600.0
    slowdown_per_minute: float = 0.6
    #: Degrees below the maker's own limit at which a card is too hot; a limit of one's own where the maker has none.
    temperature_margin_c: float = 0.0
    temperature_max_c: float = 0.0
    #: NVLinks that each card must have up; 0: those that were up, and as many as its neighbours have.
    nvlink_links: int = 0
    pcie_replays_per_minute: float = 8.0
    #: More memory than this on a card without a job is a left-over process, unless its name is in the list.
    leftover_min_mb: float = 15.0
    leftover_ignore: str = "nv-hostengine,nvidia-persistenced,nvidia-cuda-mps-server,nvidia-cuda-mps-control,Xorg"
    #: Numbers of Xids that are only noted, and others that count as fatal.
    xid_ignore: str = ""
    xid_fatal: str = ""
    #: After so many earlier boots with the same fatal Xid on the same card another reboot is no remedy (gpud's).
    xid_reboots: int = 2

    #: Seconds that a port must be down; how long and how often within which window makes flapping (gpud's).
    ib_down_s: float = 240.0
    ib_flap_s: float = 25.0
    ib_flaps: int = 3
    ib_flap_window_s: float = 43_200.0
    #: Ports that must be up, and their rate at least; 0: those that were up must stay so, at any rate.
    ib_ports: int = 0
    ib_rate_gbps: float = 0.0
    #: Adapters that are not looked at.
    ib_ignore: str = ""

    #: File systems whose free space and inodes are watched, and the percent that must be free.
    disk_paths: str = "/"
    disk_free_percent: float = 10.0
    #: Mount points that must be there, read-write unless written as "/path:ro".
    mounts: str = ""
    #: Network file systems: seconds for an answer, and looks without one.
    nfs_timeout_s: float = 5.0
    nfs_looks: int = 5

    d_state_looks: int = 5
    zombies_max: int = 1000
    pids_warn_percent: float = 80.0
    pids_critical_percent: float = 95.0
    fd_warn_percent: float = 80.0
    fd_critical_percent: float = 95.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, str):
                if "\0" in value:
                    raise ValueError(f"{f.name}: {value!r}: must not contain a NUL character")
            elif not math.isfinite(value) or value < 0:
                raise ValueError(f"{f.name}: {value}: must be a number that is not negative")
            elif f.name.endswith("_percent") and value > 100:
                raise ValueError(f"{f.name}: {value:g}: allowed are 0 to 100")
        for name in ("look_deadline_s", "nfs_timeout_s"):
            if not 0 < getattr(self, name) <= 3600:
                raise ValueError(f"{name}: {getattr(self, name):g}: allowed are more than 0 to 3600 seconds")
        for name in ("looks_in_a_row", "nfs_looks", "d_state_looks", "ib_flaps"):
            if not 1 <= getattr(self, name) <= 1000:
                raise ValueError(f"{name}: {getattr(self, name)}: allowed are 1 to 1000")
        for name in ("slowdown_window_s", "ib_flap_window_s"):
            if not 60 <= getattr(self, name) <= 7 * 86_400:
                raise ValueError(f"{name}: {getattr(self, name):g}: allowed are 60 seconds to 7 days")
        if not 0 < self.slowdown_per_minute <= 1:
            raise ValueError(f"slowdown_per_minute: {self.slowdown_per_minute:g}: allowed are more than 0 to 1")
        for name in ("xid_ignore", "xid_fatal"):
            for word in words(getattr(self, name)):
                if not (word.isascii() and word.isdigit()):
                    raise ValueError(f"{name}: {word!r}: must be numbers with commas, as in 13,43")
        for path in words(self.disk_paths) + [path.removesuffix(":ro") for path in words(self.mounts)]:
            if not path.startswith("/"):
                raise ValueError(f"disk_paths, mounts: {path!r}: must be an absolute path")

    def numbers(self, name: str) -> frozenset[int]:
        """The numbers of a list."""
        return frozenset(int(word) for word in words(getattr(self, name)))


def words(text: str) -> list[str]:
    """The entries of a list that is written with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]
