"""Which rank did not come to a collective, from the dumps of several ranks, taken twice.

The rule is that of the group's numbers (`last_enqueued`, `last_completed`), as the watchdog of PyTorch logs them; the
public analyzer (torch/distributed/flight_recorder) compares entries instead, which the ring may have lost.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass
from muster.probes.library.collective_finding import LibraryFinding, LibraryVerdict, StuckCollective, finding_of
from muster.probes.library.flight_recorder import DEFAULT_GROUP, FlightDump, FlightGroup


def find_laggards(
    first: Mapping[int, FlightDump], second: Mapping[int, FlightDump], world: Iterable[int]
) -> LibraryFinding:
    """The finding over two dumps of each rank, by rank of the job; `world`: all ranks of the job, on all nodes.

    The second dump of a rank must have been written some seconds after the first.

    - If anything differs between the two dumps of any rank (a number of a group, an entry, its state), the job moves:
      MOVES, no proof.
    - A rank is inside a collective where it has enqueued more in a group than has completed.
    - A rank did not come where nothing is left for it to complete in that group, and it has enqueued less than the
      collective that another rank waits in. One that has enqueued more, or waits in the same, came.
    - A rank of a group that has no status of it never enqueued anything in it: it did not come. A rank that waits in a
      group whose name its dump lacks is `unknown`.
    - A rank with one dump or none is `unknown` in the groups that it belongs to. It makes such a group undecided,
      since it may be the rank that the others wait for; but not where another rank, whose two dumps are there, plainly
      did not come: that rank's collective cannot complete, whatever the unknown rank does. Ranks of other nodes are
      unknown like any other.
    - Groups with sends and receives are left out: their numbers differ between ranks that are well.
    """
    ranks = sorted(first.keys() & second.keys())
    everyone = sorted({*world, *ranks})
    if not ranks:
        return LibraryFinding(LibraryVerdict.UNDECIDED, "no rank has two dumps of the flight recorder")
    moved = tuple(rank for rank in ranks if _standing(first[rank]) != _standing(second[rank]))
    if moved:
        return LibraryFinding(
            LibraryVerdict.MOVES, f"{number_lists.ranks(moved)} advanced between two dumps", moved=moved
        )
    dumps = {rank: second[rank] for rank in ranks}
    # Two groups of different ranks may have one name, where only their own ranks made them.
    found: defaultdict[tuple[str, tuple[int, ...]], dict[int, FlightGroup]] = defaultdict(dict)
    for rank in ranks:
        for name, group in dumps[rank].groups.items():
            found[name, group.ranks][rank] = group
    stuck: list[StuckCollective] = []
    left_out = False
    for (name, listed), groups in found.items():
        inside = {rank: group for rank, group in groups.items() if group.enqueued > group.completed}
        if any(group.p2p for group in groups.values()):
            left_out = left_out or bool(inside)
        elif inside:
            stuck += _of_group(_Members(name, listed, groups, dumps, everyone), inside)
    if stuck:
        return finding_of(sorted(stuck, key=lambda one: one.group))
    if left_out:
        reason = "ranks wait in groups with sends and receives, whose numbers tell nothing"
        return LibraryFinding(LibraryVerdict.UNDECIDED, reason)
    if len(ranks) < len(everyone):
        reason = f"no rank with a dump waits in a collective; {len(ranks)} of {len(everyone)} ranks have dumps"
        return LibraryFinding(LibraryVerdict.IDLE, reason)
    return LibraryFinding(LibraryVerdict.IDLE, "no rank waits in a collective")


def _standing(dump: FlightDump) -> object:
    """What differs between two dumps of a rank that made progress."""
    return dump.last_record, dict(dump.groups)


@dataclass(frozen=True, slots=True)
class _Members:
    """A group in the dumps of its ranks."""

    name: str
    listed: tuple[int, ...]
    groups: Mapping[int, FlightGroup]
    dumps: Mapping[int, FlightDump]
    everyone: list[int]

    @property
    def desc(self) -> str:
        return next((group.desc for group in self.groups.values() if group.desc), "")

    @property
    def title(self) -> str:
        """For people: "default_pg", "pair 2"."""
        return self.desc if self.desc == DEFAULT_GROUP else f"{self.desc} {self.name}".strip()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the job; those that are seen to use it where no dump lists them."""
        listed = self.everyone if not self.listed and self.desc == DEFAULT_GROUP else self.listed
        return tuple(sorted({*listed, *self.groups}))

    def never_used(self, rank: int) -> bool:
        """Whether it is certain that a rank without a status of this group never enqueued anything in it: its dump has
        all groups that it has used, and no other one by this name."""
        dump = self.dumps.get(rank)
        return dump is not None and dump.complete and self.name not in dump.groups


def _of_group(members: _Members, inside: Mapping[int, FlightGroup]) -> list[StuckCollective]:
    """One for each collective that ranks of the group wait in: the oldest of them, and others to which a rank did not
    come (the source of a broadcast, say, goes on before all have it)."""
    waits: dict[int, list[int]] = {}
    for rank, group in inside.items():
        entry = group.waits_in
        waits.setdefault(entry.number if entry is not None else group.completed + 1, []).append(rank)
    found = [_collective(members, number, tuple(sorted(ranks))) for number, ranks in sorted(waits.items())]
    return [one for one in found if one is found[0] or one.absent]


def _collective(members: _Members, number: int, inside: tuple[int, ...]) -> StuckCollective:
    absent: list[int] = []
    unknown: list[int] = []
    calls: dict[str, list[int]] = {}
    for rank in members.ranks:
        group, dump = members.groups.get(rank), members.dumps.get(rank)
        if group is None:
            (absent if members.never_used(rank) else unknown).append(rank)
        elif group.enqueued == group.completed and group.enqueued < number:
            # In a group without a name it may wait for another rank.
            (unknown if dump is not None and dump.waits_unnamed else absent).append(rank)
        else:
            for entry in group.unfinished:
                if entry.number == number and entry.call:
                    calls.setdefault(entry.call, []).append(rank)
    waits_in = members.groups[inside[0]].waits_in
    return StuckCollective(
        members.title,
        next(iter(calls), ""),
        number,
        inside,
        tuple(absent),
        tuple(unknown),
        line=waits_in.line if waits_in is not None else "",
        calls=tuple((call, tuple(ranks)) for call, ranks in calls.items()) if len(calls) > 1 else (),
    )
