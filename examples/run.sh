#!/usr/bin/env bash
# What `make run` shows: a daemon, a job that succeeds, one that fails, one that is started again and resumes from its
# checkpoint, and one whose daemon is killed meanwhile.
# Needs .venv/bin/muster and .venv/bin/musterd (`make setup`). Everything is written under one temporary folder,
# which is removed when all went as expected and kept, and named, when not.
set -uo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$repo/.venv/bin
train=("$bin/python" "$repo/examples/train.py")
call_limit=60 # seconds for one command: it is a defect if one takes that long

daemon=""      # pid of musterd while one runs
ended_with=0   # exit status of the last daemon
skip=()        # --skip-check where this node is not fit
MUSTER_ROOT="" # set by main: the folder of this demonstration

# --- saying and failing ---------------------------------------------------------------------------------------

bold="" plain=""
[[ -t 1 ]] && bold=$'\033[1m' plain=$'\033[0m'

title() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
note() { printf '   %s\n' "$*"; }

fail() {
    printf '\nNOT as expected: %s\n' "$*" >&2
    exit 1
}

# Shows a command as a person would type it.
show() {
    local word line=""
    for word in "$@"; do line+=" $(printf '%q' "$word")"; done
    printf '$%s\n' "$line"
}

# expect CODE COMMAND...: shows and runs it; any other exit code ends the demonstration.
expect() {
    local wanted=$1 code=0
    shift
    show "$@"
    timeout --foreground "$call_limit" "$@" || code=$?
    [[ $code -eq $wanted ]] || fail "exit code $code instead of $wanted from: $*"
    [[ $wanted -eq 0 ]] || note "(exit code $code)"
}

# Runs on every exit. The daemon goes first, so that the folder is not in use when it is removed.
finish() {
    local code=$?
    trap - EXIT
    [[ -z $MUSTER_ROOT ]] && exit "$code"
    if [[ $code -ne 0 && -n $daemon ]] && ! daemon_gone; then
        timeout 10 muster stop survivor >/dev/null 2>&1
        kill -TERM "$daemon" 2>/dev/null
    fi
    if [[ $code -eq 0 ]]; then
        rm -rf -- "${MUSTER_ROOT:?}"
    else
        {
            echo "Kept to look at: $MUSTER_ROOT"
            echo "  log/        what the ranks wrote"
            echo "  state/jobs/ the jobs"
            echo "  musterd.out what the daemon said; its last lines:"
            tail -n 15 "$MUSTER_ROOT/musterd.out" 2>/dev/null | sed 's/^/    /'
        } >&2
    fi
    exit "$code"
}

# --- the daemon -----------------------------------------------------------------------------------------------

# wait_until SECONDS COMMAND...: true as soon as the command succeeds, false when the time is over.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

daemon_answers() { muster node -o json >/dev/null 2>&1; }
# From the shell's own list: the kernel may give the pid of a daemon that has exited to another process at once.
daemon_gone() { ! jobs -pr | grep -qx "$daemon"; }
daemon_answers_or_gone() { daemon_answers || daemon_gone; }

start_daemon() {
    echo "\$ musterd --root $MUSTER_ROOT &"
    musterd --root "$MUSTER_ROOT" >>"$MUSTER_ROOT/musterd.out" 2>&1 &
    daemon=$!
    wait_until 15 daemon_answers_or_gone || fail "the daemon does not answer within 15 s"
    daemon_gone && fail "the daemon ended at once"
    note "the daemon answers (pid $daemon)"
}

# end_daemon SIGNAL: ends it and leaves its exit status in `ended_with`.
end_daemon() {
    ended_with=0
    show kill "-$1" "$daemon"
    kill "-$1" "$daemon" || fail "the daemon is not there to be ended"
    # Without the shell's own line about a killed child.
    wait_until 15 daemon_gone 2>/dev/null || fail "the daemon (pid $daemon) is still there 15 s after SIG$1"
    { wait "$daemon"; } 2>/dev/null || ended_with=$?
    daemon=""
}

# --- the ranks, as the kernel sees them: without muster -------------------------------------------------------

# The pids of the processes that have our mark in their environment; other demonstrations may run on this host.
# (The mark is no secret, so `--env` may hold it. Processes of other users cannot be read; none of them is ours.)
rank_pids() { grep -lzxF -- "EXAMPLE_RUN=$MUSTER_ROOT" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }

