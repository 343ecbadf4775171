import json
import time

import pytest

from muster.supervisors.system import settings_file
from muster.supervisors.system.settings_file import LogSettings, SettingsFile, SupervisorSettings


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, LogSettings()),
        (b"", LogSettings()),
        (b"{", LogSettings()),
        (b"\xff", LogSettings()),
        (b"[]", LogSettings()),
        (b'{"logs": []}', LogSettings()),
        (b'{"logs": {"max_file_bytes": 7}}', LogSettings(max_file_bytes=7)),
        (b'{"logs": {"max_file_bytes": -1, "max_job_bytes": 9}}', LogSettings(max_job_bytes=9)),
        (b'{"logs": {"max_file_bytes": true, "max_job_bytes": "9"}}', LogSettings()),
        (b'{"logs": {"max_file_bytes": 0, "of_later": 3}, "later": 1}', LogSettings(max_file_bytes=0)),
    ],
)
def test_what_is_missing_or_damaged_is_as_by_default(tmp_path, content, expected):
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_bytes(content)
    assert SettingsFile(path).now.logs == expected


def test_a_file_of_1_gib_and_no_limit_for_a_job_by_default():
    assert LogSettings() == LogSettings(1 << 30, 0)


def test_what_is_written_is_read_within_a_second(tmp_path, monkeypatch):
    path, now = tmp_path / "settings.json", [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = SettingsFile(path)
    assert found.now.logs == LogSettings()
    settings_file.write(path, SupervisorSettings(LogSettings(5, 6)))
    assert found.now.logs == LogSettings(), "the file is not looked at all the time"
    now[0] += settings_file.LOOK_S
    assert found.now.logs == LogSettings(5, 6)
    path.unlink()
    assert found.now.logs == LogSettings(5, 6)
    now[0] += settings_file.LOOK_S
    assert found.now.logs == LogSettings()


def test_it_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "settings.json"
    settings_file.write(path, SupervisorSettings(LogSettings(5, 6)))
    inode = path.stat().st_ino
    settings_file.write(path, SupervisorSettings(LogSettings(7, 8)))
    assert path.stat().st_ino != inode
    assert json.loads(path.read_bytes()) == {
        "logs": {"max_file_bytes": 7, "max_job_bytes": 8, "rotate_for_bytes": 0},
        "flight_recorder": False,
        "spawn_program": True,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("said", [True, False])
def test_whether_flight_recorders_are_switched_on(tmp_path, said):
    path = tmp_path / "settings.json"
    settings_file.write(path, SupervisorSettings(flight_recorder=said))
    assert SettingsFile(path).now == SupervisorSettings(flight_recorder=said)
    path.write_text('{"flight_recorder": 1}')
    assert SettingsFile(path).now == SupervisorSettings()


@pytest.mark.parametrize("said", [True, False])
def test_whether_the_program_creates_processes(tmp_path, said):
    path = tmp_path / "settings.json"
    settings_file.write(path, SupervisorSettings(spawn_program=said))
    assert SettingsFile(path).now == SupervisorSettings(spawn_program=said)
    path.write_text('{"spawn_program": 0}')
    assert SettingsFile(path).now == SupervisorSettings(), "what it does not say in its own words is not off"
