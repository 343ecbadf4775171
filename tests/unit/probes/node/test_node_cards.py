"""The rules about cards, each on facts of its own."""

from dataclasses import replace

import pytest

from muster.probes.cards.accelerator import Health, Holder, LinkErrors, Remapped, RetiredPages, Trouble
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import Action, Code, Status
from muster.probes.kernel import process
from muster.probes.node.cards import card_health, fabric_service, leftovers, links, npus, presence
from muster.probes.node.cards.leftovers import CardHolder
from muster.probes.node.memory import Memory
from muster.probes.node.node_check import about
from muster.probes.node.results import still
from tests.unit.node_looks import FINE, NPU_FINE, busy, gpu, look, npu, sick, view

MIB = 1 << 20
MODULES = (presence, card_health, links, fabric_service, leftovers, npus)
JUDGES = {rule.check.item: rule.judge for module in MODULES for rule in module.RULES}


async def judged(item, shown, memory=None, now=1000.0, tmp=None, **more):
    return await JUDGES[item](look(shown, memory, now, tmp, **more))


async def of_card(item, index=0, **changes):
    """What an item says of one NVIDIA card whose health differs from a good one in this."""
    results = await judged(item, view([gpu(index)], {index: replace(FINE, **changes)}))
    return [r for r in results if r.card == index]


def codes(results):
    return [r.code for r in results]


HEALTH_ITEMS = [
    *("recovery", "ecc", "row-remap", "retired-pages", "clocks", "temperature", "persistence", "nvlink"),
    *("nvlink-errors", "fabric", "pcie"),
]


@pytest.mark.parametrize("item", HEALTH_ITEMS)
async def test_a_good_card_is_ok(item):
    assert codes(await of_card(item)) in ([Code.NODE_OK], [Code.NODE_OK] * 2)


@pytest.mark.parametrize("item", HEALTH_ITEMS)
async def test_what_a_card_does_not_tell_is_neither_ok_nor_a_fault(item, tmp_path):
    results = await judged(item, view([gpu(0)], {0: Health()}), tmp=tmp_path)
    assert codes(results) == [Code.NODE_NOT_APPLICABLE]
    assert results[0].status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("item", HEALTH_ITEMS)
@pytest.mark.parametrize("trouble", [Trouble.HANG, Trouble.LOST, Trouble.NOT_TOLD])
async def test_a_card_that_does_not_answer_is_not_told_and_hides_no_other(item, trouble):
    results = await judged(item, view([gpu(0), gpu(1)], sick={0: sick(trouble)}))
    assert codes([r for r in results if r.card == 0]) == [Code.NODE_NOT_TOLD]
    assert set(codes([r for r in results if r.card == 1])) == {Code.NODE_OK}


@pytest.mark.parametrize("item", HEALTH_ITEMS)
async def test_only_the_cards_that_are_asked_about(item):
    results = await judged(item, view([gpu(i) for i in range(4)]), only=frozenset({2}))
    assert {r.card for r in results} == {2}


@pytest.mark.parametrize(
    ("changes", "code", "status", "action"),
    [
        (
            {"sram_uncorrected": 1, "ecc_uncorrected": 1},
            Code.GPU_ECC_SRAM_UNCORRECTED,
            Status.CRITICAL,
            Action.RESET_DEVICE,
        ),
        ({"ecc_uncorrected": 2}, Code.GPU_ECC_UNCORRECTED, Status.WARN, Action.RESET_DEVICE),
        ({"sram_corrected": 10_001}, Code.GPU_ECC_SRAM_CORRECTED, Status.WARN, Action.INVESTIGATE),
        ({"dram_corrected": 20_000_001}, Code.GPU_ECC_DRAM_CORRECTED, Status.WARN, Action.INVESTIGATE),
    ],
)
async def test_errors_of_the_memory(changes, code, status, action):
    (found,) = await of_card("ecc", **changes)
    assert (found.code, found.status, found.action, found.device) == (code, status, action, "card 0")


@pytest.mark.parametrize("changes", [{"sram_corrected": 10_000}, {"dram_corrected": 20_000_000}, {"ecc_corrected": 99}])
async def test_errors_that_were_corrected_count_only_when_they_are_many(changes):
    assert codes(await of_card("ecc", **changes)) == [Code.NODE_OK]


async def test_several_findings_of_one_memory():
    found = await of_card("ecc", sram_uncorrected=1, ecc_uncorrected=3, sram_corrected=20_000)
    assert codes(found) == [Code.GPU_ECC_SRAM_UNCORRECTED, Code.GPU_ECC_UNCORRECTED, Code.GPU_ECC_SRAM_CORRECTED]
    assert "2 errors" in found[1].reason


