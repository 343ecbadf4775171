"""What muster asks of NVML, beside NVIDIA's own header (nvml.h of the package nvidia-nvml-dev): a C compiler compares.

What is compared is found in the code: the functions and structs that probes/cards/nvidia names, the structs in which
nvidia-ml-py answers, and every number of those modules.
"""

import ast
import ctypes
import inspect
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pynvml
import pytest

from muster.probes.cards.nvidia.nvidia_gpm import MetricsGet
from tests.fakes import build

CODE = Path(__file__).parents[4] / "probes/cards/nvidia"
#: The number of a module -> what it is called in nvml.h. None: it is no number of NVML's.
NUMBERS: dict[str, dict[str, Any]] = {
    "backend": {"_MEMORY_V2": "nvmlMemory_v2", "_TRIES": None, "_FIRST_MIG": None, "_MIG_PER_CARD": None},
    "nvidia_calls": {
        **dict.fromkeys(("PERCENT", "POWER_MW", "COUNT"), None),
        "LIBRARY": None,
        "UNINITIALIZED": "NVML_ERROR_UNINITIALIZED",
        "INVALID_ARGUMENT": "NVML_ERROR_INVALID_ARGUMENT",
        "NOT_SUPPORTED": "NVML_ERROR_NOT_SUPPORTED",
        "NO_PERMISSION": "NVML_ERROR_NO_PERMISSION",
        "NOT_FOUND": "NVML_ERROR_NOT_FOUND",
        "INSUFFICIENT_SIZE": "NVML_ERROR_INSUFFICIENT_SIZE",
        "DRIVER_NOT_LOADED": "NVML_ERROR_DRIVER_NOT_LOADED",
        "TIMEOUT": "NVML_ERROR_TIMEOUT",
        "LIBRARY_NOT_FOUND": "NVML_ERROR_LIBRARY_NOT_FOUND",
        "FUNCTION_NOT_FOUND": "NVML_ERROR_FUNCTION_NOT_FOUND",
        "LOST": "NVML_ERROR_GPU_IS_LOST",
        "RESET_REQUIRED": "NVML_ERROR_RESET_REQUIRED",
        "MISMATCH": "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "NO_MEMORY": "NVML_ERROR_MEMORY",
        "NO_RESOURCES": "NVML_ERROR_INSUFFICIENT_RESOURCES",
        "VERSION_MISMATCH": "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
        "DEPRECATED": "NVML_ERROR_DEPRECATED",
        "NO_POWER": "NVML_ERROR_INSUFFICIENT_POWER",
        "NO_INTERRUPT": "NVML_ERROR_IRQ_ISSUE",
        "BAD_INFOROM": "NVML_ERROR_CORRUPTED_INFOROM",
        "BLOCKED": "NVML_ERROR_OPERATING_SYSTEM",
        "UNKNOWN": "NVML_ERROR_UNKNOWN",
        "GPU_NOT_FOUND": "NVML_ERROR_GPU_NOT_FOUND",
        "_VALUES": {
            "dVal": "NVML_VALUE_TYPE_DOUBLE",
            "uiVal": "NVML_VALUE_TYPE_UNSIGNED_INT",
            "ulVal": "NVML_VALUE_TYPE_UNSIGNED_LONG",
            "ullVal": "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG",
            "sllVal": "NVML_VALUE_TYPE_SIGNED_LONG_LONG",
            "siVal": "NVML_VALUE_TYPE_SIGNED_INT",
            "usVal": "NVML_VALUE_TYPE_UNSIGNED_SHORT",
        },
    },
    "nvidia_card": {
        "_VGPU": "NVML_GPU_VIRTUALIZATION_MODE_VGPU",
        "_SCOPE_NODE": "NVML_AFFINITY_SCOPE_NODE",
        "_SLOWDOWN": "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
        "_MEM_MAX": "NVML_TEMPERATURE_THRESHOLD_MEM_MAX",
        "_P2P_NVLINK": "NVML_P2P_CAPS_INDEX_NVLINK",
        "_P2P_OK": "NVML_P2P_STATUS_OK",
        "MAX_LINKS": "NVML_NVLINK_MAX_LINKS",
        "_NODE_WORDS": None,
    },
    "nvidia_events": {
        "_XID": "nvmlEventTypeXidCriticalError",
        "_DOUBLE_BIT": "nvmlEventTypeDoubleBitEccError",
        "_XID_DOUBLE_BIT": None,
        "_AGAIN_S": None,
    },
    "nvidia_gpm": {
        "LEAST_S": None,
        "_FASTEST_MIB": None,
        "_MOST_SHARE": None,
        "_METRICS": {
            "graphics": "NVML_GPM_METRIC_GRAPHICS_UTIL",
            "sm": "NVML_GPM_METRIC_SM_UTIL",
            "occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
            "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
            "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
            "fp64": "NVML_GPM_METRIC_FP64_UTIL",
            "fp32": "NVML_GPM_METRIC_FP32_UTIL",
            "fp16": "NVML_GPM_METRIC_FP16_UTIL",
            "pcie_tx": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
            "pcie_rx": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
            "fabric_rx": "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
            "fabric_tx": "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
        },
        "_ROOM": "NVML_GPM_METRIC_MAX",
        "_VERSION": "NVML_GPM_METRICS_GET_VERSION",
    },
    "nvidia_health": {
        **dict.fromkeys(("_COLDEST", "_HOTTEST", "_FASTEST", "_LANES", "_GENERATIONS", "_MOST_BYTES"), None),
        "_SM": "NVML_CLOCK_SM",
        "_MEM": "NVML_CLOCK_MEM",
        "_CORRECTED": "NVML_MEMORY_ERROR_TYPE_CORRECTED",
        "_UNCORRECTED": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
        "_VOLATILE": "NVML_VOLATILE_ECC",
        "_DRAM": "NVML_MEMORY_LOCATION_DRAM",
        "_SRAM": "NVML_MEMORY_LOCATION_SRAM",
        "_MEMORY_TEMP": "NVML_FI_DEV_MEMORY_TEMP",
        "_RECOVERY": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "_DATA_TX": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
        "_DATA_RX": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
        "_BYTES_TX": "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES",
        "_BYTES_RX": "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES",
        "_REPLAY": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
        "_LINK_RECOVERY": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
        "_CRC": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
        "_RECOVERED_5": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
        "_UNRECOVERED_5": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
        "_EFFECTIVE_5": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
        "_RETIRED_SBE": "NVML_FI_DEV_RETIRED_SBE",
        "_RETIRED_DBE": "NVML_FI_DEV_RETIRED_DBE",
        "_RETIRED_PENDING": "NVML_FI_DEV_RETIRED_PENDING",
        "_ROWS_SBE": "NVML_FI_DEV_REMAPPED_COR",
        "_ROWS_DBE": "NVML_FI_DEV_REMAPPED_UNC",
        "_ROWS_PENDING": "NVML_FI_DEV_REMAPPED_PENDING",
        "_ROWS_FAILURE": "NVML_FI_DEV_REMAPPED_FAILURE",
        "_ALL_LINKS": None,
        "_BANDWIDTH_AT": "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW",
        "_ROUTE_AT": "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY",
        "_CONFIGURATION_AT": "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION",
        "_PAIR": "NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY",
        "_CONFIGURATION": "NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION",
        "_TRUE": "NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE",
        "_FALSE": "NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE",
        "_CORRECT": "NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE",
        "_HEALTHY": "NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY",
        "_UNHEALTHY": "NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY",
        "_LIMITED": "NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY",
    },
}
#: The one struct that muster lays out itself, and how its members are called in nvml.h.
OWN = "nvmlGpmMetricsGet_t"
OWN_MEMBERS = {
    "version": "version",
    "numMetrics": "count",
    "sample1": "before",
    "sample2": "now",
    "metrics": "metrics",
    "metrics[1].metricId": "",
}
TREES = {path.stem: ast.parse(path.read_text()) for path in CODE.glob("*.py")}


