"""Proof of a hang by the library that the ranks wait in: which ranks are inside a collective, and which never came to
it.

`flight_recorder` reads dumps of PyTorch, `dump_files` finds them, `dump_taking` gets new ones of all ranks, `laggards`
judges two of each rank. `nccl_ras` asks NCCL's RAS, `nccl_version` says where that is safe, `ras_judgement` judges two
answers. `hccl_heartbeat` reads what HCCL's own detector has logged. Each judgement returns a `LibraryFinding`. What is
read here was written by the job: nothing of it is run.
"""

from muster.probes.library.collective_finding import LibraryFinding, LibraryVerdict, StuckCollective
from muster.probes.library.dump_files import DumpSource, ask_for_dump, dump_source, dump_stamps, fresh_dump, latest_dump
from muster.probes.library.dump_taking import TakenDumps, take_dumps
from muster.probes.library.flight_recorder import DumpBeingWritten, DumpUnreadable, FlightDump
from muster.probes.library.hccl_heartbeat import (
    Heartbeats,
    PlogSource,
    judge_heartbeats,
    parse_heartbeats,
    plog_source,
    read_heartbeats,
)
from muster.probes.library.laggards import find_laggards
from muster.probes.library.nccl_ras import RasAnswer, RasTarget, RasTrouble, ask_ras, inner_pids, ras_address
from muster.probes.library.nccl_version import SAFE_FROM, mapped_version, version_of
from muster.probes.library.ras_judgement import judge_answers

__all__ = [
    "SAFE_FROM",
    "DumpBeingWritten",
    "DumpSource",
    "DumpUnreadable",
    "FlightDump",
    "Heartbeats",
    "LibraryFinding",
    "LibraryVerdict",
    "PlogSource",
    "RasAnswer",
    "RasTarget",
    "RasTrouble",
    "StuckCollective",
    "TakenDumps",
    "ask_for_dump",
    "ask_ras",
    "dump_source",
    "dump_stamps",
    "find_laggards",
    "fresh_dump",
    "inner_pids",
    "judge_answers",
    "judge_heartbeats",
    "latest_dump",
    "mapped_version",
    "parse_heartbeats",
    "plog_source",
    "ras_address",
    "read_heartbeats",
    "take_dumps",
    "version_of",
]