async def test_errors_of_which_the_driver_does_not_tell_where_count_as_the_gravest():
    """As with NVML of cards that do not tell SRAM apart: that is not known, and not 0."""
    (found,) = await of_card("ecc", sram_uncorrected=None, ecc_uncorrected=1)
    assert (found.code, found.status) == (Code.GPU_ECC_UNCORRECTED, Status.CRITICAL)
    assert found.reason == "1 error of its memory could not be corrected; its driver does not report where"
    assert codes(await of_card("ecc", sram_uncorrected=None, ecc_uncorrected=0)) == [Code.NODE_OK]
    assert codes(await of_card("ecc", sram_uncorrected=1, ecc_uncorrected=None)) == [Code.GPU_ECC_SRAM_UNCORRECTED]


@pytest.mark.parametrize("field", ["sram_uncorrected", "ecc_uncorrected"])
async def test_a_counter_that_the_driver_failed_to_tell_is_unknown_beside_the_others(field):
    found = await of_card("ecc", **{"sram_uncorrected": 2, "ecc_uncorrected": 2, field: None}, untold={field: "busy"})
    assert found[-1].code is Code.NODE_NOT_TOLD and found[-1].reason.endswith(": busy")
    rest = [Code.GPU_ECC_SRAM_UNCORRECTED] if field == "ecc_uncorrected" else []
    assert codes(found[:-1]) == rest


@pytest.mark.parametrize(("count", "said"), [(1, "1 error of"), (2, "2 errors of")])
async def test_one_error_and_several(count, said):
    (found,) = await of_card("ecc", sram_uncorrected=count, ecc_uncorrected=count)
    assert found.reason == f"{said} its on-chip memory could not be corrected"
    (found,) = await of_card("ecc", ecc_uncorrected=count)
    assert found.reason == f"{said} its memory could not be corrected"


async def test_a_card_with_ecc_switched_off_says_so():
    (found,) = await judged("ecc", view([gpu(0)], {0: Health(ecc_on=True)}))
    assert found.code is Code.NODE_NOT_TOLD, "a card that has ECC on counts: this one does not tell"
    (found,) = await judged("ecc", view([gpu(0)], {0: Health(ecc_on=False)}))
    assert (found.code, found.reason) == (Code.NODE_NOT_APPLICABLE, "ECC is off")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (Remapped(3, 1, False, False), [Code.NODE_OK]),
        (Remapped(0, 1, True, False), [Code.GPU_ROW_REMAP_PENDING]),
        (Remapped(0, 1, False, True), [Code.GPU_ROW_REMAP_FAILED]),
        (Remapped(0, 1, True, True), [Code.GPU_ROW_REMAP_FAILED, Code.GPU_ROW_REMAP_PENDING]),
    ],
)
async def test_rows_that_wait_or_failed(rows, expected):
    assert codes(await of_card("row-remap", remapped=rows)) == expected


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x4, 0x5, 0x1 | 0x20, 0x100])
async def test_idle_power_cap_and_software_are_no_slowdown_of_the_hardware(reasons):
    memory = Memory()
    for minute in range(20):
        shown = view([gpu(0)], {0: replace(FINE, event_reasons=reasons)})
        (found,) = await judged("clocks", shown, memory, minute * 60.0)
        assert found.code is Code.NODE_OK


@pytest.mark.parametrize("reasons", [0x8, 0x40, 0x80, 0x1 | 0x8, 0x4 | 0x40 | 0x80])
async def test_a_card_that_the_hardware_slows_down_most_of_the_time(reasons):
    memory = Memory()
    seen = []
    for minute in range(10):
        bits = reasons if minute % 5 < 3 else 0x1  # six of ten
        (found,) = await judged("clocks", view([gpu(0)], {0: replace(FINE, event_reasons=bits)}), memory, minute * 60.0)
        seen.append(found.code)
    # The sixth in ten minutes is the one that counts.
    pending, fine = Code.NODE_PENDING, Code.NODE_OK
    assert seen == [pending] * 3 + [fine] * 2 + [pending] * 2 + [Code.GPU_HW_SLOWDOWN] * 3
    (found,) = await judged("clocks", view([gpu(0)], {0: replace(FINE, event_reasons=reasons)}), memory, 600.0)
    assert (found.code, found.status) == (Code.GPU_HW_SLOWDOWN, Status.WARN)
    for minute in range(11, 25):
        (found,) = await judged("clocks", view([gpu(0)]), memory, minute * 60.0)
    assert found.code is Code.NODE_OK


async def test_many_looks_at_one_bad_moment_are_no_slowdown():
    memory = Memory()
    for second in range(25):
        shown = view([gpu(0)], {0: replace(FINE, event_reasons=0x8)})
        (found,) = await judged("clocks", shown, memory, float(second))
    assert found.code is Code.NODE_PENDING


