"""What sysfs tells of a device, and what it does not."""

import pytest

from muster.probes.kernel import pci
from muster.probes.kernel.pci import Link

BUS = "0000:9d:00.0"


@pytest.fixture
def device(tmp_path):
    folder = tmp_path / "bus/pci/devices" / BUS
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("x\n", None)])
def test_numa_node(device, tmp_path, text, node):
    (device / "numa_node").write_text(text)
    assert pci.numa_node(BUS, tmp_path) == node


@pytest.mark.parametrize(
    ("files", "link"),
    [
        (("16", "16", "32.0 GT/s PCIe", "32.0 GT/s PCIe"), Link(16, 16, 5, 5)),
        (("8", "16", "2.5 GT/s PCIe", "16.0 GT/s PCIe"), Link(8, 16, 1, 4)),
        (("8", "16", "8 GT/s", "8.0 GT/s PCIe"), Link(8, 16, 3, 3)),
        # As the kernel tells of a device that does not answer any more.
        (("63", "255", "Unknown", "Unknown"), Link()),
        (("0", "16", "", "64.0 GT/s PCIe"), Link(None, 16, None, 6)),
    ],
)
def test_link(device, tmp_path, files, link):
    names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    for name, text in zip(names, files, strict=True):
        (device / name).write_text(f"{text}\n")
    assert pci.link(BUS, tmp_path) == link


def test_a_device_that_sysfs_does_not_have(tmp_path):
    assert pci.numa_node(BUS, tmp_path) is None and pci.cpus(BUS, tmp_path) == () and pci.link(BUS, tmp_path) == Link()


@pytest.mark.parametrize("bus", ["", "..", "../../../../etc", "0000:9d:00.0/../../x", "0000:9D:00.0"])
def test_only_a_bus_id_is_looked_up(tmp_path, bus):
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/numa_node").write_text("1")
    assert pci.numa_node(bus, tmp_path) is None


def test_a_name_is_spelled_as_sysfs_does():
    assert pci.name(0, 0x9D, 0, 0) == BUS
    assert pci.name(0x10001, 0xC1, 0x1F, 7) == "10001:c1:1f.7"
