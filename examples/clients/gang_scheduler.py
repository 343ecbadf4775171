"""A small gang scheduler: one job on several fit nodes, and on others where a node is at fault.

    python3 examples/clients/gang_scheduler.py NAME NODES TRIES ADDRESS... -- COMMAND...

It needs `muster.client` alone and keeps nothing: the daemons know the jobs. Exits with the code of the job, or with 125
where it was not started. docs/guides/clients.md explains it.
"""

import sys
import threading
import time
from contextlib import ExitStack

from muster.client import BlockingClient, Gang, GangNotStarted, GangPart, MusterError, connect_blocking
from muster.client.gang import attempt_id, labels_of
from muster.v1 import job_pb2

#: Where the ranks of all nodes meet.
PORT = 29500
RANKS = 2
#: Seconds for which a daemon that does not answer is asked to stop its part.
LEFT_S = 300.0


def fit(nodes: dict[str, BlockingClient]) -> list[str]:
    """Addresses of the nodes that take jobs, those with the fewest jobs first."""
    found = []
    for address, muster in nodes.items():
        try:
            node = muster.get_node(within_s=10).node
        except MusterError as error:
            print(f"{address}: {error}", file=sys.stderr)
            continue
        critical = [each.reason for each in node.conditions if each.status == "CRITICAL"]
        if node.HasField("drain") or critical:
            print(f"{address}: not used: {node.drain.reason or critical[0]}", file=sys.stderr)
        else:
            found.append((node.active_jobs, address))
    return [address for _, address in sorted(found)]


def gang(name: str, attempt: int, nodes: dict[str, BlockingClient], chosen: list[str], command: list[str]) -> Gang:
    """The parts of one try. Its ids and specs are the same in each call: a repeated start finds what there is."""
    parts = []
    for rank, address in enumerate(chosen):
        spec = job_pb2.JobSpec(
            job_id=attempt_id(name, attempt),
            command=command,
            ranks=RANKS,
            node_rank=rank,
            node_count=len(chosen),
            master_addr="127.0.0.1",  # of the first node; here all are on one machine
            master_port=PORT + attempt,
            labels=labels_of(name, rank, len(chosen), attempt),
            env={"PYTHONUNBUFFERED": "1"},
        )
        parts.append(GangPart(address, nodes[address], spec))
    return Gang(parts)


def show(part: GangPart) -> None:
    """Passes the output of a part on, over restarts of its daemon."""
    try:
        for message in part.client.read_logs(part.spec.job_id, follow=True):
            sys.stdout.buffer.write(message.data)
            sys.stdout.buffer.flush()
    except MusterError as error:
        print(f"{part.node}: output ends: {error}", file=sys.stderr)


def end(job_gang: Gang) -> dict[str, job_pb2.Job]:
    """Waits for all parts, and stops the others once one has failed; the jobs by address, but for one whose daemon does
    not answer."""
    jobs: dict[str, job_pb2.Job] = {}

    def wait(part: GangPart) -> None:
        try:
            jobs[part.node] = part.client.wait(part.spec.job_id).job
            if jobs[part.node].state == job_pb2.JOB_STATE_SUCCEEDED:
                return
        except MusterError as error:
            print(f"{part.node}: given up: {error}", file=sys.stderr)
        reason, until = f"the part on {part.node} has ended", time.monotonic() + LEFT_S
        left = job_gang.stop(reason, grace_s=5)
        while left and time.monotonic() < until:  # a part that is not stopped runs on without the others
            time.sleep(1)
            left = job_gang.stop(reason, grace_s=5, among=left)

    waits = [threading.Thread(target=what, args=(part,)) for part in job_gang.parts for what in (show, wait)]
    for thread in waits:
        thread.start()
    for thread in waits:
        thread.join()
    return jobs


def judge(jobs: dict[str, job_pb2.Job], size: int, bad: set[str]) -> tuple[int, bool]:
    """Exit code of a try that has ended, and whether another one may help; adds nodes that are at fault to `bad`."""
    if len(jobs) < size:
        return 125, False  # a part may still run
    failed = {node: job for node, job in jobs.items() if job.state != job_pb2.JOB_STATE_SUCCEEDED}
    for node, job in failed.items():
        print(f"{node}: {job.verdict.summary}", file=sys.stderr)
        if job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE:
            bad.add(node)
    # A part that was stopped only followed one that failed.
    first = [job.verdict for job in failed.values() if job.state != job_pb2.JOB_STATE_STOPPED]
    hopeful = bool(first) and all(each.recommendation != job_pb2.RECOMMENDATION_FAIL for each in first)
    return max((each.exit_code for each in first), default=125 if failed else 0), hopeful


def main(name: str, size: int, tries: int, addresses: list[str], command: list[str]) -> int:
    """Runs the job; returns its exit code."""
    bad: set[str] = set()
    code = 125
    with ExitStack() as stack:
        nodes = {each: stack.enter_context(connect_blocking(each, caller="gang-scheduler")) for each in addresses}
        for attempt in range(tries):
            chosen = [address for address in fit(nodes) if address not in bad][:size]
            if len(chosen) < size:
                print(f"{name}: {len(chosen)} of {size} nodes are fit", file=sys.stderr)
                return 125
            job_gang = gang(name, attempt, nodes, chosen, command)
            try:
                job_gang.start()
            except GangNotStarted as error:
                print(f"{name}: not started: {error}", file=sys.stderr)
                bad |= set(error.reasons)
                continue
            code, hopeful = judge(end(job_gang), size, bad)
            if code == 0 or not hopeful:
                return code
    return code


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:at], sys.argv[at + 1 :]))