async def test_heat_counts_after_looks_in_a_row_and_by_the_makers_limits():
    memory = Memory()
    hot = view([gpu(0)], {0: replace(FINE, temp_c=88.0, mem_temp_c=96.0)})
    for look_number in range(3):
        found = await judged("temperature", hot, memory, look_number * 30.0)
        assert codes(found)[0] is (Code.GPU_TEMPERATURE if look_number == 2 else Code.NODE_PENDING)
    assert codes(found) == [Code.GPU_TEMPERATURE, Code.GPU_MEMORY_TEMPERATURE]
    assert found[0].observed == "chip 88 C" and found[0].threshold == "below 88 C"
    cool = view([gpu(0)], {0: replace(FINE, temp_c=87.0)})
    assert codes(await judged("temperature", cool, memory, 120.0)) == [Code.NODE_OK] * 2


async def test_a_margin_and_a_limit_of_ones_own():
    memory = Memory()
    for number in range(3):
        found = await judged(
            "temperature",
            view([gpu(0)], {0: replace(FINE, temp_c=79.0)}),
            memory,
            number * 30.0,
            temperature_margin_c=10,
        )
    assert found[0].code is Code.GPU_TEMPERATURE
    for number in range(3):
        found = await judged(
            "temperature", view([npu(0)], {0: Health(temp_c=91.0)}), memory, number * 30.0, temperature_max_c=90
        )
    assert codes(found) == [Code.NPU_TEMPERATURE]
    assert codes(await judged("temperature", view([npu(0)], {0: Health(temp_c=91.0)}))) == [Code.NODE_NOT_APPLICABLE]


async def test_persistence_mode_that_is_off():
    (found,) = await of_card("persistence", persistence=False)
    assert (found.code, found.status) == (Code.GPU_PERSISTENCE_OFF, Status.WARN)


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (1, Code.GPU_RESET_REQUIRED),
        (2, Code.GPU_REBOOT_REQUIRED),
        (3, Code.GPU_DRAIN_REQUIRED),
        (4, Code.GPU_RESET_REQUIRED),
        (5, Code.GPU_IMEX_REQUIRED),
        (6, Code.GPU_RESET_REQUIRED),
        (7, Code.GPU_REBOOT_REQUIRED),
        (9, Code.NODE_NOT_TOLD),
    ],
)
async def test_what_the_driver_asks_for(wish, code):
    (found,) = await of_card("recovery", recovery_action=wish)
    assert found.code is code
    assert (found.status is Status.CRITICAL) == (code is not Code.NODE_NOT_TOLD)


async def test_a_card_that_must_be_reset():
    (found,) = await judged("recovery", view([gpu(0)], sick={0: sick(Trouble.RESET_REQUIRED, "NVML says so (16)")}))
    assert (found.code, found.action) == (Code.GPU_RESET_REQUIRED, Action.RESET_DEVICE)


# --- presence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "code", "status"),
    [
        (Trouble.NO_LIBRARY, Code.DRIVER_LIBRARY_MISSING, Status.CRITICAL),
        (Trouble.NO_DRIVER, Code.DRIVER_NOT_LOADED, Status.CRITICAL),
        (Trouble.MISMATCH, Code.DRIVER_MISMATCH, Status.CRITICAL),
        (Trouble.FAILED, Code.DRIVER_FAILED, Status.CRITICAL),
        (Trouble.HANG, Code.DRIVER_HANG, Status.UNKNOWN),
        (Trouble.NOT_TOLD, Code.NODE_NOT_TOLD, Status.UNKNOWN),
    ],
)
async def test_a_driver_that_is_not_well(trouble, code, status):
    shown = view([gpu(0)], driver=sick(trouble, "the driver says so"))
    (found,) = await judged("driver", shown)
    assert (found.code, found.status, found.device) == (code, status, "")
    # Nothing is said against a card because of it.
    assert codes(await judged("gpu-lost", shown)) == [Code.NODE_NOT_TOLD]


@pytest.mark.parametrize("trouble", [Trouble.NO_DRIVER, Trouble.MISMATCH, Trouble.FAILED])
async def test_a_driver_in_trouble_without_any_card_warns_unless_cards_are_expected(trouble):
    shown = replace(view([gpu(0)], driver=sick(trouble, "not well")), cards={})
    (found,) = await judged("driver", shown)
    assert (found.status, found.reason) == (Status.WARN, "not well; no card was found")
    (found,) = await judged("driver", shown, expected_cards=8)
    assert (found.status, found.reason) == (Status.CRITICAL, "not well")


async def test_a_call_that_hangs_is_a_finding_and_never_critical():
    found = await judged("driver", view([gpu(0), gpu(1)], sick={1: sick(Trouble.HANG, "the call hangs for 12 s")}))
    assert [(r.device, r.code) for r in found] == [
        ("card 1", Code.DRIVER_HANG),
        ("card 0", Code.NODE_OK),
        ("", Code.NODE_OK),
    ]
    assert found[0].status is Status.UNKNOWN and "12 s" in found[0].reason


