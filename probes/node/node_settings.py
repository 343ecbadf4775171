"""The settings of the node checks. Where a default comes from another product, a comment names it;
docs/concepts/check-measurements.md has the reasons."""

import re

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, percent, setting

_LOOKS = 1000
_HEX = re.compile(r"(?:0[xX])?[0-9A-Fa-f]{1,9}")


def words(text: str) -> list[str]:
    """The entries of a list that is written with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _only_numbers(text: str) -> str:
    wrong = next((word for word in words(text) if not (word.isascii() and word.isdigit())), None)
    return "" if wrong is None else f"{wrong!r}: must be numbers with commas, as in 13,43"


def _only_hex_numbers(text: str) -> str:
    wrong = next((word for word in words(text) if not _HEX.fullmatch(word)), None)
    return "" if wrong is None else f"{wrong!r}: must be hexadecimal numbers with commas, as in 80E18402,80E01801"


def _only_paths(text: str) -> str:
    paths = [path.removesuffix(":ro") for path in words(text)]
    wrong = next((path for path in paths if not path.startswith("/")), None)
    return "" if wrong is None else f"{wrong!r}: must be an absolute path"


def _names(default: str, help: str) -> str:
    return setting(default, help, what="names with commas")


def _numbers(help: str) -> str:
    return setting("", help, what="numbers with commas", rule=_only_numbers)


def _hex_numbers(help: str) -> str:
    return setting("", help, what="hexadecimal numbers with commas", rule=_only_hex_numbers)


def _paths(default: str, help: str) -> str:
    return setting(default, help, what="absolute paths with commas", rule=_only_paths)


def _looks(default: int, help: str) -> int:
    return setting(default, help, least=1, most=_LOOKS)


@dataclass(frozen=True, slots=True)
class NodeSettings(Settings):
    """The checks of the node, which run all the time. docs/concepts/check-measurements.md describes each."""

    look_deadline_s: float = setting(
        10.0, "A check that gives no answer within this time is UNKNOWN.", above=0, most=3600
    )
    skip: str = _names("", "Checks that muster does not run.")
    looks_in_a_row: int = _looks(3, "Looks in a row that must agree before a noisy reading counts.")

    expected_cards: int = setting(
        0,
        "Cards that the node must have, with or without a driver. 0: those that it had "
        "([What the checks measure: cards](concepts/check-measurements.md#cards)).",
    )
    # The numbers of Azure's AzNHC.
    ecc_sram_corrected_max: int = setting(
        10_000, "Corrected SRAM errors of a card since its driver was loaded, at most."
    )
    ecc_dram_corrected_max: int = setting(
        20_000_000, "Corrected DRAM errors of a card since its driver was loaded, at most."
    )
    # gpud's, of looks once a minute.
    slowdown_window_s: float = setting(
        600.0, "The window over which slowdowns of a card are counted.", least=60, most=7 * 86_400
    )
    slowdown_per_minute: float = setting(
        0.6, "Share of the looks in the window in which the hardware may slow down a card.", above=0, most=1
    )
    clock_low_ratio: float = setting(
        0.85,
        "Share of its highest clock below which a card that works is slow, if heat or a clock for programs is the cause"
        " (a power limit is none).",
        above=0,
        most=1,
    )
    # NVIDIA: a card is to be replaced from 60 on; 64 is all that it has room for.
    retired_pages_max: int = setting(59, "Pages of a card's memory that may be out of use (cards before Ampere).")
    temperature_margin_c: float = setting(0.0, "A card is too hot this far below the limit of its maker.")
    temperature_max_c: float = setting(0.0, "The limit of a card whose maker gives none. 0: no limit.")
    nvlink_links: int = setting(
        0, "NVLinks that each card must have up. 0: those that were up, and as many as its neighbours have."
    )
    # DCGM's limit is 100 a second.
    nvlink_errors_per_minute: float = setting(
        6000.0, "Wrong checksums and repeated packets on a card's NVLinks per minute, at most. 0: any number."
    )
    pcie_replays_per_minute: float = setting(8.0, "Replays on the PCI bus per minute, at most.")
    leftover_min_mb: float = setting(
        15.0, "A process with more memory than this on a card without a job is a left-over process."
    )
    leftover_ignore: str = _names(
        "nv-hostengine,nvidia-persistenced,nvidia-cuda-mps-server,nvidia-cuda-mps-control,Xorg",
        "Processes that may use a card without a job.",
    )
    xid_ignore: str = _numbers("Xids that are only recorded.")
    xid_fatal: str = _numbers("Xids after which the node must reboot, beside those that muster knows.")
    xid_reset: str = _numbers("Xids after which the card must be reset, beside those that muster knows.")
    xid_inspect: str = _numbers("Xids after which the card must be inspected, beside those that muster knows.")
    xid_application: str = _numbers("Xids that programs cause, beside those that muster knows.")
    # gpud's.
    xid_reboots: int = setting(
        2,
        "After this many earlier boots with the same fatal Xid on a card, muster recommends an inspection, not another "
        "reboot.",
    )

    npu_ignore: str = _hex_numbers("Error codes of Ascend cards that are only recorded.")
    npu_reset: str = _hex_numbers("Error codes of Ascend cards after which the card must be reset.")
    npu_isolate: str = _hex_numbers("Error codes of Ascend cards with which a card gets no job.")

    # gpud's.
    ib_down_s: float = setting(240.0, "An InfiniBand port that was down for this long counts as down.")
    ib_flap_s: float = setting(25.0, "How long a port is down, at least, to count as one flap.")
    ib_flaps: int = _looks(3, "Flaps within the window after which a port counts as flapping.")
    ib_flap_window_s: float = setting(43_200.0, "The window over which flaps are counted.", least=60, most=7 * 86_400)
    ib_ports: int = setting(0, "InfiniBand ports that must be up. 0: those that were up.")
    ib_rate_gbps: float = setting(0.0, "Least rate of an InfiniBand port. 0: any.")
    ib_symbol_errors: int = setting(
        0,
        "Symbol errors of an InfiniBand port within an hour, at most; a good link has fewer than 120. 0: the counter "
        "is not read, since on some adapters each reading writes an error to the kernel's log.",
    )
    ib_ignore: str = _names("", "InfiniBand adapters that are not checked.")

    nic_flaps: int = setting(
        3, "How often the link of a network adapter may go down within `ib_flap_window_s`. 0: any number of times."
    )
    nic_errors_per_minute: float = setting(60.0, "Link errors of a network adapter per minute, at most. 0: any number.")
    nic_ignore: str = _names("", "Network interfaces that are not checked.")

    disk_paths: str = _paths(
        "/", "File systems that are watched. Those of the state, log and run folders are always watched."
    )
    disk_free_percent: float = percent(10.0, "Space and inodes that must be free on a watched file system.")
    mounts: str = _paths("", "Mount points that must exist, read-write unless written as `/path:ro`.")
    nfs_timeout_s: float = setting(5.0, "A network file system must answer within this time.", above=0, most=3600)
    nfs_looks: int = _looks(5, "Looks in a row without an answer after which a network file system hangs.")

    d_state_looks: int = _looks(5, "A process in state D in this many looks in a row is stuck.")
    zombies_max: int = setting(1000, "Zombies, at most.")
    pids_warn_percent: float = percent(80.0, "Process numbers in use from which on the node is WARN.")
    pids_critical_percent: float = percent(95.0, "Process numbers in use from which on the node is CRITICAL.")
    fd_warn_percent: float = percent(80.0, "Open files in use from which on the node is WARN.")
    fd_critical_percent: float = percent(95.0, "Open files in use from which on the node is CRITICAL.")

    def numbers(self, name: str) -> frozenset[int]:
        """The numbers of a list."""
        return frozenset(int(word) for word in words(getattr(self, name)))

    def hex_numbers(self, name: str) -> frozenset[int]:
        """The numbers of a list in hexadecimal."""
        return frozenset(int(word, 16) for word in words(getattr(self, name)))
