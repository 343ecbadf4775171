"""Explains an error by the job's own hardening, if the error says that something is not allowed or does not exist.

Such a cause is no fault of the node, and the remedy is an option of the job. Pure."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from muster.agent.why.causes.found import Cause
from muster.agent.why.facts import READ_ONLY, Facts
from muster.agent.why.log_signs import Sign
from muster.supervisors.model.hardening import TMP_PLACES, Hardening, is_below

#: Signatures of errors that hardening may lead to (agent/why/signatures.toml).
_PERMISSION, _NOT_FOUND, _PROCESSES, _SETUID = "permission", "file-not-found", "too-many-processes", "setuid-program"
_MPS = "cuda-mps"
_NODE = "in [hardening] of this node, if the job does not say it itself"


class Hint(NamedTuple):
    """`said`: what the job may not do, a sentence; `remedy`: what to do about it; `is_sure`: nothing else explains the
    error as well."""

    said: str
    remedy: str
    is_sure: bool = False


def hint(cause: Cause, facts: Facts) -> Hint | None:
    """What of the job's own hardening explains this cause."""
    if cause.sign is None:
        return None
    return next(_hints(cause.signature, cause.sign, facts.job.hardening), None)


def with_hint(cause: Cause, facts: Facts) -> Cause:
    """The cause, with that as evidence, and the remedy first."""
    found = hint(cause, facts)
    if found is None:
        return cause
    return replace(cause, steps=(found.remedy, *cause.steps), evidence=(found.said, *cause.evidence))


def _hints(signature: str, sign: Sign, hardening: Hardening) -> Iterator[Hint]:
    if signature == READ_ONLY:
        yield from _read_only(sign.path, hardening.read_only)
    elif signature in (_NOT_FOUND, _MPS) and hardening.private_tmp:
        yield from _private_tmp(sign.path, is_mps=signature == _MPS)
    elif signature == _SETUID and hardening.no_new_privs:
        remedy = f"If it must, start the job with `--no-new-privs no` (`no_new_privs` {_NODE})."
        yield Hint("the job was started without new privileges", remedy, is_sure=True)
    elif signature == _PERMISSION and "not permitted" in sign.hit.line:  # EACCES is about the modes of files
        yield from _privileges(hardening)
    elif signature == _PROCESSES and hardening.pids:
        remedy = f"If it needs more, start it with `--limit pids=N` (`max_pids_percent` {_NODE})."
        yield Hint(f"the job may have at most {hardening.pids} processes and threads", remedy)


def _read_only(path: str, read_only: tuple[str, ...]) -> Iterator[Hint]:
    path = os.path.normpath(path) if path else ""
    for one in read_only:
        if path and is_below(path, one):
            remedy = f"Write elsewhere, or start the job without `--read-only {one}` (`read_only` {_NODE})."
            yield Hint(f"the job was started with {one} read-only", remedy, is_sure=True)
    if read_only and not path:
        remedy = f"If it writes there, write elsewhere, or leave the path out of `--read-only` (`read_only` {_NODE})."
        yield Hint(f"the job was started with paths that are read-only: {', '.join(read_only)}", remedy)


def _private_tmp(path: str, *, is_mps: bool) -> Iterator[Hint]:
    place = "/tmp" if is_mps else next((one for one in TMP_PLACES if is_below(path, one)), "")
    if place:
        what = "Give the daemon of MPS another folder" if is_mps else "Put the file elsewhere"
        remedy = f"{what}, or start the job with `--private-tmp no` (`private_tmp` {_NODE})."
        yield Hint(
            f"the job was started with a {place} of its own, without what the node has there", remedy, is_sure=True
        )


def _privileges(hardening: Hardening) -> Iterator[Hint]:
    kept = hardening.capabilities
    limits = (
        ("without new privileges", "--no-new-privs no", hardening.no_new_privs),
        (f"with the capabilities {', '.join(kept or ()) or 'none'}", "--capabilities all", kept is not None),
        (f"with the seccomp profile {hardening.seccomp}", "--seccomp FILE", bool(hardening.seccomp)),
    )
    found = [(words, option) for words, option, is_set in limits if is_set]
    if found:
        options = ", ".join(f"`{option}`" for _, option in found)
        remedy = f"If it needs more, start it with {options} (else they are those {_NODE})."
        yield Hint(f"the job was started {', '.join(words for words, _ in found)}", remedy)
