"""The newest result of each check."""

from muster.agent.node.check_results import CheckResults
from muster.probes.checks.result import CheckResult, Code, Status


def result(item: str, device: str = "", status: Status = Status.OK, card: int | None = None) -> CheckResult:
    return CheckResult(item, status, Code.DISK_OK, "", device=device, card=card)


def shown(results: CheckResults) -> list[tuple[str, str, Status]]:
    return [(r.item, r.device, r.status) for r in results.all]


def test_the_newest_look_counts():
    results = CheckResults()
    results.take([result("mounts", "/a"), result("mounts", "/b", Status.WARN), result("zombies")], None)
    results.take([result("mounts", "/b")], None)  # /a is not mounted any more
    assert shown(results) == [("mounts", "/b", Status.OK), ("zombies", "", Status.OK)]


def test_a_look_at_some_cards_says_nothing_of_the_others():
    results = CheckResults()
    results.take([result("ecc", f"card {i}", card=i) for i in range(3)] + [result("driver")], None)
    results.take([result("ecc", "card 1", Status.CRITICAL, 1), result("driver", status=Status.WARN)], (1,))
    assert shown(results) == [
        ("ecc", "card 0", Status.OK),
        ("ecc", "card 2", Status.OK),
        ("ecc", "card 1", Status.CRITICAL),
        ("driver", "", Status.WARN),
    ]


def test_all_that_a_look_says_of_a_device_is_kept():
    results = CheckResults()
    results.take([result("ib", "mlx5_0/1", Status.WARN), result("ib", "mlx5_0/1", Status.UNKNOWN)], None)
    assert len(results.all) == 2


def test_what_is_switched_off_is_forgotten():
    results = CheckResults()
    results.take([result("ecc"), result("ib")], None)
    results.keep_only(["ib"])
    assert shown(results) == [("ib", "", Status.OK)]
    results.keep_only([])
    assert results.all == []
