"""Ascend's backend over a libdcmi.so of our own, steered by the environment, and over scripts in npu-smi's place."""

import shutil
import subprocess

import anyio
import pytest

from probes import ascend, watched
from probes.backend import Answer
from probes.result import Code
from probes.script import Ended

#: FAKE_DCMI is a list of `function:number=code,`; for `init` the number is 0, `health` is the state that is told, the
#: code `wait` waits for the file FAKE_DCMI_WAIT to go. Board = number / 2, chip = number % 2, logical = number + 100.
FAKE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int told(const char *function, unsigned number, int otherwise)
{
    char key[64];
    const char *all = getenv("FAKE_DCMI"), *at;
    snprintf(key, sizeof key, ",%s:%u=", function, number);
    at = all ? strstr(all, key) : NULL;
    if (!at)
        return otherwise;
    at += strlen(key);
    if (!strncmp(at, "wait", 4)) {
        while (!access(getenv("FAKE_DCMI_WAIT"), F_OK))
            usleep(2000);
        return otherwise;
    }
    return atoi(at);
}

static int inits;
int dcmi_init(void) { inits++; return told("init", 0, 0); }
int fake_inits(void) { return inits; }

int dcmi_get_device_logicid_from_phyid(unsigned phyid, unsigned *logicid)
{
    *logicid = phyid + 100;
    return told("logicid", phyid, 0);
}

int dcmi_get_card_id_device_id_from_logicid(int *card, int *device, unsigned logicid)
{
    *card = (int)(logicid - 100) / 2;
    *device = (int)(logicid - 100) % 2;
    return told("cardid", logicid - 100, 0);
}

int dcmi_get_device_health(int card, int device, unsigned *health)
{
    unsigned number = (unsigned)(card * 2 + device);
    *health = (unsigned)told("health", number, 0);
    return told("gethealth", number, 0);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not (compiler := shutil.which("cc")):
        pytest.skip("needs a C compiler (cc) for a library in libdcmi.so's place")
    folder = tmp_path_factory.mktemp("dcmi")
    for name, text in (("dcmi", FAKE), ("old", "int dcmi_init(void) { return 0; }\n")):
        (folder / f"{name}.c").write_text(text)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / f"lib{name}.so", folder / f"{name}.c"], check=True)
    return folder / "libdcmi.so"


@pytest.fixture
def dcmi(library, monkeypatch):
    """Sets what the library says."""
    monkeypatch.setattr(ascend, "LIBRARIES", ("/nonexistent/libdcmi.so", str(library)))
    monkeypatch.setattr(ascend, "_ready", set())

    def told(*answers):
        monkeypatch.setenv("FAKE_DCMI", "," + ",".join(answers) + ",")

    told()
    return told


async def ask(*indices):
    answers: dict[int, Answer] = {}
    await ascend.ask(indices, answers)
    return answers


async def test_cards_go_by_their_physical_number(dcmi):
    answers = await ask(0, 3)
    assert answers[0] == Answer(Code.CARDS_OK, "card 0 chip 0, health 0 (OK)")
    assert answers[3] == Answer(Code.CARDS_OK, "card 1 chip 1, health 0 (OK)")


async def test_the_library_is_initialized_once(dcmi):
    fake = ascend._load()
    assert fake is not None
    before = fake.fake_inits()
    await ask(*range(16))
    await ask(0)
    assert fake.fake_inits() == before + 1


@pytest.mark.parametrize(
    ("told", "code", "words"),
    [
        ("logicid:2=-8007", Code.CARDS_NO_ANSWER, "gives -8007 (no card of this number)"),
        ("cardid:2=-8008", Code.CARDS_NO_ANSWER, "gives -8008 (no such device)"),
        ("gethealth:2=-8012", Code.CARDS_NO_ANSWER, "dcmi_get_device_health gives -8012 (not ready"),
        ("gethealth:2=-1", Code.CARDS_NO_ANSWER, "gives -1 (unknown)"),
        ("gethealth:2=-8013", Code.CARDS_NOT_TOLD, "from a container"),
        ("gethealth:2=-8002", Code.CARDS_NOT_TOLD, "no permission"),
        ("logicid:2=-8255", Code.CARDS_NOT_TOLD, "not supported"),
        ("health:2=-1", Code.CARDS_NO_ANSWER, "absent"),
        ("health:2=3", Code.CARDS_UNHEALTHY, "health 3 (critical alarm): npu-smi info -t health -i 1"),
        ("health:2=2", Code.CARDS_UNHEALTHY, "health 2 (major alarm)"),
        ("health:2=1", Code.CARDS_OK, "health 1 (minor alarm)"),
    ],
)
async def test_a_card_in_trouble_hides_no_other(dcmi, told, code, words):
    dcmi(told)
    answers = await ask(0, 1, 2, 3)
    assert answers[2].code is code and words in answers[2].text
    assert {answers[i].code for i in (0, 1, 3)} == {Code.CARDS_OK}