@pytest.mark.parametrize("trouble", [Trouble.LOST, Trouble.ABSENT])
@pytest.mark.parametrize(("card", "item", "code"), [(gpu, "gpu-lost", Code.GPU_LOST), (npu, "npu-lost", Code.NPU_LOST)])
async def test_a_card_that_is_lost(trouble, card, item, code, tmp_path):
    found = await judged(item, view([card(0), card(1)], sick={1: sick(trouble)}), tmp=tmp_path)
    assert [(r.device, r.code) for r in found] == [("card 0", Code.NODE_OK), ("card 1", code), ("", Code.NODE_OK)]
    assert found[1].status is Status.CRITICAL and "fell off" in found[1].reason


async def test_a_card_that_fails_counts_after_looks_in_a_row(tmp_path):
    memory = Memory()
    shown = view([gpu(0)], sick={0: sick(Trouble.FAILED, "NVML says unknown error (999)")})
    seen = [(await judged("gpu-lost", shown, memory, n * 15.0, tmp_path))[0].code for n in range(3)]
    assert seen == [Code.NODE_PENDING, Code.NODE_PENDING, Code.GPU_NO_ANSWER]


async def test_fewer_cards_than_expected(tmp_path):
    found = await judged("gpu-lost", view([gpu(i) for i in range(7)]), tmp=tmp_path, expected_cards=8)
    assert (found[-1].code, found[-1].status) == (Code.GPU_COUNT, Status.CRITICAL)
    assert found[-1].device == "" and "7 cards, 8 are expected" in found[-1].reason


def on_bus(tmp, bus_id, vendor="0x10de", kind="0x030200", driver=True):
    folder = tmp / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (folder / "driver").mkdir()


async def test_a_container_with_some_of_the_cards_is_fine(tmp_path):
    for index in range(8):
        on_bus(tmp_path, f"0000:0{index}:00.0")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    found = await judged("gpu-lost", view([gpu(0), gpu(1)]), tmp=tmp_path)
    assert set(codes(found)) == {Code.NODE_OK}


async def test_more_device_nodes_than_cards(tmp_path):
    (tmp_path / "dev").mkdir()
    for index in range(3):
        (tmp_path / "dev" / f"davinci{index}").touch()
    found = await judged("npu-lost", view([npu(0), npu(1)]), tmp=tmp_path)
    assert (found[-1].code, found[-1].status) == (Code.NPU_COUNT, Status.WARN)


# --- links ------------------------------------------------------------------------------------------------------------


def linked(up, of=18):
    return replace(FINE, links=(True,) * up + (False,) * (of - up))


async def test_a_link_that_was_up_and_is_down():
    memory = Memory()
    await judged("nvlink", view([gpu(0), gpu(1)]), memory)
    found = await judged("nvlink", view([gpu(0), gpu(1)], {1: linked(17)}), memory)
    assert [(r.code, r.status) for r in found] == [
        (Code.NODE_OK, Status.OK),
        (Code.NVLINK_DOWN, Status.CRITICAL),
    ]
    assert found[1].observed == "17 of 18 links up"
    assert set(codes(await judged("nvlink", view([gpu(0), gpu(1)]), memory))) == {Code.NODE_OK}


async def test_a_card_with_fewer_links_than_its_neighbours_warns():
    found = await judged("nvlink", view([gpu(0), gpu(1)], {1: linked(12)}))
    assert [(r.code, r.status) for r in found] == [(Code.NODE_OK, Status.OK), (Code.NVLINK_DOWN, Status.WARN)]
    other = await judged("nvlink", view([gpu(0), gpu(1, model="L40S")], {1: linked(4)}))
    assert codes(other) == [Code.NODE_OK] * 2


async def test_cards_without_bridges_do_not_use_nvlink():
    found = await judged("nvlink", view([gpu(0), gpu(1)], {0: linked(0), 1: linked(0)}))
    assert codes(found) == [Code.NODE_NOT_APPLICABLE] * 2
    wanted = await judged("nvlink", view([gpu(0)], {0: linked(0)}), nvlink_links=18)
    assert [(r.code, r.status) for r in wanted] == [(Code.NVLINK_DOWN, Status.CRITICAL)]


@pytest.mark.parametrize(
    ("state", "status", "health", "expected"),
    [
        (0, 0, None, (Code.NODE_NOT_APPLICABLE, Status.NOT_APPLICABLE)),
        (3, 0, 1, (Code.NODE_OK, Status.OK)),
        (3, 0, None, (Code.NODE_OK, Status.OK)),
        (3, 15, 1, (Code.FABRIC_UNHEALTHY, Status.CRITICAL)),
        (3, 0, 2, (Code.FABRIC_UNHEALTHY, Status.CRITICAL)),
        (3, 0, 3, (Code.FABRIC_UNHEALTHY, Status.WARN)),
    ],
)
async def test_the_fabric(state, status, health, expected):
    (found,) = await of_card("fabric", fabric_state=state, fabric_status=status, fabric_health=health)
    assert (found.code, found.status) == expected


async def test_a_fabric_that_is_not_ready_for_long():
    memory = Memory()
    shown = view([gpu(0)], {0: replace(FINE, fabric_state=2)})
    seen = [(await judged("fabric", shown, memory, n * 60.0))[0].code for n in range(3)]
    assert seen == [Code.NODE_PENDING, Code.NODE_PENDING, Code.FABRIC_NOT_READY]