def words(pattern: str) -> set[str]:
    nodes = (node for tree in TREES.values() for node in ast.walk(tree))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in texts if re.fullmatch(pattern, text)}


#: As they are named in the code; the newest version of some is added there.
FUNCTIONS = words(r"nvml[A-Z]\w+")


@cache
def structs() -> dict[str, type[ctypes.Structure]]:
    """ctypes' structs by their name in C: those that the code names, and those of the functions that it asks for."""
    names = words(r"c_nvml[A-Z]\w+")
    for function in FUNCTIONS:
        for name in (function, f"{function}_v2", f"{function}_v3"):
            if hasattr(pynvml, name):
                names |= set(re.findall(r"\b(?:c_)?nvml\w+_t\b", inspect.getsource(getattr(pynvml, name))))
    found = {name.removeprefix("c_"): getattr(pynvml, name, None) for name in names}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and ctypes.sizeof(kind)
    }


def numbers() -> dict[str, int]:
    """Values of the code by their name in nvml.h."""
    found: dict[str, int] = {}
    for module, names in NUMBERS.items():
        for name, called in names.items():
            value = assigned(module)[name]
            if isinstance(called, dict):
                found |= {called[text]: number for number, text in value.items()}
            elif called is not None and called != "nvmlMemory_v2":
                found[called] = value
    return found