async def test_a_driver_in_trouble_and_mended(dcmi):
    dcmi("init:0=-8005")
    answers = await ask(0, 1)
    assert answers[0] == answers[1] == Answer(Code.CARDS_DRIVER_FAILED, "dcmi_init gives -8005 (internal error)")
    dcmi()
    assert (await ask(0))[0].code is Code.CARDS_OK


async def until(condition):
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110  (what a thread does raises no event here)
            await anyio.sleep(0.01)


async def test_a_card_that_hangs_holds_no_other_up(dcmi, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    gate.touch()
    monkeypatch.setenv("FAKE_DCMI_WAIT", str(gate))
    dcmi("gethealth:1=wait")
    answers: dict[int, Answer] = {}
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(ascend.ask, (0, 1), answers)
            await until(lambda: 0 in answers)
            assert 1 not in answers
            group.cancel_scope.cancel()
        assert (await ask(1))[1].code is Code.PROBE_TIMED_OUT
    finally:
        gate.unlink()
    await until(lambda: "DCMI, card 1" not in watched._stuck)
    assert (await ask(1))[1].code is Code.CARDS_OK


async def test_a_library_that_lacks_a_function(library, monkeypatch):
    monkeypatch.setattr(ascend, "LIBRARIES", (str(library.with_name("libold.so")),))
    answer = (await ask(0))[0]
    assert answer.code is Code.CARDS_NOT_TOLD and "dcmi_get_device_logicid_from_phyid" in answer.text


# --- npu-smi ----------------------------------------------------------------------------------------------------------

OLD = (
    "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name\n"
    "\t0                              0                              0                              Ascend 910B3\n"
    "\t0                              1                              -                              Mcu\n"
    "\t1                              0                              1                              Ascend 910B3\n"
    "\t1                              1                              -                              Mcu\n"
)
NEW = (
    "\tNPU ID                Chip ID               Chip Logic ID         Chip Phy-ID           Chip Name\n"
    "\t0                     0                     0                     8                     Ascend910\n"
    "\t0                     1                     1                     9                     Ascend910\n"
    "\t0                     2                     -                     -                     Mcu\n"
    "[WARNING]The driver package may not be completely installed\n"
)


@pytest.mark.parametrize(("table", "there"), [(OLD, {0, 1}), (NEW, {8, 9}), ("", None), ("dcmi failed\n", None)])
def test_the_table_of_npu_smi(table, there):
    assert ascend.mapped(table) == there


def test_a_table_of_sixteen_cards_is_kept_whole():
    rows = "".join(NEW.splitlines(keepends=True)[1].replace("  8  ", f"  {i}  ") for i in range(64))
    assert len(NEW + rows) < ascend._KEPT


@pytest.fixture
def npu_smi(tmp_path, monkeypatch):
    """Puts a script into npu-smi's place, and takes the library away."""
    monkeypatch.setattr(ascend, "LIBRARIES", ("/nonexistent/libdcmi.so",))
    monkeypatch.setattr(ascend, "_PROGRAM_FOLDERS", "")

    def put(text):
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        path = tmp_path / "npu-smi"
        path.write_text(text)
        path.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return put


async def test_without_the_library_npu_smi_is_asked(npu_smi):
    npu_smi(f'#!/bin/sh\n[ "$*" = "info -m" ] || exit 9\ncat <<END\n{OLD}END\n')
    answers = await ask(0, 1, 3)
    assert answers[0] == answers[1] == Answer(Code.CARDS_OK, "listed by npu-smi")
    assert answers[3] == Answer(Code.CARDS_NO_ANSWER, "not among the cards that npu-smi lists (2)")


async def test_with_neither_the_library_nor_npu_smi(npu_smi):
    answer = (await ask(0))[0]
    assert answer.code is Code.CARDS_LIBRARY_MISSING and "neither libdcmi.so nor npu-smi" in answer.text


async def test_an_npu_smi_that_fails(npu_smi):
    npu_smi("#!/bin/sh\necho >&2\necho 'dcmi model initialized failed, ret is -8020' >&2\nexit 1\n")
    answer = (await ask(0))[0]
    assert answer.code is Code.CARDS_DRIVER_FAILED
    assert answer.text.endswith("npu-smi info -m ended with 1: dcmi model initialized failed, ret is -8020")


async def test_an_npu_smi_that_cannot_be_executed(npu_smi):
    npu_smi("#!/nonexistent/sh\n")
    assert (await ask(0))[0].code is Code.CARDS_NOT_TOLD


def test_output_that_is_no_table_says_nothing_against_a_card():
    answers = ascend.judge_mapping("npu-smi", Ended(0, b"\xff\n", b"", False), (0,))
    assert answers[0].code is Code.CARDS_NOT_TOLD
