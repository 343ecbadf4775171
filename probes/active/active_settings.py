"""The active checks by name, and their settings: what the daemon knows of them without importing them."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, optional_path, setting

#: First word of the items; the tests of a card, and what each looks at.
ITEM = "active"
COMPUTE, MEMORY, TRANSFER, PEERS, ALLREDUCE = "compute", "memory", "transfer", "peers", "allreduce"
TESTS = {
    COMPUTE: "results and speed of matrix products",
    MEMORY: "content and speed of the card's memory",
    TRANSFER: "content and speed of copies between host and card",
    PEERS: "content and speed of copies to the other cards (NVLink)",
    ALLREDUCE: "result and speed of a sum over the node's cards (NCCL, HCCL)",
}
ITEMS = tuple(f"{ITEM} {test}" for test in TESTS)


def _tests(written: str) -> str:
    """Why this is no list of tests; empty where it is one."""
    unknown = [name for name in written.replace(",", " ").split() if name not in TESTS]
    return f"no test is called {unknown[0]!r}" if unknown else ""


@dataclass(frozen=True, slots=True)
class ActiveSettings(Settings):
    """The tests of `muster check --active`. [Active checks](guides/active-checks.md) describes them."""

    seconds: float = setting(2.0, "How long a test measures.", above=0, most=3600)
    deadline_s: float = setting(
        60.0, "A test that has not ended after this time is killed; twice in a row, the card is at fault.", above=1
    )
    slow_ratio: float = setting(
        0.9, "A card is slow below this share of its own median, or of the node's cards of its model.", above=0, most=1
    )
    limits_file: str = optional_path(
        "",
        "Limits of your own by model, in the form of muster's card_limits.toml. Empty: none.",
    )
    python: str = optional_path(
        "",
        "An interpreter with PyTorch, for the all-reduce; with torch_npu, for all tests of Ascend cards. Empty: these"
        " are not run.",
    )
    before_job: str = setting(
        "",
        'Tests of a job\'s cards before its first attempt, as in "compute,memory"; a CRITICAL result refuses the job.'
        " Empty: none.",
        what="names of tests with commas",
        rule=_tests,
    )
    in_drain: bool = setting(False, "Test each free card once while the node is drained.")

    def tests_before_job(self) -> tuple[str, ...]:
        """Those of `before_job`, in their order."""
        wanted = self.before_job.replace(",", " ").split()
        return tuple(test for test in TESTS if test in wanted)