async def test_a_link_with_too_few_lanes():
    memory = Memory()
    shown = view([gpu(0)], {0: replace(FINE, pcie_width=8)})
    seen = [(await judged("pcie", shown, memory, n * 60.0))[0].code for n in range(3)]
    assert seen == [Code.NODE_PENDING, Code.NODE_PENDING, Code.PCIE_WIDTH_DEGRADED]


@pytest.mark.parametrize(("util", "code"), [(90.0, Code.PCIE_GEN_DEGRADED), (0.0, Code.NODE_OK), (None, Code.NODE_OK)])
async def test_a_slow_link_counts_while_the_card_works(util, code):
    memory = Memory()
    shown = view([gpu(0)], {0: replace(FINE, pcie_gen=1)}, readings={0: busy(util)})
    for number in range(3):
        (found,) = await judged("pcie", shown, memory, number * 60.0)
    assert found.code is code


async def test_packets_that_are_repeated_often():
    memory = Memory()
    for minute in range(3):
        (found,) = await judged(
            "pcie", view([gpu(0)], {0: replace(FINE, pcie_replay=minute * 9)}), memory, minute * 60.0
        )
    assert found.code is Code.PCIE_REPLAYS
    for minute in range(3, 12):
        (found,) = await judged("pcie", view([gpu(0)], {0: replace(FINE, pcie_replay=18)}), memory, minute * 60.0)
    assert found.code is Code.NODE_OK


@pytest.mark.parametrize(
    ("width", "code"), [("4", Code.PCIE_WIDTH_DEGRADED), ("16", Code.NODE_OK), ("0", Code.NODE_NOT_APPLICABLE)]
)
async def test_a_link_by_the_bus_where_the_driver_does_not_tell(width, code, tmp_path):
    folder = tmp_path / "sys/bus/pci/devices/0000:00:00.0"
    folder.mkdir(parents=True)
    for name, text in (("current_link_width", width), ("max_link_width", "16" if width != "0" else "63")):
        (folder / name).write_text(f"{text}\n")
    memory = Memory()
    for number in range(3):
        (found,) = await judged("pcie", view([npu(0)]), memory, number * 60.0, tmp_path)
    assert found.code is code


# --- left-overs -------------------------------------------------------------------------------------------------------


def left(holders, alive, held=None, memory=None, now=1000.0, **settings):
    shown = view([gpu(0)], holders={0: tuple(holders)})
    at = look(shown, memory, now, held=held, **settings)
    (facts,) = at.cards("nvidia")
    return leftovers.judge(about("leftovers", facts), facts, at, alive)


PYTHON = {7: CardHolder("python", 1000)}


def test_a_process_without_a_job_counts_at_the_second_look():
    memory = Memory()
    first = left([Holder(7, 20 * MIB)], PYTHON, memory=memory)
    second = left([Holder(7, 20 * MIB)], PYTHON, memory=memory, now=1060.0)
    assert (first.code, second.code) == (Code.NODE_PENDING, Code.GPU_LEFTOVER_PROCESS)
    assert second.status is Status.WARN
    assert "pid 7 (python, uid 1000) uses it with 20 MB" in second.reason


@pytest.mark.parametrize(
    ("holders", "alive"),
    [
        ([Holder(7, 15 * MIB)], PYTHON),  # not more than the threshold
        ([Holder(7, 20 * MIB)], {}),  # of another container, or gone
        ([Holder(7, 20 * MIB)], {7: CardHolder("nv-hostengine", 0)}),
        ([Holder(7, 20 * MIB)], {7: CardHolder("nvidia-persistenced"[:15], 0)}),
        ([Holder(7, None, graphics=True)], PYTHON),
        ([], {}),
    ],
)
def test_what_is_no_left_over(holders, alive):
    memory = Memory()
    assert {left(holders, alive, memory=memory, now=n * 60.0).code for n in range(3)} == {Code.NODE_OK}


@pytest.mark.parametrize(("host", "code"), [(True, Code.NODE_OK), (False, Code.NODE_NOT_TOLD)])
async def test_a_process_that_may_be_another_containers(tmp_path, monkeypatch, host, code):
    monkeypatch.setattr(process, "pids_are_the_kernels", lambda: host)
    shown = view([gpu(0)], holders={0: (Holder(4711, 20 * MIB),)})
    (found,) = await judged("leftovers", shown, Memory(), 0.0, tmp_path)
    assert found.code is code and ("pid 4711" in found.reason) != host


