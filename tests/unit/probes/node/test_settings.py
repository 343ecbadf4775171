"""The settings of the checks: refused where they cannot be meant, the same in a file and on a command line."""

from dataclasses import fields

import pytest

from muster.agent.config.schema import ChecksTable, Config, HealthTable
from muster.probes.checks.precheck import CheckSettings
from muster.probes.node.node_settings import NodeSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_s", 0),
        ("deadline_s", float("nan")),
        ("deadline_s", 4000),
        ("root_min_gb", -1),
        ("root_min_gb", float("inf")),
        ("disk_free_percent", 101),
        ("ulimits", "sometimes"),
        ("cache_path", "cache"),
        ("shm_path", "/dev\0/shm"),
    ],
)
def test_settings_that_cannot_be_meant(field, value):
    with pytest.raises(ValueError, match=field):
        CheckSettings(**{field: value})


def test_the_table_of_a_file_has_each_setting_with_its_default():
    assert isinstance(ChecksTable(), CheckSettings)
    assert all(getattr(ChecksTable(), f.name) == f.default for f in fields(CheckSettings))


def test_settings_as_written_on_a_command_line():
    config = Config(checks=ChecksTable(root_min_gb=5)).with_written(
        {"cache_min_gb": "0.5", "nofile_min": "10", "shm_required": "true", "cache_path": "", "ulimits": "always"}
    )
    settings = config.checks
    assert (settings.cache_min_gb, settings.nofile_min, settings.shm_required) == (0.5, 10, True)
    assert (settings.cache_path, settings.ulimits, settings.root_min_gb) == ("", "always", 5)
    assert Config().with_written({}) == Config()


of_start = [f.name for f in fields(CheckSettings)]


@pytest.mark.parametrize("name", [*of_start, *(f.name for f in fields(NodeSettings))])
def test_every_setting_can_be_written(name):
    default = getattr(ChecksTable() if name in of_start else HealthTable(), name)
    written = str(default).lower() if isinstance(default, bool) else str(default)
    assert Config().with_written({name: written}) == Config()


def test_a_name_of_both_tables_is_meant_for_both():
    config = Config().with_written({"disk_free_percent": "7", "ib_down_s": "3"})
    assert config.checks.disk_free_percent == config.health.disk_free_percent == 7
    assert config.health.ib_down_s == 3


@pytest.mark.parametrize(
    ("name", "written", "words"),
    [
        ("rot_min_gb", "1", "unknown key 'rot_min_gb': did you mean 'root_min_gb'"),
        ("policy", "warn", "unknown key 'policy'"),
        ("shm_required", "yes", "shm_required: 'yes': must be true or false"),
        ("nofile_min", "1.5", "nofile_min: '1.5': must be a whole number"),
        ("root_min_gb", "big", "root_min_gb: 'big': must be a number"),
        ("root_min_gb", "nan", "root_min_gb: nan"),
        ("root_min_gb", "-1", "root_min_gb: -1"),
        ("ulimits", "sometimes", "infiniband, always or never"),
        ("cache_path", "cache", "must be an absolute path"),
        ("ib_down_s", "-1", "ib_down_s: -1"),
        ("xid_ignore", "x", "xid_ignore: 'x'"),
        ("npu_reset", "80E18402,nix", "npu_reset: 'nix': must be hexadecimal numbers with commas"),
    ],
)
def test_what_is_written_wrong(name, written, words):
    with pytest.raises(ValueError, match=words):
        Config().with_written({name: written})
