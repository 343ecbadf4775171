"""The command line without a daemon."""

import contextlib
import subprocess
import sys

import pytest

from muster.agent.cli import main
from muster.agent.cli.client.address import Address, parse
from muster.agent.cli.exits import CallFailed, Exit, NoDaemon, Why
from tests.conftest import BIN

HEAVY = ("grpc", "google.protobuf", "rich", "probes", "anyio", "asyncio", "msgspec")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_ROOT", str(tmp_path))
    monkeypatch.delenv("MUSTER_ADDRESS", raising=False)


def imported(*arguments: str) -> set[str]:
    """The heavy modules that a command line loads."""
    code = (
        "import sys; from muster.agent.cli import main; code = main.execute(sys.argv[1:]);"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["ps", "--nope"], ["completion", "bash"], ["run"]]
)
def test_help_completion_and_usage_errors_load_nothing_heavy(arguments):
    assert imported(*arguments) == set()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("ps --nope", "muster: no such option '--nope'"),
        ("why", "muster: missing argument 'JOB'"),
        ("stop", "muster: name the jobs, or give --all"),
        ("nonsense", "muster: no such command 'nonsense'"),
        ("list", "muster: no such command 'list': it is `muster ps`"),
        ("inspect x", "muster: no such command 'inspect': it is `muster status -o json JOB`"),
        ("describe x", "muster: no such command 'describe': it is `muster status JOB`, or of its end `muster why JOB`"),
        (
            "kill x",
            "muster: no such command 'kill': it is `muster stop JOB`, with SIGKILL at once `muster stop --grace 0",
        ),
        ("tail x", "muster: no such command 'tail': it is `muster logs -f --tail 20 JOB`"),
        ("run --nproc-per-node 8 -- x", "muster: no such option '--nproc-per-node': give --cards N"),
        ("run --nproc_per_node=8 -- x", "muster: no such option '--nproc_per_node': give --cards N"),
        ("start --master_addr a -- x", "muster: no such option '--master_addr': it is --master-addr"),
        ("run -m train", "muster: no such option '-m': give the interpreter, too: -- python -m MODULE"),
        ("run --role trainer train.py", "muster: no such option '--role': give --label role=NAME"),
        ("run --monitor_interval=5 train.py", "muster: no such option '--monitor_interval': muster sees at once"),
        ("run --local-addr a train.py", "muster: no such option '--local-addr': the other nodes reach the ranks"),
        ("run --run-path train.py", "muster: no such option '--run-path': give the interpreter, too: -- python FILE"),
        ("run --nnodes 2 -- x", "muster: no such option '--nnodes': give --nodes A,B with the names of all nodes"),
        ("run --nnodes=1:4 -- x", "muster: no such option '--nnodes': give --nodes A,B with the names of all nodes"),
        ("squeue", "muster: no such command 'squeue': it is `muster ps`"),
        ("scancel 7", "muster: no such command 'scancel': it is `muster stop JOB`"),
        ("version", "muster: no such command 'version': it is `muster --version`"),
        ("run --worker_num=8 -- x", "muster: no such option '--worker_num': give --cards N"),
        ("run --cluster_time_out=8 -- x", "muster: no such option '--cluster_time_out': give --env MSRUN_CLUSTER_TIME"),
        ("run --nproc 8 -- x", "muster: no such option '--nproc': give --cards N"),
        ("run --hostfile f -- x", "muster: no such option '--hostfile': give --nodes A,B and --node-rank I"),
        ("run -r 3 -- x", "muster: no such option '-r': each rank's output is kept in a file"),
        ("start -t 3 -- x", "muster: no such option '-t': for a time limit give --max-runtime DURATION"),
        ("start --num-processes 3 x", "muster: no such option '--num-processes': give --cards N"),
        ("ps --nnodes 2", "muster: no such option '--nnodes'"),
        ("statu", "muster: no such command 'statu'. (Did you mean one of: 'start', 'status'?)"),
    ],
)
def test_a_usage_error_is_an_error_of_muster_behind_the_usage(command, line, capfd):
    assert main.execute(command.split()) == Exit.USAGE
    told = capfd.readouterr()
    usage, hint, empty, said = told.err.splitlines()
    assert (told.out, empty) == ("", "")
    assert usage.startswith("Usage: muster") and hint.startswith("Try 'muster") and said.startswith(line)