async def test_the_cards_of_jobs_and_processes_that_are_alive(tmp_path):
    for pid, state in ((7, "S"), (8, "Z")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "stat").write_text(
            f"{pid} (py) thon) {state} 1 7 7 0 -1 0{' 0' * 10} 1{' 0' * 32}\n"
        )
    holders = {i: (Holder(7 + i, 20 * MIB),) for i in range(3)}
    memory = Memory()
    shown = view([gpu(i) for i in range(3)] + [gpu(3)], holders=holders)
    for now in (0.0, 60.0):
        found = await judged("leftovers", shown, memory, now, tmp_path, held={2: "train"})
    assert codes(found) == [
        Code.GPU_LEFTOVER_PROCESS,
        Code.NODE_OK,  # a zombie
        Code.NODE_NOT_APPLICABLE,
        Code.NODE_NOT_TOLD,
    ]
    assert "(py) thon" in found[0].reason and "train" in found[2].reason


@pytest.mark.parametrize(
    ("mhz", "reasons", "app", "util", "low"),
    [
        (1335.0, 0x4, 1980.0, 100.0, False),  # at its power limit, as an H100 at full load
        (1335.0, 0x24, 1980.0, 100.0, True),  # heat, too
        (1700.0, 0x20, 1980.0, 100.0, False),  # above 0.85 of the highest
        (1335.0, 0x20, 1980.0, 10.0, False),  # it rests
        (1200.0, 0x2, 1200.0, 100.0, True),  # somebody set a clock
        (None, 0x20, None, 100.0, False),
    ],
)
async def test_a_low_clock_counts_with_a_cause_alone(mhz, reasons, app, util, low):
    health = replace(
        FINE,
        sm_clock_mhz=mhz,
        sm_clock_max_mhz=1980.0,
        event_reasons=reasons,
        app_clock_mhz=app,
        app_clock_default_mhz=1980.0,
    )
    memory, shown = Memory(), view([gpu(0)], {0: health}, {0: busy(util)})
    seen = [codes(await judged("clocks", shown, memory, n * 60.0))[0] for n in range(3)]
    assert seen == ([Code.NODE_PENDING] * 2 + [Code.GPU_CLOCKS_LOW] if low else [Code.NODE_OK] * 3)


async def test_errors_of_nvlinks_count_as_they_grow():
    memory = Memory()

    async def at(now, **counts):
        shown = view([gpu(0)], {0: replace(FINE, link_errors=LinkErrors(**counts))})
        return (await judged("nvlink-errors", shown, memory, now))[0]

    assert (await at(0, crc=1_000_000, recovery=7)).code is Code.NODE_OK  # from before the first look
    assert (await at(60, crc=1_006_000, recovery=7)).code is Code.NODE_OK
    noisy = await at(120, crc=1_100_000, recovery=7)
    assert (noisy.code, noisy.status) == (Code.NVLINK_ERRORS, Status.WARN) and "errors a minute" in noisy.reason
    trained = await at(1000, crc=1_100_000, recovery=8)
    assert trained.code is Code.NVLINK_ERRORS and "a link was retrained" in trained.reason
    assert (await at(2000, crc=1_100_000, recovery=8)).code is Code.NODE_OK


async def test_pages_out_of_use():
    for pages, code in (
        (RetiredPages(1, 2, False), Code.NODE_OK),
        (RetiredPages(1, 2, True), Code.GPU_PAGES_PENDING),
        (RetiredPages(50, 10, False), Code.GPU_PAGES_RETIRED),
    ):
        assert codes(await of_card("retired-pages", retired=pages)) == [code]


@pytest.mark.parametrize("own", [True, False])
async def test_the_fabric_manager_of_a_node_with_switches(tmp_path, own):
    devices, proc = tmp_path / "sys/bus/pci/devices", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    kind = "devtmpfs" if own else "tmpfs"
    (proc / "self/mountinfo").write_text(f"23 1 0:6 / /dev rw - {kind} {kind} rw\n")
    memory, shown = Memory(), view([gpu(0)])

    async def looks(count):
        return [codes(await judged("fabric-manager", shown, memory, n * 30.0, tmp_path))[0] for n in range(count)]

    assert await looks(1) == [Code.NODE_NOT_APPLICABLE]
    switch = devices / "0000:01:00.0"
    switch.mkdir(parents=True)
    for name, value in (("vendor", "0x10de"), ("class", "0x068000"), ("device", "0x22a3")):
        (switch / name).write_text(value)
    wanted = [Code.NODE_PENDING] * 2 + [Code.FABRIC_MANAGER_DOWN] if own else [Code.NODE_NOT_APPLICABLE] * 3
    assert await looks(3) == wanted
    (proc / "77").mkdir()
    (proc / "77/comm").write_text("nv-fabricmanage\n")
    assert await looks(1) == [Code.NODE_OK if own else Code.NODE_NOT_APPLICABLE]


