"""The checks that a job must pass before its first attempt starts: of its request, its cards and the node."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from muster.agent.config.schema import Config
from muster.agent.errors import NoRoom
from muster.agent.link.nursery_client import NurseryClient
from muster.agent.node.condition_rules import of_presence
from muster.agent.node.health import NodeHealth
from muster.probes.active.active_settings import ITEM
from muster.probes.cards.accelerator import SLOT
from muster.probes.cards.driver import Driver
from muster.probes.checks import precheck
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.supervisors.model.card_identity import numbers_now
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.states import Kind
from muster.supervisors.system import descriptors

#: What a ModelArts job sets to do without the pre-check.
_SKIP_VARIABLE = "MA_SKIP_IMAGE_DETECT"
_log = structlog.get_logger(__name__)


def left_out(spec: JobSpec, config: Config) -> str:
    """Why a job has no pre-check; empty: it has one."""
    if spec.skip_check:
        return "the request asked for it (skip_check)"
    if spec.env.get(_SKIP_VARIABLE) == "0":
        return f"the job's environment asks for it ({_SKIP_VARIABLE}=0)"
    if config.checks.policy == "off":
        return "this node does not check (checks.policy is off)"
    return ""


def without(why: str) -> list[Record]:
    """The records of a job that has no pre-check. Its supervisor says so in its log."""
    return [{"kind": Kind.CHECKING}, checked(True, [], why)]


def checked(ok: bool, results: list[dict[str, Any]], skipped: str) -> Record:
    """The record of a pre-check."""
    return {"kind": Kind.CHECKED, "ok": ok, "results": results, "skipped": skipped}


class StartChecks:
    """Runs the checks before a start with the present configuration."""

    def __init__(
        self, config: Callable[[], Config], nursery: NurseryClient, driver: Driver, health: NodeHealth, figures: Path
    ) -> None:
        """`figures`: the file that keeps what active tests came to."""
        self._config, self._nursery, self._driver, self._health = config, nursery, driver, health
        self._figures = figures

    async def run(self, spec: JobSpec, job: Job) -> list[CheckResult]:
        """All results: first of the request, then of the node's own checks."""
        request = precheck.CheckRequest(
            cards=precheck.CardsWanted(self._shown(job, job.cards), kind=job.card_kind),
            driver=self._driver,
            # The names of an MPI job may resolve later: the job waits for them itself.
            hosts=tuple(n for n in dict.fromkeys((*spec.nodes, spec.master_addr)) if n)
            if spec.boot != Boot.MPI
            else (),
            user=spec.user,
            limits=spec.limits,
            nursery=self._nursery.pid,
            nofile=descriptors.given_limit(),
        )
        results = await precheck.run(self._config().checks, request)
        if job.cards:
            results += await self._of_node(self._shown(job, job.hardware))
        if job.cards and all(result.status is not Status.CRITICAL for result in results):
            results += await self._of_tests(self._shown(job, job.hardware))
        return results

    async def _of_tests(self, cards: Sequence[int]) -> list[CheckResult]:
        """What active tests of these cards find, without good results; what is CRITICAL is a condition from then on."""
        settings = self._config().active
        tests = settings.tests_before_job()
        if not tests or self._driver.view.kind == SLOT:
            return []
        from muster.agent.node import active_look  # only where they are wanted
        from muster.probes.active.card_limits import BadLimits

        wanted = precheck.CardsWanted(indices=tuple(cards))
        try:
            results, trouble = await active_look.look(self._driver, wanted, settings, self._figures, tests)
        except (OSError, BadLimits) as error:
            code = Code.ACTIVE_NOT_RUN
            return [CheckResult(ITEM, EXPLANATIONS[code].status, code, f"limits_file of [active]: {error}")]
        if trouble:
            _log.warning("active_tests.history", error=trouble)
        with contextlib.suppress(NoRoom):  # it is in force all the same
            await self._health.report(results, "musterd, before a job (before_job of [active])")
        return [result for result in results if result.status not in (Status.OK, Status.NOT_APPLICABLE)]

    def _shown(self, job: Job, cards: Sequence[int]) -> tuple[int, ...]:
        """These cards of the job by their present numbers; a card that the driver does not show keeps its number."""
        now = numbers_now(job, cards, self._driver.view.uuids)
        return tuple(now.get(card, card) for card in cards)

    async def _of_node(self, cards: Sequence[int]) -> list[CheckResult]:
        """What the node's periodic checks find now about these cards and the node, without OK results. A finding that
        only an event can report is already a condition, and has refused the job."""
        policy = self._config().health.policy
        if policy == "off":
            return []
        periodic = [check.item for check, why in self._health.checks() if check.interval_s and not why]
        found = await self._health.look(periodic, cards) if periodic else []
        told = [result for result in found if result.status not in (Status.OK, Status.NOT_APPLICABLE)]
        # A missing card is no reason to refuse the cards that are present.
        soft = [policy != "enforce" or (of_presence(r.code) and r.card not in cards) for r in told]
        return [
            replace(r, status=Status.WARN) if r.status is Status.CRITICAL and eased else r
            for r, eased in zip(told, soft, strict=True)
        ]