@cache
def assigned(module: str) -> dict[str, Any]:
    """Literal values of a module's names."""
    found: dict[str, Any] = {}
    for node in TREES[module].body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if isinstance(target, ast.Tuple) and isinstance(value, tuple):
                found |= {ast.unparse(name): each for name, each in zip(target.elts, value, strict=True)}
            else:
                found[ast.unparse(target)] = value
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the header has, by an expression of C."""
    folder = tmp_path_factory.mktemp("header")
    asked = [f"sizeof({name})" for name in structs()]
    asked += [f"offsetof({name}, {field[0]})" for name, kind in structs().items() for field in kind._fields_]
    asked += [f"sizeof({OWN})", *(f"offsetof({OWN}, {name})" for name in OWN_MEMBERS)]
    asked += [*numbers(), "nvmlMemory_v2", *shared_constants()]
    shown = "".join(f'printf("%lld {each}\\n", (long long)({each}));\n' for each in asked)
    called = "".join(f"(void *){name},\n" for name in sorted(FUNCTIONS))
    source = f"""
#include <stddef.h>
#include <stdio.h>
#include "{build.nvml_header()}"
typedef nvmlProcessInfo_t nvmlProcessInfo_v3_t; /* the third version of the calls has no struct of its own */
#undef nvmlMemory_v2
#define nvmlMemory_v2 NVML_STRUCT_VERSION(Memory, 2)
void *const functions[] = {{ {called} }};
int main(void) {{ {shown} return 0; }}
"""
    (folder / "asked.c").write_text(source)
    command, _ = build.compiler()
    # The functions are declared and not linked: that they are declared is what is looked at.
    linked = ["-Wl,--unresolved-symbols=ignore-all", "-Wno-deprecated-declarations"]
    done = subprocess.run(
        [*command, "-w", "-no-pie", *linked, "-o", folder / "asked", folder / "asked.c"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = subprocess.run([folder / "asked"], capture_output=True, text=True, timeout=60, check=True).stdout
    return {name: int(value) for value, name in (line.split(" ", 1) for line in lines.splitlines())}


@cache
def shared_constants() -> tuple[str, ...]:
    """Numbers that nvidia-ml-py and the header both have under one name."""
    names = {name for name, value in vars(pynvml).items() if name.startswith("NVML_") and isinstance(value, int)}
    words = set(re.findall(r"\bNVML_\w+", build.nvml_header().read_text()))
    return tuple(sorted(names & words))


def test_every_number_of_the_code_has_a_name_in_the_header():
    for module in TREES:
        literals = {name for name, value in assigned(module).items() if re.search(r"\d", repr(value))}
        assert literals == set(NUMBERS.get(module, {})), (
            f"{module}: say which name of nvml.h each number has, in NUMBERS"
        )


def test_numbers_are_those_of_the_header(told):
    found = numbers()
    assert len(found) > 50
    assert {name: told[name] for name in found} == found
    assert told["nvmlMemory_v2"] == assigned("backend")["_MEMORY_V2"]


def test_structs_are_laid_out_as_in_the_header(told):
    assert {"nvmlMemory_v2_t", "nvmlFieldValue_t", "nvmlEventData_t"} <= set(structs())
    for name, kind in structs().items():
        assert told[f"sizeof({name})"] == ctypes.sizeof(kind), name
        for field in kind._fields_:
            assert told[f"offsetof({name}, {field[0]})"] == getattr(kind, field[0]).offset, (name, field[0])


def test_the_struct_of_ours_is_that_of_the_header(told):
    assert told[f"sizeof({OWN})"] == ctypes.sizeof(MetricsGet)
    for name, ours in OWN_MEMBERS.items():
        if ours:
            assert told[f"offsetof({OWN}, {name})"] == getattr(MetricsGet, ours).offset, name
    second = (
        MetricsGet.metrics.offset
        + (ctypes.sizeof(MetricsGet) - MetricsGet.metrics.offset) // told["NVML_GPM_METRIC_MAX"]
    )
    assert told[f"offsetof({OWN}, metrics[1].metricId)"] == second


def test_functions_are_declared(told):
    assert len(FUNCTIONS) > 50 and told


#: nvidia-ml-py and the header are not of one release: an end of a list that grows is no contradiction.
ENDS = re.compile(r"_(MAX|COUNT|COUNT_V\d|MAX_LINKS|VERSION|LATEST)$")


def test_nvidia_ml_py_has_the_numbers_of_the_header(told):
    names = [name for name in shared_constants() if not ENDS.search(name)]
    assert len(names) > 300
    mask = (1 << 64) - 1  # of a bit mask, C shows what Python has as a positive number
    assert {name: told[name] & mask for name in names} == {name: getattr(pynvml, name) & mask for name in names}