ranks_alive() {
    local pids
    mapfile -t pids < <(rank_pids)
    [[ ${#pids[@]} -eq $1 ]]
}

show_ranks() {
    local pid
    for pid in $(rank_pids); do
        note "pid $pid, $(grep -zx 'RANK=[0-9]*' "/proc/$pid/environ" | tr -d '\0'), parent $(parent_of "$pid")"
    done
}

parent_of() { sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null; }

# --- the scenes -----------------------------------------------------------------------------------------------

look_at_node() {
    title "Is this node fit?"
    local code=0
    show muster check
    timeout --foreground "$call_limit" muster check || code=$?
    case $code in
    0) note "OK" ;;
    1) note "(exit code 1: there are warnings; jobs run all the same)" ;;
    2 | 3)
        note "(exit code $code: this node should not take jobs; the demonstration goes on with --skip-check)"
        skip=(--skip-check)
        ;;
    *) fail "exit code $code from: muster check" ;;
    esac
}

a_job_that_succeeds() {
    title "A job of four ranks"
    expect 0 muster run --job-id demo --ranks 4 "${skip[@]}" -- "${train[@]}" --checkpoint "$MUSTER_ROOT/of-demo" --steps 20 --step-time 0.05
    expect 0 muster status demo
    expect 0 muster logs demo --tail 3
}

a_job_that_fails() {
    title "A job of which rank 2 fails in step 5: its code is the job's, and muster knows which rank it was"
    expect 7 muster run --job-id broken --ranks 4 "${skip[@]}" -- \
        "${train[@]}" --checkpoint "$MUSTER_ROOT/of-broken" --fail-rank 2 --fail-step 5 --exit-code 7
    expect 0 muster why broken
}

a_job_that_resumes() {
    title "A job of which rank 1 fails in step 12, once: all ranks are started again and resume from the checkpoint"
    expect 0 muster run --job-id resumed --ranks 4 --max-restarts 1 --restart-backoff 200ms "${skip[@]}" -- \
        "${train[@]}" --checkpoint "$MUSTER_ROOT/of-resumed" --steps 20 --step-time 0.05 --save-every 5 \
        --fail-rank 1 --fail-step 12 --fail-attempt 0
    [[ $(muster logs resumed --rank 0 --attempt 1) == *"resumed from checkpoint at step "* ]] ||
        fail "the second attempt does not resume from the checkpoint: muster logs resumed --rank 0"
    printf '$ muster logs resumed --job | grep -v item:\n' # what muster did, but for the checks
    muster logs resumed --job | grep -v item: || fail "the job's own log cannot be read"
}

a_job_that_survives() {
    title "A job whose daemon is killed in the middle"
    local steps=80 lines distinct
    expect 0 muster start --job-id survivor --ranks 4 --env "EXAMPLE_RUN=$MUSTER_ROOT" "${skip[@]}" -- \
        "${train[@]}" --checkpoint "$MUSTER_ROOT/of-survivor" --steps $steps --step-time 0.05
    wait_until 10 ranks_alive 4 || fail "there are not four ranks within 10 s"
    sleep 0.5
    end_daemon KILL
    sleep 0.5
    ranks_alive 4 || fail "the ranks did not outlive the daemon"
    note "the daemon is dead; its ranks, from /proc:"
    show_ranks
    expect 4 muster ps
    start_daemon
    expect 0 muster wait survivor
    expect 0 muster logs survivor --tail 2
    lines=$(muster logs survivor -r 0 | grep -o "step [0-9]*/$steps ")
    distinct=$(sort -u <<<"$lines" | wc -l)
    [[ $(wc -l <<<"$lines") -eq $steps && $distinct -eq $steps ]] ||
        fail "the log of rank 0 does not have each of its $steps steps once: muster logs survivor -r 0"
    note "all $steps steps of rank 0 are in its log, each once"
}

the_end() {
    title "What there was"
    expect 0 muster ps -a
    end_daemon TERM
    [[ $ended_with -eq 0 ]] || fail "the daemon ended with $ended_with after SIGTERM"
    ranks_alive 0 || fail "ranks are left over: $(rank_pids | tr '\n' ' ')"
    printf '\nAll is as expected.\n'
}

main() {
    local tool folder=${TMPDIR:-/tmp}
    for tool in python muster musterd; do
        [[ -x $bin/$tool ]] || { echo "run.sh: $bin/$tool is missing; \`make setup\` makes it" >&2; exit 2; }
    done
    # A unix socket's path has at most 107 bytes, and the daemon's sockets lie some folders below.
    [[ ${#folder} -le 40 ]] || folder=/tmp
    MUSTER_ROOT=$(mktemp -d "$folder/muster.XXXXXX") || exit 1
    export MUSTER_ROOT PATH="$bin:$PATH"
    unset MUSTER_ADDRESS # another daemon, of the person who calls this, is not to be used
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    title "The daemon"
    start_daemon
    look_at_node
    a_job_that_succeeds
    a_job_that_fails
    a_job_that_resumes
    a_job_that_survives
    the_end
}

main "$@"
