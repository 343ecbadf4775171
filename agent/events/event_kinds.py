"""Every kind of event, when muster records it, and its attributes: docs/reference/events.md is made from this table."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class EventKind(NamedTuple):
    """When muster records the event, and the attributes that it then has, as text."""

    when: str
    attributes: str = ""


_SUPERVISOR = "no successor, or does not answer and was replaced; of many deaths one a minute"
_STEPS = "`code`, `inputs`, `requirements`, `pre_start`, `outputs` or `epilog`"
_HANG = "`verdict`, `kind`, `ranks`, `confidence`, `attempt`"

KINDS: Mapping[str, EventKind] = MappingProxyType(
    {
        "job.accepted": EventKind("the job is recorded on disk", "`ranks`, `by`"),
        "job.waiting": EventKind("the job's rank table is not complete yet"),
        "job.planned": EventKind(
            "the rank table is complete, so muster knows the job's place", "`node_rank`, `world_size`"
        ),
        "job.checking": EventKind(
            "the checks before the start begin; again after the pause where a node was not fit and restarts are left"
        ),
        "job.checked": EventKind("the checks have ended", "`ok`"),
        "job.preparing": EventKind("an attempt begins", "`attempt`"),
        "job.services": EventKind("the services that run beside the ranks were started", "`pids`"),
        "job.service_ended": EventKind("one of them has ended", "`service`, `outcome`, `pid`"),
        "job.step": EventKind(f"{_STEPS} begins", "`step`, `pid`"),
        "job.step_ended": EventKind(f"{_STEPS} has ended", "`step`, `outcome`, `exit_code`"),
        "job.running": EventKind("all ranks have started", "`attempt`"),
        "rank.exited": EventKind(
            "a rank has ended; `rank` says which",
            "`outcome`, `device`, `pid`, and `exit_code` or `signal` and `core_dumped`",
        ),
        "job.stopping": EventKind(
            "muster ends the ranks", "`cause` (`requested`, `max_runtime`, `rank_failed`, `leftovers`, `served`), `by`"
        ),
        "job.restarting": EventKind(
            "an attempt has failed, and another follows",
            "`attempt` (the next), `exit_code` (of the attempt that failed)",
        ),
        "job.ended": EventKind(
            "the job has ended",
            "`state`, `exit_code`, `first_failed_rank`, `reason` (`TIMED_OUT`), "
            "`faulty_node` (another node, to be isolated)",
        ),
        "job.explained": EventKind(
            "muster knows the cause of a job's failure, seconds after its end; again if a later fact changes it",
            "`state`, `recommendation`, `reason`, `cause_kind`, `confidence`, `signature`, "
            "`first_failed_rank` (if the cause is in another rank than the one that ended first), "
            "`worker` (of a launcher: how it ended), `was` (before)",
        ),
        "job.warning": EventKind("the job has a problem that an operator should look at"),
        "job.output_lost": EventKind(
            "muster cannot write output: at the first lost byte, while it lasts (after 1, 2, 4, ... minutes), and at "
            "the end",
            "`bytes` (since the event before), `total`, `since`, `error`, `open`",
        ),
        "job.taken_over": EventKind("a supervisor died, and another one follows the job", "`pid`"),
        "job.supervisor_died": EventKind(f"a supervisor died, has {_SUPERVISOR}", "`how`, `error`, `count`"),
        "job.supervisor_stuck": EventKind(
            "for 10 s a supervisor is stopped (SIGSTOP) or hangs in the kernel; its ranks' output waits, `stop` works",
            "`pid`, `state`: `stopped`, `traced`, `hangs`",
        ),
        "job.supervisor_works": EventKind("the supervisor works again", "`pid`"),
        "job.exec": EventKind(
            "a command in a rank begins; `rank` says which", "`session`, `command`, `by`, `tty`, `pid`"
        ),
        "job.exec_ended": EventKind(
            "a command in a rank has ended, and its first client has received that", "`session`, `exit_code`"
        ),
        "job.signalled": EventKind(
            "a caller had muster send a signal to ranks; without `force` at most one event a minute of each signal",
            "`signal`, `ranks` (as in `0-3,7`), `by`; `force` and `passed_on` where it was",
        ),
        "job.suspected_hang": EventKind("the verdict of the hang rule is SUSPECT", _HANG),
        "job.hung": EventKind(
            "the verdict of the hang rule is HUNG; again once it is sure enough to act on (`action_confidence`)", _HANG
        ),
        "job.driver_hang": EventKind("the verdict of the hang rule is DRIVER_HANG", _HANG),
        "job.recovered": EventKind(
            "the job works again after a verdict of the hang rule, or does not hang after all", _HANG
        ),
        "job.hang_not_acted": EventKind(
            "muster left a job that hangs alone: the confidence is too low",
            "`action`, `confidence`, `action_confidence`",
        ),
        "job.slow_rank": EventKind(
            "a rank of a running job is SLOW: its peers wait for it; again when other ranks are",
            "`ranks`, `confidence`, `attempt`",
        ),
        "job.slow_rank_cleared": EventKind("the job no longer has a SLOW rank", "`attempt`"),
        "job.cards_held": EventKind("the job has ended, and a process is still on its cards"),
        "job.cards_free": EventKind("the cards of the ended job are free"),
        "job.collected": EventKind("the record of an ended job was removed", "`state`, `why`"),
        "logs.removed": EventKind("log files of a job were removed", "`bytes`, `why`"),
        "logs.uploaded": EventKind("a program has taken the files of an ended job", "`files`, `bytes`, `tries`"),
        "logs.upload_failed": EventKind("the program has not taken them, for a new reason", "`tries`"),
        "node.started": EventKind("the daemon has started"),
        "node.stopping": EventKind("the daemon ends"),
        "node.nursery_died": EventKind(f"the nursery died, has {_SUPERVISOR}", "`how`, `error`, `count`"),
        "node.audit_lost": EventKind(
            "`audit.log` lacks lines, because the daemon could not write it; at most one event a minute",
            "`lines`, `total`",
        ),
        "node.events_lost": EventKind(
            "events are lost, because the disk did not take them and too many waited in memory", "`events`"
        ),
        "node.condition": EventKind("a condition of the node began or changed", "`status`, `was`"),
        "node.condition_cleared": EventKind("a condition of the node has ended", "`was`"),
        "node.event": EventKind("the kernel, or the driver of a card, reported something"),
        "node.card_accepted": EventKind(
            "an operator accepted that the cards differ from those that the node had", "`code`, `device`, `by`"
        ),
        "node.drained": EventKind("an operator drained the node", "`by`, `reason`"),
        "node.tested": EventKind(
            "active tests of the free cards of a drained node have ended (`in_drain` of [active])", "`cards`, `bad`"
        ),
        "node.reset": EventKind(
            "a step of the reset of a card has ended, and at last the reset itself",
            "`card`, `uuid`, `step`, `status` (`done`, `skipped`, `failed`, `completed`, `given up`), `by`",
        ),
        "node.undrained": EventKind("an operator returned the node to service", "`by`, `reason`"),
    }
)
