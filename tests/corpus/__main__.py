"""`python -m tests.corpus`: precision, recall and delay of the hang rule on the corpus, beside the plain rule."""

import argparse
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.probes.hang import HangSettings
from tests.corpus import changes
from tests.corpus.log_rule import LogRule
from tests.corpus.measure import Outcome, for_plain, run
from tests.corpus.rows import ROWS
from tests.corpus.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.corpus.slow import ALL as SLOW_ALL
from tests.corpus.slow import SlowOutcome, run_slow
from tests.corpus.stacked import STACKED
from tests.corpus.variations import VARIATIONS

ALL = {scenario.name: scenario for scenario in (*SCENARIOS, *VARIATIONS, *STACKED, *ROWS)}
RULES: dict[str, HangSettings | Callable[[], LogRule]] = {
    "muster": HangSettings(),
    # ModelArts' default is 30 min, which cannot be in time; the traces end before.
    "plain": HangSettings(rule="plain", plain_s=600.0),
    "log": LogRule,
}


def main() -> int:
    """Exit code 1 where the full rule gave a false alarm, missed a hang or was late, in usual weather."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="as U1; without: all but P; --changes: all")
    parser.add_argument("--seeds", type=int, default=100, help="traces of each scenario")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--harsh", action="store_true", help="readings missing, noise, drift, other periods")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--rule", action="append", choices=RULES, help="only this one")
    parser.add_argument("--changes", action="store_true", help="print each change of verdict, to compare two runs")
    parser.add_argument("--slow", action="store_true", help="the rule of slow ranks, on these and on L and E")
    parser.add_argument("--acted", action="store_true", help="by real processes under a daemon, 60 times as fast")
    parser.add_argument("--rounds", type=int, default=1, help="of --acted: how often each")
    parser.add_argument("--at-once", type=int, default=6, help="of --acted: at a time")
    arguments = parser.parse_args()
    known = SLOW_ALL if arguments.slow else ALL
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    measured = [scenario.name for scenario in (*SCENARIOS, *VARIATIONS, *STACKED)]
    names = arguments.names or (list(ALL) if arguments.changes else measured)
    if arguments.acted:
        return int(_acted(arguments.names, arguments.rounds, arguments.at_once))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.slow:
        plays = [(name, seed, arguments.harsh) for name in arguments.names or SLOW_ALL for seed in seeds]
        with multiprocessing.Pool(arguments.jobs) as pool:
            found = pool.map(_one_slow, plays, chunksize=4)
        print(_slow_report(found))
        return int(any(outcome.wrong for outcome in found))
    if arguments.changes:
        for line in changes.lines([ALL[name] for name in names], seeds, harsh=arguments.harsh):
            print(line)
        return 0
    begin = time.monotonic()
    wrong = False
    with multiprocessing.Pool(arguments.jobs) as pool:
        for rule in arguments.rule or RULES:
            tasks = [(name, seed, rule, arguments.harsh) for name in names for seed in seeds]
            outcomes = pool.map(_one, tasks, chunksize=8)
            print(_report(rule, [ALL[name] for name in names], outcomes))
            if rule == "muster":
                wrong = any(outcome.wrong for outcome in outcomes)
    print(f"{len(names)} scenarios, {arguments.seeds} seeds each, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return int(wrong)


def _one(task: tuple[str, int, str, bool]) -> Outcome:
    name, seed, rule, harsh = task
    scenario = ALL[name] if rule == "muster" else for_plain(ALL[name])
    return run(scenario, seed, RULES[rule], harsh=harsh)


def _one_slow(task: tuple[str, int, bool]) -> SlowOutcome:
    name, seed, harsh = task
    return run_slow(SLOW_ALL[name], seed, harsh=harsh)


def _slow_report(outcomes: Sequence[SlowOutcome]) -> str:
    lines = ["| scenario | traces | right | delay min: median, most | what was wrong |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(outcome.scenario for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.scenario == name]
        bad = [outcome for outcome in mine if outcome.wrong]
        delays = sorted(outcome.delay_min for outcome in mine if outcome.delay_min is not None)
        told = f"{delays[len(delays) // 2]:.1f}, {delays[-1]:.1f}" if delays else ""
        example = f"{bad[0].wrong} (seed {bad[0].seed})" if bad else ""
        what = f"{name} {SLOW_ALL[name].what}"
        lines.append(f"| {what} | {len(mine)} | {len(mine) - len(bad)} | {told} | {example} |")
    return "\n".join(lines)


def _acted(names: Sequence[str], rounds: int, at_once: int) -> bool:
    """Prints what came of real processes; whether anything was wrong."""
    from tests.corpus.acted import ACTS, play_all

    chosen = [ACTS[name] for name in names or ACTS if name in ACTS]
    if left_out := [name for name in names or BY_NAME if name not in ACTS]:
        print(f"not acted: {', '.join(left_out)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="muster-acted-") as folder:
        played = play_all(chosen, Path(folder), at_once, rounds)
    for rule in ("muster", "plain"):
        outcomes = [one.outcome if rule == "muster" else one.plain for one in played]
        print(_report(rule, [act.scenario for act in chosen], outcomes))
    return any(one.outcome.wrong for one in played)


def _report(rule: str, scenarios: Sequence[Scenario], outcomes: Sequence[Outcome]) -> str:
    lines = [
        f"\n## {rule}\n",
        "| scenario | must be | traces | SUSPECT, HUNG | right | SUSPECT, min: median, 90 % | "
        "HUNG, min: median, 90 % | most | what was wrong |",
    ]
    lines.append("|---" * 9 + "|")
    for scenario in scenarios:
        mine = [outcome for outcome in outcomes if outcome.scenario == scenario.name]
        delays = [outcome.delay_min for outcome in mine if outcome.delay_min is not None]
        most = f"{max(delays):.1f}" if delays else ""
        suspect, told = _spread([o.suspect_min for o in mine]), _spread([o.hung_min for o in mine])
        bad = [outcome for outcome in mine if outcome.wrong]
        limit = f"<= {scenario.within_min:g}" if scenario.within_min is not None else "never"
        example = f"{bad[0].wrong} (seed {bad[0].seed})" if bad else ""
        hung = f"{sum(outcome.suspected > 0 for outcome in mine)}, {sum(outcome.hung for outcome in mine)}"
        right = len(mine) - len(bad)
        what = f"{scenario.name} {scenario.what}"
        cells = (what, limit, len(mine), hung, right, suspect, told, most, example)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    undecided = {scenario.name for scenario in scenarios if scenario.undecided}
    outcomes = [outcome for outcome in outcomes if outcome.scenario not in undecided]
    hangs = {s.name for s in scenarios if s.within_min is not None and "HUNG" in s.verdicts and not s.undecided}
    true = sum(o.hung and not o.wrong.startswith("false") for o in outcomes if o.scenario in hangs)
    false = sum(o.hung and (o.scenario not in hangs or o.wrong.startswith("false")) for o in outcomes)
    positives = sum(o.scenario in hangs for o in outcomes)
    precision = f"{true / (true + false):.4f}" if true + false else "-"
    recall = f"{true / positives:.4f}" if positives else "-"
    in_time = sum(
        o.scenario in hangs and o.hung and not o.wrong.startswith(("false", "late", "missed")) for o in outcomes
    )
    lines.append(
        f"\nHUNG: {true} of {positives} hangs (recall {recall}), {in_time} of them in time; {false} false alarms in "
        f"{len(outcomes) - positives} traces without a hang (precision {precision})."
    )
    healthy = [o for o in outcomes if next(s for s in scenarios if s.name == o.scenario).within_min is None]
    if healthy:
        once, often = sum(o.suspected > 0 for o in healthy), sum(o.suspected for o in healthy)
        lines.append(f"SUSPECT: {once} of {len(healthy)} healthy traces, {often} times in all.")
    with_stacks = hangs & {scenario.name for scenario in STACKED}
    for what, names in (("with stacks", with_stacks), ("without stacks", hangs - with_stacks)):
        good = [outcome for outcome in outcomes if outcome.scenario in names and outcome.hung and not outcome.wrong]
        for verdict, times in (("SUSPECT", [o.suspect_min for o in good]), ("HUNG", [o.hung_min for o in good])):
            if times:
                half, _, most = _spread(times).partition(", ")
                lines.append(f"{verdict} {what}: median {half} min, 90th percentile {most} min.")
    return "\n".join(lines)


def _spread(times: Sequence[float]) -> str:
    """Median and 90th percentile of what was told; empty where nothing was."""
    told = sorted(time for time in times if time < math.inf)
    return ", ".join(f"{told[len(told) * tenths // 10]:.1f}" for tenths in (5, 9)) if told else ""


if __name__ == "__main__":
    sys.exit(main())