async def test_a_stranger_on_the_card_of_a_job(tmp_path):
    def process(pid, parent, environ=b"", name="python"):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "environ").write_bytes(environ)
        fields = " ".join(["0"] * 49)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {fields}\n")

    mine = b"A=1\0MUSTER_JOB_ID=train\0"
    process(50, 1, mine)
    process(51, 50)  # a child of the job's own, which cleared its environment
    process(60, 1, b"MUSTER_JOB_ID=other\0")
    process(61, 1, name="nv-hostengine")
    holders = [Holder(pid, 100 * MIB) for pid in (50, 51, 60, 61, 99)]
    memory, shown = Memory(), view([gpu(0), gpu(1)], holders={0: tuple(holders), 1: ()})
    for now in (0.0, 60.0):
        found = await judged("strangers", shown, memory, now, tmp_path, held={0: "train"})
    assert codes(found) == [Code.GPU_STRANGER_PROCESS, Code.NODE_NOT_APPLICABLE]
    assert "job train holds it" in found[0].reason and "pid 60" in found[0].reason
    assert not any(f"pid {pid}" in found[0].reason for pid in (50, 51, 61, 99))


# --- Ascend -----------------------------------------------------------------------------------------------------------


async def of_npu(item, memory=None, now=1000.0, settings=None, **changes):
    return await judged(item, view([npu(0)], {0: replace(NPU_FINE, **changes)}), memory, now, **settings or {})


@pytest.mark.parametrize(
    ("health", "code", "status"),
    [
        (0, Code.NODE_OK, Status.OK),
        (1, Code.NPU_ALARM, Status.WARN),
        (2, Code.NPU_UNHEALTHY, Status.CRITICAL),
        (3, Code.NPU_UNHEALTHY, Status.CRITICAL),
        (4, Code.NODE_NOT_TOLD, Status.UNKNOWN),
    ],
)
async def test_the_health_of_an_ascend_card(health, code, status):
    (found,) = await of_npu("npu-health", npu_health=health, npu_errors=(0x80CB8009,))
    assert (found.code, found.status) == (code, status)
    assert ("0x80cb8009" in found.observed) == (code in (Code.NPU_ALARM, Code.NPU_UNHEALTHY))


async def test_an_ascend_card_that_does_not_start():
    memory = Memory()
    seen = [(await of_npu("npu-health", memory, n * 30.0, npu_boot=3))[0].code for n in range(3)]
    assert seen == [Code.NODE_PENDING, Code.NODE_PENDING, Code.NPU_NOT_BOOTED]


@pytest.mark.parametrize(
    ("reported", "code", "said"),
    [
        (
            (0x80CB8009, 0x40F84E00),
            Code.NPU_FAULT_RESET,
            "2 error codes: 0x40F84E00 (reset it) 0x80CB8009 (",
        ),
        ((0x80E18402,), Code.NPU_FAULT_ISOLATE, "it reports 1 error code: 0x80E18402 (replace it)"),
        ((0x8118043C,), Code.NPU_FAULT_ISOLATE, "0x8118043C (no new jobs)"),
        ((0x80E01801,), Code.NPU_ERROR_CODES, "0x80E01801 (the job must restart)"),
        ((0x8C104E00,), Code.NPU_ERROR_CODES, "0x8C104E00 (reset it when it is idle)"),
        ((0x80E20207,), Code.NPU_ERROR_CODES, "0x80E20207 (the card is degraded)"),
        ((0x12345678,), Code.NPU_ERROR_CODES, "it reports 1 error code: 0x12345678"),
        ((0x81078603, 0x12345678), Code.NPU_ERROR_CODES, "0x12345678 0x81078603 (for information)"),
        ((0x81078603,), Code.NODE_OK, "only informative error codes: 0x81078603 (for information)"),
    ],
)
async def test_the_gravest_error_code_decides(reported, code, said):
    (found,) = await of_npu("npu-errors", npu_errors=reported)
    assert (found.code, found.status) == (code, EXPLANATIONS[code].status)
    assert said in found.reason


async def test_an_error_code_that_comes_again_and_again():
    memory = Memory()

    async def at(now, *reported):
        return codes(await of_npu("npu-errors", memory, now, npu_errors=reported))

    # As long as it stays, and however many looks there are, it came once.
    assert [await at(n * 30.0, 0x80E01801) for n in range(9)] == [[Code.NPU_ERROR_CODES]] * 9
    assert await at(600) == [Code.NODE_OK]
    assert await at(3600, 0x80E01801) == [Code.NPU_FAULT_REPEATED, Code.NPU_ERROR_CODES]
    assert await at(7200) == [Code.NPU_FAULT_REPEATED]
    assert await at(86_401) == [Code.NODE_OK]
    # Others have other limits, or none.
    for hour in range(4):
        found = await at(100_000 + hour * 3600, 0x80E18005, 0x8C104E00)
        assert (Code.NPU_FAULT_REPEATED in found) is (hour >= 2)
        await at(100_100 + hour * 3600)


async def test_an_error_code_that_stays_for_longer_than_a_day_came_once():
    memory = Memory()
    for minute in range(26 * 60):
        (found,) = await of_npu("npu-errors", memory, minute * 60.0, npu_errors=(0x80E01801,))
        assert found.code is Code.NPU_ERROR_CODES


