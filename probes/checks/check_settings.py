"""The settings of the checks before a start. The defaults are those of ModelArts (its training guide)."""

from muster.probes.checks.ulimits import When
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, optional_path, setting


@dataclass(frozen=True, slots=True)
class CheckSettings(Settings):
    """The checks that run before a job starts. docs/concepts/check-measurements.md describes each."""

    deadline_s: float = setting(
        10.0, "A check that gives no answer within this time is UNKNOWN, which never refuses a job.", above=0, most=3600
    )
    root_path: str = optional_path("/", "The root file system. Empty: not checked.")
    root_min_gb: float = setting(32.0, "The file system of `root_path` must be larger than this.")
    root_required: bool = setting(False, "Whether a missing `root_path` is CRITICAL.")
    shm_path: str = optional_path("/dev/shm", "The shared memory. Empty: not checked.")
    shm_min_gb: float = setting(1.0, "The file system of `shm_path` must be larger than this.")
    shm_required: bool = setting(False, "Whether a missing `shm_path` is CRITICAL.")
    cache_path: str = optional_path("/cache", "The cache volume. Empty: not checked.")
    cache_min_gb: float = setting(32.0, "The file system of `cache_path` must be larger than this.")
    cache_required: bool = setting(False, "Whether a missing `cache_path` is CRITICAL.")
    disk_free_percent: float = setting(
        10.0, "Less free space or fewer free inodes on any of these file systems is a WARN. 0: not checked.", most=100
    )
    host_files: str = optional_path("/etc/volcano", "Folder with `.host` files, whose names must resolve. Empty: none.")
    ulimits: When = setting(
        "infiniband", "When muster checks the limits below. `infiniband`: if the node has an InfiniBand adapter."
    )
    infiniband_path: str = optional_path("/sys/class/infiniband", "Folder that lists the InfiniBand adapters.")
    memlock_min_kb: int = setting(16_000, "Lowest acceptable limit of locked memory (`ulimit -l`).")
    nofile_min: int = setting(1_000_000, "Lowest acceptable limit of open files (`ulimit -n`).")
    stack_min_kb: int = setting(8_000, "Lowest acceptable limit of the stack (`ulimit -s`).")
    nproc_min: int = setting(1_000_000, "Lowest acceptable limit of processes of the user (`ulimit -u`).")
    custom_dir: str = optional_path("", "Folder with executable checks of your own. Empty: none.")