@pytest.mark.parametrize(
    "command", ["ps", "node", "status x", "why x", "stop x", "wait x", "rm x", "logs x", "events", "exec x -- y"]
)
def test_no_daemon(command):
    # A process of its own: gRPC in this one may have something to say of loops that other tests have closed.
    done = subprocess.run([BIN / "muster", *command.split()], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (Exit.NO_DAEMON, "")
    assert done.stderr.startswith("muster: no daemon at unix:")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "nonsense",
        "run",
        "start",
        "run --ranks 0 -- true",
        "run --ranks 100000 -- true",
        "run --ranks two -- true",
        "run --cards 0 -- true",
        "run --job-id a/b -- true",
        "run --job-id .. -- true",
        f"run --job-id {'x' * 300} -- true",
        "run --env =x -- true",
        "run --env SURELY_NOT_SET_ANYWHERE -- true",
        "run --grace soon -- true",
        "run --nodes a,b -- true",
        "run --log-dir /tmp -- true",
        "run --label x -- true",
        "start -f /does/not/exist",
        "logs x --since never",
        "logs x -r -1",
        "ps -o xml",
        "top --record - -n 1",
        "top --record - -o json",
        "--root a --address unix:/b ps",
        "ps --address host:1234",
        "completion tcsh",
        "check nonsense",
        "check --config /does/not/exist",
    ],
)
def test_wrong_usage(command, capfd):
    assert main.execute(command.split()) == Exit.USAGE
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err


def test_root_and_address_may_stand_before_or_behind_the_command(tmp_path, capfd):
    for words in (["--root", str(tmp_path / "a"), "ps"], ["ps", "--root", str(tmp_path / "a")]):
        assert main.execute(words) == Exit.NO_DAEMON
        assert str(tmp_path / "a" / "run" / "muster.sock") in capfd.readouterr().err


def test_an_option_wins_over_the_environment(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("MUSTER_ADDRESS", "unix:/from/environment")
    main.execute(["ps"])
    assert "/from/environment" in capfd.readouterr().err
    main.execute(["ps", "--root", str(tmp_path)])
    assert "/from/environment" not in capfd.readouterr().err


@pytest.mark.parametrize("written", ["unix:/a/b", "unix:///a/b", "/a/b", "//a/b"])
def test_addresses(written):
    assert str(parse(written)).lstrip("/") == "a/b"


@pytest.mark.parametrize(
    "written", ["", "unix://a/b", "localhost", "host:", ":1", "host:0", "host:65536", "host:1x", "/" + "x" * 107, "/"]
)
def test_wrong_addresses(written):
    with pytest.raises(ValueError, match=r"'|:"):
        parse(written)


def test_a_socket_without_a_listener_is_distinguished_from_none(tmp_path):
    import socket

    with pytest.raises(NoDaemon) as caught:
        Address(tmp_path / "none").probe()
    assert caught.value.why is Why.ABSENT
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "dead"))
    with pytest.raises(NoDaemon) as caught:
        Address(tmp_path / "dead").probe()
    assert caught.value.why is Why.REFUSED


def test_a_socket_of_somebody_else_is_no_reason_to_bring_a_daemon(monkeypatch, capfd):
    def refuse(self: Address, timeout: float = 5.0) -> None:
        raise NoDaemon("permission denied", Why.FORBIDDEN)

    monkeypatch.setattr(Address, "probe", refuse)
    assert main.execute(["run", "--", "true"]) == Exit.NO_DAEMON
    assert "bringing" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("NOT_FOUND", "JOB_NOT_FOUND", 3),
        ("UNAVAILABLE", "", 4),
        ("UNAVAILABLE", "STARTING", 4),
        ("UNAVAILABLE", "SUPERVISOR_UNREACHABLE", 1),
        ("ALREADY_EXISTS", "JOB_ID_CONFLICT", 5),
        ("FAILED_PRECONDITION", "CARD_BUSY", 5),
        ("RESOURCE_EXHAUSTED", "TOO_MANY_JOBS", 5),
        ("INVALID_ARGUMENT", "", 2),
        ("DATA_LOSS", "JOURNAL_DAMAGED", 1),
        ("INTERNAL", "DEFECT", 1),
    ],
)
def test_exit_codes_of_failed_calls(status, reason, code):
    assert CallFailed(status, "text", reason).exit_code == code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell, capfd):
    assert main.execute(["completion", shell]) == 0
    assert "_MUSTER_COMPLETE" in capfd.readouterr().out


def test_completion_knows_events_that_are_not_named_yet(monkeypatch, capfd):
    monkeypatch.setenv("_MUSTER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "muster run --notify-events hung,s")
    monkeypatch.setenv("COMP_CWORD", "3")
    with contextlib.suppress(SystemExit):
        main.cli.main(prog_name="muster")
    said = [line.removeprefix("plain,") for line in capfd.readouterr().out.split()]
    assert said == ["hung,started", "hung,stopped", "hung,suspected_hang", "hung,slow_rank"]
