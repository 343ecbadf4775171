"""The structures that libdcmi.so fills, as on every 64-bit Linux (facts of dcmi_interface_api.h, 2025)."""

from ctypes import Structure, c_char, c_int, c_ubyte, c_uint, c_ulong, c_ulonglong, c_ushort


class ChipInfo(Structure):
    _fields_ = [
        ("type", c_char * 32),
        ("name", c_char * 32),
        ("version", c_char * 32),
        ("aicores", c_uint),
        ("npu_name", c_char * 32),
    ]


class PcieInfo(Structure):
    _fields_ = [
        ("vendor", c_uint),
        ("subvendor", c_uint),
        ("device_id", c_uint),
        ("subdevice", c_uint),
        ("domain", c_int),
        ("bus", c_uint),
        ("device", c_uint),
        ("function", c_uint),
        ("reserved", c_ubyte * 32),
    ]


class DieId(Structure):
    _fields_ = [("words", c_uint * 5)]


class Label(Structure):
    """The board's electronic label."""

    _fields_ = [(name, c_char * 256) for name in ("product", "model", "manufacturer", "date", "serial")]


class HbmInfo(Structure):
    """Memory in MiB, clock in MHz, degrees Celsius, percent of the bandwidth."""

    _fields_ = [
        ("size", c_ulonglong),
        ("clock", c_uint),
        ("used", c_ulonglong),
        ("temperature", c_int),
        ("bandwidth", c_uint),
    ]


class EccInfo(Structure):
    """Counts since the driver was loaded, and (`total_`) over the chip's life. Some drivers write the last two too."""

    _fields_ = [
        ("enabled", c_int),
        ("single", c_uint),
        ("double", c_uint),
        ("total_single", c_uint),
        ("total_double", c_uint),
        ("isolated_single", c_uint),
        ("isolated_double", c_uint),
        ("next_single", c_uint),
        ("next_double", c_uint),
    ]


class DcmiProcess(Structure):
    _fields_ = [("pid", c_int), ("bytes", c_ulong)]


class PortStatistics(Structure):
    """Counters of a RoCE port since it came up: 52 of them, in the order of struct dcmi_network_pkt_stats_info."""

    _fields_ = [
        ("counters", c_ulonglong * 52),
        ("seconds", c_ulong),
        ("microseconds", c_ulong),
        ("reserved", c_ubyte * 64),
    ]
    SENT_BYTES, RECEIVED_BYTES = 21, 25


class UbStatus(Structure):
    """Ports of Ascend 950's bus. Each: 0 there is none, 1 up, 2 up with a part of its lanes, 3 not up."""

    _fields_ = [("all", c_int), ("ports", c_int * 36)]


class EventFilter(Structure):
    """With flag 0 it lets everything through."""

    _fields_ = [
        ("flag", c_ulonglong),
        ("event_id", c_uint),
        ("severity", c_ubyte),
        ("node_type", c_ubyte),
        ("reserved", c_ubyte * 32),
    ]


class DcmiEvent(Structure):
    """struct dcmi_event around struct dcmi_dms_fault_event, which begins on a multiple of 8."""

    _fields_ = [
        ("type", c_int),
        ("padding", c_int),
        ("event_id", c_uint),
        ("logical", c_ushort),
        ("node", c_ubyte * 4),
        ("severity", c_ubyte),
        ("assertion", c_ubyte),
        ("serial", c_int),
        ("notification", c_int),
        ("raised", c_ulonglong),
        ("name", c_char * 256),
        ("details", c_char * 32),
        ("reserved", c_ubyte * 32),
    ]


def die_text(die: DieId) -> str:
    """A die's number as Huawei's tools write it; "" for one of nothing but zeros, which is none."""
    return "-".join(f"{word:08X}" for word in die.words) if any(die.words) else ""


def words(text: bytes) -> str:
    """Text of the driver, fit for one line."""
    return " ".join(text.decode(errors="replace").split())
