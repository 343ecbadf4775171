"""What a job's processes call its cards, and where a chip is in a container."""

import os

import pytest

from muster.probes.cards import visible
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card, Numbers, Trouble
from muster.probes.cards.ascend import ascend_numbers
from muster.probes.cards.ascend.ascend_numbers import ChipIdentity
from muster.probes.cards.view import Sick


def gpus(*indices, **more):
    return [Card(index, NVIDIA, uuid=f"GPU-{index}", **more) for index in indices]


def words(chosen, every, sick=(), **env):
    troubled = {index: Sick(trouble, "", 0.0) for index, trouble in dict(sick).items()}
    return list(visible.words(chosen, every, troubled, env).values())


def test_on_a_host_cuda_counts_as_nvml_does():
    cards = gpus(0, 1, 2, 3)
    assert words(cards[1:3], cards) == ["1", "2"]
    assert words(cards[1:3], cards, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["1", "2"]
    assert words(cards[1:3], cards, {3: Trouble.NOT_TOLD}) == ["1", "2"]


@pytest.mark.parametrize(
    ("every", "sick", "env"),
    [
        (gpus(0, 1, 2), {}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}),
        (gpus(1, 2, 4), {}, {}),  # a container whose NVML counts the host's
        (gpus(0, 1, 2), {0: Trouble.LOST}, {}),
        ([*gpus(1, 2), *gpus(0, mig=True)], {}, {}),
    ],
)
def test_where_it_may_count_otherwise_uuids_name_the_cards(every, sick, env):
    assert words(gpus(1, 2), every, sick, **env) == ["GPU-1", "GPU-2"]
    assert words([Card(1, NVIDIA)], every, sick, **env) == ["1"], "a card that has not told its uuid yet"


def test_cann_counts_the_cards_of_its_container():
    cards = [Card(4, ASCEND, numbers=Numbers(4, 0)), Card(5, ASCEND, numbers=Numbers(5, 1)), Card(6, ASCEND)]
    assert words(cards, cards) == ["0", "1", "6"]
    assert visible.word(cards[1], cards, {}) == "1" and visible.word(Card(0, "slot"), [], {}) == ""


def test_cann_takes_ascending_numbers_alone():
    assert visible.in_order([Card(5, ASCEND, numbers=Numbers(5, 1)), Card(4, ASCEND, numbers=Numbers(4, 0))]) == [4, 5]
    assert visible.in_order([Card(12, ASCEND), Card(3, ASCEND)]) == [3, 12]
    assert visible.in_order(gpus(3, 1)) == [3, 1]


# --- places -----------------------------------------------------------------------------------------------------------


def places(told, nodes, *, counted=lambda: None):
    chips = [ChipIdentity((board, 0), logical, physical) for board, (logical, physical) in enumerate(told)]
    found = ascend_numbers.places(chips, nodes, counted=counted)
    return {seat[0]: (at.index, at.logical, at.node) for seat, at in found.items()}


def same(*numbers):
    return {number: number for number in numbers}


@pytest.mark.parametrize(
    ("told", "nodes", "expected"),
    [
        ([(0, 0), (1, 1)], {}, {0: (0, 0, 0), 1: (1, 1, 1)}),
        ([(0, None), (1, None)], {}, {0: (0, 0, 0), 1: (1, 1, 1)}),
        ([(0, 4), (1, 5)], {}, {0: (4, 0, 4), 1: (5, 1, 5)}),
        # A node that no chip has, of one that is lost.
        ([(0, 0), (1, 1)], same(0, 1, 2), {0: (0, 0, 0), 1: (1, 1, 1)}),
        # Renamed by the container: their minor numbers tell, and where there are none, their order.
        ([(0, 4), (1, 5)], {0: 4, 1: 5}, {0: (4, 0, 0), 1: (5, 1, 1)}),
        ([(0, 5), (1, 4)], {0: 4, 1: 5}, {0: (5, 0, 1), 1: (4, 1, 0)}),
        ([(0, 4), (1, 5)], same(0, 1), {0: (4, 0, 0), 1: (5, 1, 1)}),
        # The whole host is shown, or nothing that fits.
        ([(n, n) for n in range(4)], same(1, 3), {1: (1, 0, 1), 3: (3, 1, 3)}),
        ([(0, 0), (1, 1)], same(7), {0: (0, 0, 0), 1: (1, 1, 1)}),
        ([], same(7), {}),
    ],
)
def test_places(told, nodes, expected):
    assert places(told, nodes) == expected


def test_where_the_driver_numbers_the_whole_host_for_cann_too_its_numbers_stay():
    host = [(n, n) for n in range(4)]
    assert places(host, same(1, 3), counted=lambda: 4) == {1: (1, 1, 1), 3: (3, 3, 3)}
    assert places(host, same(1, 3), counted=lambda: 2) == {1: (1, 0, 1), 3: (3, 1, 3)}
    # Its cards alone, by the host's numbers.
    assert places([(1, 1), (3, 3)], same(1, 3)) == {0: (1, 0, 1), 1: (3, 1, 3)}
    assert places([(1, 1), (3, 3)], same(1, 3), counted=lambda: 4) == {0: (1, 1, 1), 1: (3, 3, 3)}


def test_on_a_host_the_library_is_not_asked_how_many_cann_counts():
    def never():
        raise AssertionError

    assert places([(0, 0), (1, 1)], same(0, 1), counted=never) == {0: (0, 0, 0), 1: (1, 1, 1)}


def test_nodes_by_name_and_minor_number(tmp_path):
    for name in ("davinci3", "davinci_manager", "davinci12x", "vdavinci100"):
        (tmp_path / name).touch()
    assert ascend_numbers.nodes(tmp_path) == {3: 3}
    if os.geteuid() == 0:
        try:
            os.mknod(tmp_path / "davinci0", 0o020600, os.makedev(236, 4))
        except OSError:
            pytest.skip("device nodes cannot be made here")
        assert ascend_numbers.nodes(tmp_path) == {3: 3, 0: 4}


def test_of_a_card_in_mig_mode_its_instances_are_named():
    instance = Card(1000, NVIDIA, uuid="MIG-0", parent=0)
    every = [*gpus(0, mig=True), *gpus(1), instance]
    assert words([instance], every) == ["MIG-0"] and words(gpus(1), every) == ["GPU-1"]
    assert visible.word(every[0], every, {}) == "", "no job gets the card itself"