async def test_what_npu_smi_does_not_tell_is_unknown():
    partial = Health(temp_c=40.0, npu_health=0, partial=True)
    for item in ("npu-errors", "npu-network", "ecc"):
        (found,) = await judged(item, view([npu(0)], {0: partial}))
        assert (found.code, found.status) == (Code.NODE_NOT_TOLD, Status.UNKNOWN), item


@pytest.mark.parametrize(
    ("item", "name", "missing", "before"),
    [
        ("npu-health", "npu_health", {"npu_health": None}, Code.NPU_UNHEALTHY),
        ("npu-health", "npu_boot", {"npu_boot": None}, Code.NPU_NOT_BOOTED),
        ("npu-errors", "npu_errors", {"npu_errors": None}, Code.NPU_FAULT_ISOLATE),
        ("npu-network", "npu_network", {"npu_network": None}, Code.NPU_NETWORK_DOWN),
        (
            "ecc",
            "ecc_uncorrected",
            {"ecc_on": None, "ecc_corrected": None, "ecc_uncorrected": None, "dram_corrected": None},
            Code.NPU_ECC_UNCORRECTED,
        ),
    ],
)
async def test_a_call_that_fails_is_unknown_and_ends_no_condition(item, name, missing, before):
    found = await of_npu(item, untold={name: "dcmi_get_x gives -8005"}, **missing)
    assert codes(found) == [Code.NODE_NOT_TOLD] and "gives -8005" in found[0].reason
    assert still(item, "card 0", before, found) is None


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (Trouble.FAILED, Code.NPU_FAULT_ISOLATE),
        (Trouble.NOT_TOLD, Code.NPU_FAULT_ISOLATE),
        (Trouble.LOST, Code.NODE_NOT_TOLD),
        (Trouble.HANG, Code.NODE_NOT_TOLD),
    ],
)
async def test_what_a_card_reports_counts_although_another_call_fails(trouble, code):
    healthy = view([npu(0)], {0: replace(NPU_FINE, npu_errors=(0x80E18402,))})
    shown = replace(healthy, sick={0: sick(trouble)})
    assert codes(await judged("npu-errors", shown)) == [code]


async def test_a_port_that_is_down_is_found_whatever_its_health_is():
    memory = Memory()
    for number in range(3):
        at = number * 60.0
        found = await of_npu(
            "npu-network", memory, at, npu_network=None, npu_link_up=False, untold={"npu_network": "gives -8005"}
        )
    assert codes(found) == [Code.NPU_NETWORK_DOWN]


async def test_error_codes_of_ones_own_go_before_musters():
    own = {"npu_ignore": "80E18402", "npu_reset": "0x12345678", "npu_isolate": "80e01801, 81078603"}
    for reported, code in (
        ((0x80E18402,), Code.NODE_OK),
        ((0x12345678,), Code.NPU_FAULT_RESET),
        ((0x80E01801, 0x12345678), Code.NPU_FAULT_ISOLATE),
        ((0x81078603,), Code.NPU_FAULT_ISOLATE),
    ):
        (found,) = await of_npu("npu-errors", npu_errors=reported, settings=own)
        assert found.code is code


@pytest.mark.parametrize("network", [0, 6])
async def test_a_network_that_is_reached_or_was_not_asked_for(network):
    assert codes(await of_npu("npu-network", npu_network=network)) == [Code.NODE_OK]


@pytest.mark.parametrize("changes", [{"npu_network": 2}, {"npu_link_up": False}])
async def test_a_network_that_was_good_is_critical_and_one_that_never_was_warns(changes):
    new, known = Memory(), Memory()
    await of_npu("npu-network", known, 0.0)
    for number in range(1, 4):
        (never,) = await of_npu("npu-network", new, number * 60.0, **changes)
        (was,) = await of_npu("npu-network", known, number * 60.0, **changes)
    assert (never.code, never.status) == (Code.NPU_NETWORK_DOWN, Status.WARN)
    assert (was.code, was.status) == (Code.NPU_NETWORK_DOWN, Status.CRITICAL)


async def test_an_ascend_cards_memory():
    (found,) = await of_npu("ecc", ecc_uncorrected=1)
    assert (found.code, found.status) == (Code.NPU_ECC_UNCORRECTED, Status.WARN)


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("npu-health", Code.NODE_NOT_TOLD),
        ("npu-errors", Code.NODE_NOT_TOLD),
        ("npu-network", Code.NODE_NOT_APPLICABLE),  # it may have no port
    ],
)
async def test_what_an_ascend_card_does_not_tell(item, code):
    assert codes(await judged(item, view([npu(0)], {0: Health()}))) == [code]


async def test_a_card_that_has_started_and_tells_no_health_is_not_known_to_be_well():
    (found,) = await judged("npu-health", view([npu(0)], {0: Health(npu_boot=16)}))
    assert (found.code, found.reason) == (Code.NODE_NOT_TOLD, "its driver does not report its health")
