"""How muster reads what libdcmi.so fills, beside Huawei's own headers: what a C compiler said of those of mind-cluster
is in tests/fixtures/dcmi (scripts/record_dcmi.py)."""

import ast
import ctypes
import json
from pathlib import Path

import pytest

from muster.probes.cards.ascend import dcmi_layouts
from scripts.record_dcmi import NUMBERS, STRUCTS, questions

ROOT = Path(__file__).parents[4]
RECORDS = sorted((ROOT / "tests/fixtures/dcmi").glob("*.json"))
#: Of no public header: Huawei's open driver has them (PortStatistics), and its documents (UbStatus).
ELSEWHERE = {dcmi_layouts.PortStatistics, dcmi_layouts.UbStatus}
#: Number of the header -> module and name of ours, or the key in it.
OURS = {
    "DCMI_DEVICE_TYPE_HBM": ("ascend_chip", "_HBM"),
    "DCMI_FREQ_AICORE_CURRENT_": ("ascend_chip", "_AICORE_CLOCK"),
}
#: The chip waits for 16, as mind-cluster's own code does (BootStartFinish), although its header counts to 3.
BOOTED = 3


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def told(request: pytest.FixtureRequest) -> dict[str, int]:
    found: dict[str, int] = json.loads(request.param.read_text())["answers"]
    return found


def test_the_record_answers_all_that_is_asked(told: dict[str, int]) -> None:
    assert RECORDS and set(told) == set(questions())


def test_every_structure_is_compared() -> None:
    ours = {
        kind for kind in vars(dcmi_layouts).values() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
    }
    assert ours - {ctypes.Structure} == set(STRUCTS) | ELSEWHERE


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_structures_are_laid_out_as_in_the_header(kind: type[ctypes.Structure], told: dict[str, int]) -> None:
    name, members = STRUCTS[kind]
    assert set(members) == {field[0] for field in kind._fields_}
    assert ctypes.sizeof(kind) == told[f"sizeof({name})"]
    for field, member in members.items():
        if member is not None:
            assert getattr(kind, field).offset == told[f"offsetof({name}, {member})"], field


def literal(module: str, name: str) -> object:
    tree = ast.parse((ROOT / f"probes/cards/ascend/{module}.py").read_text())
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            for target, value in zip(node.targets[0].elts, node.value.elts, strict=True):
                if isinstance(target, ast.Name) and target.id == name:
                    return ast.literal_eval(value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} has no {name}")


def test_numbers_are_those_of_the_header(told: dict[str, int]) -> None:
    assert set(OURS) < set(NUMBERS)
    assert {name: literal(*where) for name, where in OURS.items()} == {name: told[name] for name in OURS}
    dies = literal("ascend_chip", "_DIES")
    assert isinstance(dies, tuple) and (dies[0], dies[-1]) == (told["VDIE"], told["NDIE"])
    assert (told["DCMI_RDFX_DETECT_OK"], told["DCMI_RDFX_DETECT_INIT"]) == (0, 6)
    assert (told["NPU_TYPE"], told["DCMI_DMS_FAULT_EVENT"], told["INBAND_CHANNEL"]) == (0, 0, 1)
    assert told["DCMI_BOOT_STATUS_FINISH"] == BOOTED
