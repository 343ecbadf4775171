"""What TorchX loads: the scheduler `muster`."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, List  # noqa: UP035

from torchx.runner import config
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, InvalidRunConfigException, Role, runopts
from torchx.workspace.dir_workspace import DirWorkspaceMixin

from muster.client import ask_together
from muster.client.gang import FINAL
from muster.torchx import submitted
from muster.torchx.app_jobs import AppJobs, FoundApp, FoundPart, NoAnswer, NotCancelled, NotSubmitted
from muster.torchx.app_logs import lines
from muster.torchx.app_parts import AppRequest, app_request, shown
from muster.torchx.app_status import first_failed, response, state
from muster.torchx.daemon_hosts import KnownHosts, WrongOption, chosen
from muster.torchx.daemons import GLANCE_S, LOOK_S, DaemonPool, named
from muster.v1 import job_pb2

#: Seconds for which the status of an app that has just failed waits for the cause of its end.
EXPLAINED_S = 5
#: Seconds after its end within which that may still come.
_FRESH_S = 30

_NO_HOSTS = "no daemon is known: name them as `hosts` in .torchxconfig, section [muster], or in MUSTER_HOSTS"
_CANCELLED = "torchx: cancelled"
_log = logging.getLogger(__name__)

_WORDS = List[str]  # noqa: UP006  # TorchX compares the type of an option with this very one
#: Name, type and help of each run option.
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    (
        "hosts",
        _WORDS,
        "Daemons in the order of the replicas, one each: HOST:PORT or unix:PATH; or NAME@ADDRESS, where other nodes "
        "reach the host at NAME. Default: MUSTER_HOSTS, else the daemon of this machine.",
    ),
    ("tls_ca", str, "Authority that signed the daemons' certificates, for HOST:PORT. Default: MUSTER_TLS_CA."),
    ("tls_cert", str, "Certificate of this client, for HOST:PORT. Default: MUSTER_TLS_CERT."),
    ("tls_key", str, "Key of that certificate, for HOST:PORT. Default: MUSTER_TLS_KEY."),
    (
        "workdir",
        str,
        "Working folder of the replicas, an absolute path on the nodes. Default: an image that is a path, else "
        "job_dir, else the present folder if all hosts are unix sockets, else a folder of the job.",
    ),
    ("path", _WORDS, "Folders on the nodes that come first in the PATH of the replicas, such as /opt/venv/bin."),
    ("user", str, "User on the nodes to run as. Default: the daemon's own user."),
    (
        "app_id",
        str,
        "Id of the app: a second submit of the same app with the same id starts nothing anew. Default: the app's name "
        "with random letters.",
    ),
    (
        "job_dir",
        str,
        "Folder to make and to copy the workspace to, on a file system that all nodes share. Must not exist yet.",
    ),
    ("max_runtime_s", int, "Ends the app when it has run for this many seconds."),
    ("grace_s", int, "Seconds from SIGTERM to SIGKILL when a replica is stopped. Default: the daemon's."),
    ("on_hang", str, "What a daemon does about a replica that hangs: notify, stop or restart. Default: notify."),
    ("skip_check", bool, "Start without the checks of the node."),
    ("enforce_resources", bool, "Limit each replica to the memMB and cpu of its role, by a cgroup."),
    ("ignore_image", bool, "Run an app whose image is a container's, without the container."),
)


class MusterScheduler(DirWorkspaceMixin, Scheduler):
    """Runs each replica of an app as a job of one muster daemon, in the order of the hosts."""

    def __init__(self, session_name: str) -> None:
        super().__init__("muster", session_name)
        self._pool = DaemonPool()
        self._jobs = AppJobs(self._pool)
        #: Apps that this process submitted, and where they went. Only their ends does it act on.
        self._mine: dict[str, KnownHosts] = {}
        #: What was last said of apps whose replicas could not all be stopped.
        self._warned: dict[str, str] = {}

    def close(self) -> None:
        """Closes the connections. Apps go on."""
        self._pool.close()

    # --- options -----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        opts = runopts()
        for name, type_, text in _OPTIONS:
            opts.add(name, type_=type_, help=text, default=False if type_ is bool else None)
        return opts

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Copies the workspace to `job_dir`, if one is given, which becomes the role's image and so its folder."""
        try:
            super().build_workspace_and_update_role(role, workspace, cfg)
        except OSError as error:
            why = error.strerror or error
            text = f"cannot make job_dir {cfg.get('job_dir')}: {why}: name a folder that does not exist"
            raise _wrong("job_dir", text, cfg) from None

    def _validate(self, app: AppDef, scheduler: str, cfg: object = None) -> None:
        """Nothing: a role without a resource runs without cards; `_submit_dryrun` looks at all else."""

    # --- submit ------------------------------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> "AppDryRunInfo[AppRequest]":
        try:
            request = app_request(app, cfg, chosen(cfg, self._settings), self.session_name)
        except WrongOption as error:
            raise _wrong(error.option, str(error), cfg) from None
        return AppDryRunInfo(request, shown)

    def schedule(self, dryrun_info: "AppDryRunInfo[AppRequest]") -> str:
        """Starts all replicas, or none. Scheduling the same request again starts nothing anew."""
        request = dryrun_info.request
        for remark in request.remarks:
            _log.warning("%s", remark)
        noted = submitted.recall(request.app_id) is not None
        submitted.note(request.app_id, request.known)  # before: what a kill leaves behind can be cancelled
        try:
            self._jobs.start(request)
        except (NotSubmitted, WrongOption) as error:
            if not noted and not getattr(error, "left", False):
                submitted.forget(request.app_id)
            if isinstance(error, WrongOption):
                raise _wrong(error.option, str(error), {}) from None
            raise
        self._mine[request.app_id] = request.known
        return str(request.app_id)

    # --- look --------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """None if the daemons do not know the app. Raises NoAnswer if none of them answers."""
        app = self._find(app_id)
        if not app.parts:
            if app_id in self._mine and app.silent:  # it was started; who waits for it goes on waiting
                text = f"no answer from {named(app.silent)}"
                return DescribeAppResponse(app_id=app_id, state=AppState.UNKNOWN, msg=text)
            if app.silent:
                raise NoAnswer(f"{app_id}: {'; '.join(f'{host.address}: {why}' for host, why in app.silent.items())}")
            return None
        if app_id in self._mine:
            self._end_the_rest(app)
        if state(app) is AppState.FAILED:
            app = self._explained(app)
        return response(app)

    def list(self, cfg: object = None) -> "List[ListAppResponse]":  # noqa: UP006
        """The apps of all daemons that are named, of any submitter; the newest first."""
        known = self._chosen()
        everywhere = [known] if known.hosts else submitted.recall_all()
        if not everywhere:
            raise NoAnswer(_NO_HOSTS)
        apps, silent = self._jobs.find_all(everywhere)
        for host, why in silent.items():
            _log.warning("%s is not listed: %s", host.address, why)
        if silent and len(silent) == len({host.address for each in everywhere for host in each.hosts}):
            raise NoAnswer(f"no daemon answers: {'; '.join(f'{host.address}: {why}' for host, why in silent.items())}")
        return [ListAppResponse(app_id=app.app_id, state=state(app)) for app in apps]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The output of a replica. Raises ValueError for a stream that muster does not keep apart, and for a replica
        that does not exist."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError(
                f"muster keeps stdout and stderr in one log: use `combined` instead of `{Stream(streams).value}`"
            )
        app = self._find(app_id)
        part = next((part for part in app.parts if (part.role, part.replica) == (role_name, k)), None)
        if part is None:
            there = ", ".join(f"{part.role}/{part.replica}" for part in app.parts) or "none"
            unknown = f"; no answer from {named(app.silent)}" if app.silent else ""
            raise ValueError(f"{app_id} has no replica {role_name}/{k}: known are {there}{unknown}")
        found = self._output(part, since, until, should_tail)
        return filter_regex(regex, found) if regex else found

    def _output(
        self, part: FoundPart, since: datetime | None, until: datetime | None, should_tail: bool
    ) -> Iterator[str]:
        """Holds this object, and with it the connection: of two threads that ask a runner for a scheduler at once, one
        is given an object that nobody else keeps."""
        client = self._pool.client(part.host, part.tls)
        yield from lines(client, part.job.job_id, since, until, should_tail)

    # --- cancel ------------------------------------------------------------------------------------------------------

    def cancel(self, app_id: str) -> None:
        """Does nothing if the app does not exist. Raises NotCancelled, NoAnswer."""
        self._cancel_existing(app_id)  # finds the app itself: a daemon that hangs is waited for once

    def _cancel_existing(self, app_id: str) -> None:
        """Asks all replicas to stop, and does not wait for their end. Those at a daemon that may be restarting come
        last, so that it holds up none of the others."""
        app = self._find(app_id)
        if app.silent:
            with suppress(NotCancelled):
                self._jobs.stop(app, _CANCELLED)
            app = self._find(app_id, LOOK_S)
        self._jobs.stop(app, _CANCELLED)

    def _end_the_rest(self, app: FoundApp) -> None:
        """A replica that has ended, other than well, does not come back: stops the others, which wait for it. Only the
        process that submitted the app does so: a mere look changes nothing."""
        failed = first_failed(app.parts)
        if failed is None or all(part.job.state in FINAL or _stopping(part) for part in app.parts):
            return
        try:
            self._jobs.stop(app, f"torchx: {failed.role}/{failed.replica} failed")
        except NotCancelled as error:
            if self._warned.get(app.app_id) != str(error):  # TorchX looks each second
                self._warned[app.app_id] = str(error)
                _log.warning("%s", error)

    # --- daemons -----------------------------------------------------------------------------------------------------

    def _find(self, app_id: str, patience_s: float = GLANCE_S) -> FoundApp:
        known = self._mine.get(app_id) or submitted.recall(app_id) or self._chosen()
        if not known.hosts:
            raise NoAnswer(f"{app_id}: {_NO_HOSTS}")
        app = self._jobs.find(app_id, known, patience_s)
        app.submitted_here = app_id in self._mine
        return app

    def _explained(self, app: FoundApp) -> FoundApp:
        """With the cause of the end, which comes within seconds of it."""
        late = {}
        for number, part in enumerate(app.parts):
            job = part.job
            if job.state == job_pb2.JOB_STATE_FAILED and not job.verdict.explained and _age_s(part) < _FRESH_S:
                asked = job_pb2.WaitRequest(job_id=job.job_id)
                asked.timeout.FromSeconds(EXPLAINED_S)
                client = self._pool.client(part.host, part.tls)
                late[number] = lambda s, client=client, asked=asked: client.jobs.Wait.future(asked, timeout=s)
        answers = ask_together(late, 0.0)
        parts = [
            FoundPart(part.host, part.tls, answers[i].job) if hasattr(answers.get(i), "job") else part
            for i, part in enumerate(app.parts)
        ]
        return replace(app, parts=parts)

    def _chosen(self) -> KnownHosts:
        return chosen({}, self._settings)

    def _settings(self) -> Mapping[str, object]:
        """The section of this scheduler in .torchxconfig."""
        found: dict[str, Any] = {}
        config.apply(self.backend, found)
        return found


def _stopping(part: FoundPart) -> bool:
    return part.job.state == job_pb2.JOB_STATE_STOPPING


def _age_s(part: FoundPart) -> float:
    return datetime.now().timestamp() - part.job.ended_at.ToNanoseconds() / 1e9


def create_scheduler(session_name: str, **_: object) -> MusterScheduler:
    """What the entry point names. TorchX passes its TORCHX_* variables along, which say nothing to muster."""
    return MusterScheduler(session_name)


def _wrong(option: str, text: str, cfg: Mapping[str, Any]) -> InvalidRunConfigException:
    """For TorchX, whose command prints the option's name and leaves out what is wrong with it."""
    _log.error("%s: %s", option, text)
    return InvalidRunConfigException(text, option, cfg)
