"""Writes down how Huawei's DCMI headers lay out what muster reads: `python -m scripts.record_dcmi RELEASE HEADER...`.

HEADER: dcmi_interface_api.h and dcmi_interface_api_v2.h of mind-cluster (component/ascend-common/devmanager/dcmi),
RELEASE: what `git describe` says there. A C compiler answers; on stdout are sizes, places and numbers, and no text of
the headers.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from muster.probes.cards.ascend import dcmi_layouts

#: Our structures, what the header calls each, and each of its fields. None: it is padding.
STRUCTS: dict[type[ctypes.Structure], tuple[str, dict[str, str | None]]] = {
    dcmi_layouts.ChipInfo: (
        "struct dcmi_chip_info_v2",
        {
            "type": "chip_type",
            "name": "chip_name",
            "version": "chip_ver",
            "aicores": "aicore_cnt",
            "npu_name": "npu_name",
        },
    ),
    dcmi_layouts.PcieInfo: (
        "struct dcmi_pcie_info_all",
        {
            "vendor": "venderid",
            "subvendor": "subvenderid",
            "device_id": "deviceid",
            "subdevice": "subdeviceid",
            "domain": "domain",
            "bus": "bdf_busid",
            "device": "bdf_deviceid",
            "function": "bdf_funcid",
            "reserved": "reserve",
        },
    ),
    dcmi_layouts.DieId: ("struct dcmi_die_id", {"words": "soc_die"}),
    dcmi_layouts.Label: (
        "struct dcmi_elabel_info",
        {
            "product": "product_name",
            "model": "model",
            "manufacturer": "manufacturer",
            "date": "manufacturer_date",
            "serial": "serial_number",
        },
    ),
    dcmi_layouts.HbmInfo: (
        "struct dcmi_hbm_info",
        {
            "size": "memory_size",
            "clock": "freq",
            "used": "memory_usage",
            "temperature": "temp",
            "bandwidth": "bandwith_util_rate",
        },
    ),
    dcmi_layouts.EccInfo: (
        "struct dcmi_ecc_info",
        {
            "enabled": "enable_flag",
            "single": "single_bit_error_cnt",
            "double": "double_bit_error_cnt",
            "total_single": "total_single_bit_error_cnt",
            "total_double": "total_double_bit_error_cnt",
            "isolated_single": "single_bit_isolated_pages_cnt",
            "isolated_double": "double_bit_isolated_pages_cnt",
            "next_single": "single_bit_next_isolated_pages_cnt",
            "next_double": "double_bit_next_isolated_pages_cnt",
        },
    ),
    dcmi_layouts.DcmiProcess: ("struct dcmi_proc_mem_info", {"pid": "proc_id", "bytes": "proc_mem_usage"}),
    dcmi_layouts.EventFilter: (
        "struct dcmi_event_filter",
        {
            "flag": "filter_flag",
            "event_id": "event_id",
            "severity": "severity",
            "node_type": "node_type",
            "reserved": "resv",
        },
    ),
    dcmi_layouts.DcmiEvent: (
        "struct dcmi_event",
        {
            "type": "type",
            "padding": None,
            "event_id": "event_t.dms_event.event_id",
            "logical": "event_t.dms_event.deviceid",
            "node": "event_t.dms_event.node_type",
            "severity": "event_t.dms_event.severity",
            "assertion": "event_t.dms_event.assertion",
            "serial": "event_t.dms_event.event_serial_num",
            "notification": "event_t.dms_event.notify_serial_num",
            "raised": "event_t.dms_event.alarm_raised_time",
            "name": "event_t.dms_event.event_name",
            "details": "event_t.dms_event.additional_info",
            "reserved": "event_t.dms_event.resv",
        },
    ),
}
#: Numbers of the header that the code has.
NUMBERS = (
    "DCMI_DEVICE_TYPE_HBM",
    "DCMI_FREQ_AICORE_CURRENT_",
    "VDIE",
    "NDIE",
    "DCMI_RDFX_DETECT_OK",
    "DCMI_RDFX_DETECT_INIT",
    "NPU_TYPE",
    "DCMI_DMS_FAULT_EVENT",
    "INBAND_CHANNEL",
    "DCMI_BOOT_STATUS_FINISH",
)


def questions() -> list[str]:
    """What is asked of the header, as expressions of C."""
    asked = [f"sizeof({name})" for name, _ in STRUCTS.values()]
    asked += [
        f"offsetof({name}, {member})" for name, fields in STRUCTS.values() for member in fields.values() if member
    ]
    return [*asked, *NUMBERS]


def answers(headers: list[Path]) -> dict[str, int]:
    """What the compiler says. Raises CalledProcessError."""
    shown = "".join(f'printf("%lld {each}\\n", (long long)({each}));\n' for each in questions())
    included = "".join(f'#include "{path.resolve()}"\n' for path in headers)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "asked.c"), Path(folder, "asked")
        source.write_text(
            f"#include <stddef.h>\n#include <stdio.h>\n{included}int main(void) {{ {shown} return 0; }}\n"
        )
        subprocess.run(["cc", "-w", "-o", program, source], check=True)
        lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for value, name in (line.split(" ", 1) for line in lines.splitlines())}


def main() -> None:
    release, *headers = sys.argv[1:]
    print(json.dumps({"release": release, "answers": answers(list(map(Path, headers)))}, indent=1))


if __name__ == "__main__":
    main()
