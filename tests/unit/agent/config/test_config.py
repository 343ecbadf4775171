"""The configuration: defaults, refusals, reload."""

import os
from pathlib import Path

import anyio
import pytest

from muster.agent.config import loading, schema
from muster.agent.config.live_config import LiveConfig
from muster.agent.config.schema import Config
from muster.agent.errors import StartupError
from muster.probes.checks.check_settings import CheckSettings
from muster.probes.settings import settings_of
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS
from muster.supervisors.paths import Root
from tests.small_disk import needs_root


def parsed(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "musterd.toml"
    path.write_text(text)
    return loading.load(path)


def refusal(text: str, tmp_path: Path) -> str:
    with pytest.raises(StartupError) as caught:
        parsed(text, tmp_path)
    assert str(tmp_path / "musterd.toml") in str(caught.value)
    return str(caught.value)


def test_an_empty_file_has_every_default(tmp_path: Path):
    loaded = parsed("", tmp_path)
    assert loaded == Config()
    assert loaded.jobs.grace_steps == DEFAULT_GRACE_STEPS
    assert loaded.socket.mode == 0o660


def test_keys_are_taken_over(tmp_path: Path):
    loaded = parsed(
        '[jobs]\nmax_jobs = 3\ngrace_steps = [1, 0.5]\n[checks]\npolicy = "warn"\nshm_min_gb = 2\n', tmp_path
    )
    assert loaded.jobs.max_jobs == 3
    assert loaded.jobs.grace_steps == (1.0, 0.5)
    assert loaded.checks.policy == "warn"
    assert loaded.checks.shm_min_gb == 2


def test_the_checks_have_the_probes_own_names_and_defaults():
    ours = dict(settings_of(schema.ChecksTable))
    assert ours.pop("policy").default == "enforce"
    assert ours == settings_of(CheckSettings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[jobs]\nmax_job = 3\n", "unknown key 'jobs.max_job': did you mean 'jobs.max_jobs'?"),
        ("[job]\nmax_jobs = 3\n", "unknown key 'job': did you mean 'jobs'?"),
        ("max_jobs = 3\n", "unknown key 'max_jobs': did you mean 'jobs.max_jobs'?"),
        ("[daemon]\nmax_jobs = 3\n", "unknown key 'daemon.max_jobs': did you mean 'jobs.max_jobs'?"),
        ("jobs = 3\n", "jobs: must be a table"),
        ('[jobs]\nmax_jobs = "many"\n', "jobs.max_jobs: 'many': must be a whole number, 1 to 1000000"),
        ("[jobs]\nmax_jobs = 0\n", "jobs.max_jobs: 0: must be a whole number, 1 to 1000000"),
        ("[jobs]\nmax_jobs = 1.0\n", "jobs.max_jobs: 1: must be a whole number"),
        ("[jobs]\nmax_jobs = true\n", "jobs.max_jobs: true: must be a whole number"),
        ("[jobs]\nkeep_ended_days = inf\n", "jobs.keep_ended_days: inf: must be a number, 0 to 3660 (days)"),
        (
            "[cards]\ndriver_deadline_s = 0\n",
            "cards.driver_deadline_s: 0: must be a number above 0, at most 600 (seconds)",
        ),
        ("[telemetry]\nhelpers = [1]\n", "telemetry.helpers: [1]: must be a list of texts"),
        ("[telemetry]\nenabled = 1\n", "telemetry.enabled: 1: must be true or false"),
        ("[hang]\nlow_percent = 96\n", "hang.high_percent: 95: must be more than low_percent, which is 96"),
        ('[notify]\nwebhook = ["https://h/letmein"]\n', "notify.webhook: must be an http or https URL, or empty"),
        ("[jobs]\ngrace_steps = []\n", "jobs.grace_steps"),
        ("[jobs]\ngrace_steps = [-1]\n", "jobs.grace_steps: [-1]"),
        ("[jobs]\ngrace_steps = [50000, 50000]\n", "jobs.grace_steps"),
        ('[daemon]\nlog_level = "loud"\n', "daemon.log_level"),
        ('[socket]\nmode = "0999"\n', "socket.mode"),
        ('[socket]\nmode = "0060"\n', "socket.mode"),
        ("[checks]\ndeadline_s = 0\n", "checks.deadline_s"),
        ('[checks]\nulimits = "sometimes"\n', "checks.ulimits"),
        ("[jobs\n", "is not TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "musterd.toml: is nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path):
    assert said in refusal(text, tmp_path)


@pytest.mark.parametrize("text", ['"0600"', '"600"', "0o600"])
def test_a_mode_may_be_text_or_octal(text: str, tmp_path: Path):
    assert parsed(f"[socket]\nmode = {text}\n", tmp_path).socket.mode == 0o600


def test_a_named_file_must_exist_and_the_default_need_not(tmp_path: Path):
    root = Root.under(tmp_path)
    assert LiveConfig(root, None).now == Config()
    with pytest.raises(StartupError, match="cannot read"):
        LiveConfig(root, tmp_path / "none.toml")


def test_the_default_file_is_that_of_the_root(tmp_path: Path):
    assert Root.under(tmp_path).config == tmp_path / "musterd.toml"
    assert Root.system().config == Path("/etc/muster/musterd.toml")


def test_reload_takes_a_good_file_and_keeps_the_old_one_before_a_bad(tmp_path: Path):
    path = tmp_path / "musterd.toml"
    path.write_text("[jobs]\nmax_jobs = 1\n")
    live = LiveConfig(Root.under(tmp_path), None)
    path.write_text("[jobs]\nmax_jobs = 2\n")
    anyio.run(live.reload)
    assert live().jobs.max_jobs == 2
    assert live.trouble == ""
    path.write_text("[jobs]\nmax_jbs = 3\n")
    anyio.run(live.reload)
    assert live().jobs.max_jobs == 2
    assert "max_jbs" in live.trouble
    path.write_text('[socket]\nmode = "0600"\n')
    anyio.run(live.reload)
    assert "socket.mode" in live.trouble
    assert "started again" in live.trouble


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path):
    path = tmp_path / "musterd.toml"
    path.write_text("[jobs]\nmax_jobs = 1\n")
    live = LiveConfig(Root.under(tmp_path), None)
    path.write_text("[jobs]\nmax_jobs = 2\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(StartupError, match=rf"{path}: belongs to .*uid 65534.*trusts only root.*chown 0 {path}"):
        LiveConfig(Root.under(tmp_path), None)
    anyio.run(live.reload)
    assert live().jobs.max_jobs == 1 and "uid 65534" in live.trouble


def test_a_file_that_everybody_may_write_to_is_refused(tmp_path: Path):
    path = tmp_path / "musterd.toml"
    path.touch()
    path.chmod(0o646)
    with pytest.raises(StartupError, match=rf"mode 0646 lets everybody write: chmod o-w {path}$"):
        LiveConfig(Root.under(tmp_path), path)
