"""Metrics of a real daemon: over its port, its socket and its file, with fake cards, and read by a real Prometheus."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.v1 import job_pb2, node_pb2, probe_pb2
from tests.conftest import BIN, Daemon, eventually, running
from tests.fakes import FakeCards
from tests.integration.driver_events import until_heard
from tests.ports import free_port

DOCS = Path(__file__).parents[3] / "docs"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
MakeDaemon = Callable[..., Daemon]


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.host)  # closed with the connection


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def scrape(path: Path) -> Samples:
    """The page behind a unix socket; nothing while there is none."""
    with closing(UnixConnection(str(path))) as connection:
        try:
            connection.request("GET", "/metrics")
        except OSError:
            return {}
        answer = connection.getresponse()
        body = answer.read().decode()
        assert answer.status == 200, body
        return samples(body)


def value(found: Samples, name: str, /, **labels: str) -> float | None:
    """Of the one sample that has at least these labels."""
    asked = labels.items()
    matching = [n for (found_name, given), n in found.items() if found_name == name and asked <= dict(given).items()]
    assert len(matching) <= 1, (name, labels)
    return matching[0] if matching else None


def test_as_many_warnings_as_the_node_shows(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """A part of the daemon that `muster node` asks and the page does not would alert nobody."""
    path = tmp_path / "metrics.sock"
    daemon = make_daemon(f'[metrics]\nlisten = "unix:{path}"\n')
    eventually(lambda: value(scrape(path), "muster_warnings") == 0)
    daemon.kill()
    daemon.root.reset.write_text("{")
    daemon.start()
    (warning,) = daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.warnings
    assert "reset.json" in warning
    eventually(lambda: value(scrape(path), "muster_warnings") == 1)


def test_jobs_that_run_and_end(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    daemon = make_daemon(f'[metrics]\nlisten = "unix:{path}"\n')
    job = daemon.run("sh", "-c", "exec sleep 1000", ranks=2)
    daemon.until_running(job.job_id)
    found = scrape(path)
    assert value(found, "muster_jobs", state="RUNNING") == 1
    assert value(found, "muster_ranks_running") == 2
    eventually(lambda: (value(scrape(path), "muster_loop_lag_seconds_count") or 0) > 0)
    assert value(found, "muster_jobs_ended_total", state="STOPPED", recommendation="NONE") == 0
    daemon.stop(job.job_id, grace_s=0)
    daemon.wait(job.job_id)
    daemon.wait(daemon.run("sh", "-c", "exit 3").job_id)
    found = scrape(path)  # what has happened is on the page at once
    assert value(found, "muster_jobs", state="RUNNING") == 0
    assert value(found, "muster_jobs_ended_total", state="STOPPED", recommendation="NONE") == 1
    assert value(found, "muster_jobs_ended_total", state="FAILED", recommendation="FAIL") == 1
    assert value(found, "muster_ranks_ended_total", outcome="STOPPED") == 2
    assert value(found, "muster_node_accepts_jobs") == 1
    assert daemon.cli("node", "drain", "a", "new", "disk").returncode == 0
    found = scrape(path)
    assert value(found, "muster_node_drained") == 1 and value(found, "muster_node_accepts_jobs") == 0


def test_what_ends_while_no_daemon_is_there_is_counted(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path, gate = tmp_path / "metrics.sock", tmp_path / "gate"
    daemon = make_daemon(f'[metrics]\nlisten = "unix:{path}"\n')
    job = daemon.run("sh", "-c", f"while ! [ -e {gate} ]; do sleep 0.05; done; exit 4")
    daemon.until_running(job.job_id)
    supervisor = daemon.supervisor_pid(job.job_id)
    daemon.kill()
    gate.touch()
    eventually(lambda: daemon.supervisor_pid(job.job_id) != supervisor, message="the supervisor has left")
    daemon.restart()
    assert daemon.wait(job.job_id).verdict.exit_code == 4
    found = eventually(lambda: scrape(path))  # the socket that the killed one left is taken over
    assert value(found, "muster_jobs_ended_total", state="FAILED", recommendation="FAIL") == 1


def test_cards(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 2) as cards:
        cards[0].util, cards[1].util = 42, 7
        daemon = make_daemon(
            f'[metrics]\nlisten = "unix:{path}"\ndcgm_names = true\n[telemetry]\nreadings_s = 0.1\nhealth_s = 0.1\n'
            '[cards]\ndriver_deadline_s = 2\n[health]\npolicy = "warn"\n',
            cards.env,
        )

        def shows(name: str, number: float | None, **labels: str) -> bool:
            return value(scrape(path), name, **labels) == number

        eventually(lambda: shows("muster_card_utilization_ratio", 0.42, card="0"))
        eventually(lambda: shows("DCGM_FI_DEV_GPU_UTIL", 7, gpu="1", UUID=cards[1].uuid))
        assert shows("muster_driver_up", 1, kind="nvidia")
        assert shows("muster_cards", 2, state="free")
        job = daemon.run("sleep", "1000", ranks=0, cards=job_pb2.CardRequest(count=1))
        assert shows("muster_cards", 1, state="leased")
        until_heard(daemon, cards, 0)
        cards.xid(1, 79)
        cards[1].lose()
        eventually(lambda: shows("muster_card_trouble", 1, card="1", trouble="LOST"))
        assert shows("muster_card_up", 0, card="1")
        # Each kind of reading goes with its own next failure.
        eventually(lambda: shows("muster_card_utilization_ratio", None, card="1"))
        eventually(lambda: shows("muster_card_up", 1, card="0"))
        eventually(lambda: shows("muster_xid_events_total", 1, card="1", xid="79"))

        def found_lost() -> bool:
            daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["gpu-lost"]), timeout=60)
            return shows("muster_check_status", 2, item="gpu-lost", device="card 1")

        eventually(found_lost)
        assert shows("muster_condition", 1, item="gpu-lost", device="card 1", status="CRITICAL")
        assert (value(scrape(path), "muster_conditions", status="CRITICAL") or 0) >= 1
        cards[0].hang()
        eventually(lambda: shows("muster_card_trouble", 1, card="0", trouble="HANG"))
        cards[0].clear()
        eventually(lambda: shows("muster_card_up", 1, card="0"))
        daemon.stop(job.job_id, grace_s=0)


def test_chips(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with FakeCards.for_test(tmp_path / "cards", "ascend", 2) as cards:
        cards[1].util = 55
        make_daemon(
            f'[metrics]\nlisten = "unix:{path}"\nnpu_names = true\n[telemetry]\nreadings_s = 0.1\nhealth_s = 0.1\n',
            cards.env,
        )
        eventually(lambda: value(scrape(path), "npu_chip_info_utilization", id="1") == 55)
        eventually(lambda: value(scrape(path), "npu_chip_info_health_status", id="0") == 1)
        found = scrape(path)
        assert value(found, "machine_npu_nums") == 2
        assert value(found, "muster_card_utilization_ratio", card="1") == 0.55
        assert (value(found, "npu_chip_info_hbm_total_memory", id="0") or 0) > 1024


def test_a_new_configuration_and_the_end(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    one, two, file = tmp_path / "1.sock", tmp_path / "2.sock", tmp_path / "muster.prom"
    daemon = make_daemon(f'[metrics]\nlisten = "unix:{one}"\n')
    assert scrape(one)
    daemon.config.write_text(f'[metrics]\nlisten = "unix:{two}"\ntextfile = "{file}"\n')
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: scrape(two) and file.exists() and not one.exists())
    assert value(samples(file.read_text()), "muster_node_drained") == 0
    assert daemon.kill(signal.SIGTERM) == 0
    assert not file.exists() and not two.exists()


def test_a_port_in_use_is_a_warning(make_daemon: MakeDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = make_daemon(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        shown = eventually(lambda: [line for line in daemon.cli("node").stdout.splitlines() if "metrics" in line])
        assert f"127.0.0.1:{port}" in shown[0]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('listen = "0.0.0.0:9835"', "metrics.listen: '0.0.0.0:9835': only a loopback address is allowed"),
        ('listen = "9835"', "metrics.listen: '9835': must be an address and a port"),
        ('textfile = "/var/lib/muster.txt"', "metrics.textfile: '/var/lib/muster.txt': must be an absolute path"),
    ],
)
def test_where_metrics_may_not_be_shown(tmp_path: Path, line: str, part: str) -> None:
    config = tmp_path / "musterd.toml"
    config.write_text(f"[metrics]\n{line}\n")
    command = [str(BIN / "musterd"), "--root", str(tmp_path), "--config", str(config), "--check-config"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 1 and part in refused.stderr


def test_a_daemon_that_shows_no_metrics_listens_nowhere(daemon: Daemon) -> None:
    fds = []
    for number in os.listdir(f"/proc/{daemon.pid}/fd"):
        with suppress(FileNotFoundError):  # it is at work, and opens and closes others meanwhile
            fds.append(os.readlink(f"/proc/{daemon.pid}/fd/{number}"))
    own = {fd.removeprefix("socket:[").removesuffix("]") for fd in fds if fd.startswith("socket:")}
    for table in ("tcp", "tcp6"):
        listening = {line.split()[9] for line in Path(f"/proc/net/{table}").read_text().splitlines() if " 0A " in line}
        assert not own & listening


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed (prometheus)")
def test_a_real_prometheus(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """It scrapes, takes every name, loads the rules, and a rule fires."""
    port, its_port = free_port(), free_port()
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 8) as cards:
        make_daemon(
            f'[metrics]\nlisten = "127.0.0.1:{port}"\ndcgm_names = true\nnpu_names = true\n'
            "[telemetry]\nreadings_s = 0.1\nhealth_s = 0.1\n",
            cards.env,
        )
        rules = (DOCS / "alerts.yml").read_text().replace("for: 1m", "for: 0s")
        (tmp_path / "alerts.yml").write_text(rules)
        (tmp_path / "prometheus.yml").write_text(
            f"global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 200ms}}\n"
            f'rule_files: ["{tmp_path}/alerts.yml"]\n'
            f'scrape_configs:\n- job_name: muster\n  static_configs: [{{targets: ["127.0.0.1:{port}"]}}]\n'
        )
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
        command.append(f"--web.listen-address=127.0.0.1:{its_port}")
        with running(command, stdout=sys.stderr, stderr=sys.stderr) as prometheus:

            def asked(what: str, **parameters: str) -> list[dict[str, Any]]:
                url = f"http://127.0.0.1:{its_port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
                try:
                    with urllib.request.urlopen(url, timeout=60) as answer:
                        data = json.load(answer)["data"]
                except OSError:
                    return []
                (kind,) = data.keys() & {"result", "activeTargets", "alerts"}
                found: list[dict[str, Any]] = data[kind]
                return found

            def firing() -> set[str]:
                return {x["labels"]["alertname"] for x in asked("alerts") if x["state"] == "firing"}

            try:
                for query in ("sum(muster_card_up) == 8", "muster_build_info == 1", "count(DCGM_FI_DEV_GPU_TEMP) == 8"):
                    eventually(partial(asked, "query", query=query), 60, query)
                # On a busy machine one scrape may take longer than its limit.
                eventually(lambda: [(it["health"], it["lastError"]) for it in asked("targets")] == [("up", "")])
                cards[3].lose()
                eventually(lambda: "MusterCardLost" in firing(), 60, "the rule fires")
            finally:
                prometheus.terminate()
