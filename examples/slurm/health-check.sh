#!/bin/sh
# HealthCheckProgram of Slurm: drains a node that muster calls not fit, and returns it to service when it is fit again, if
# muster drained it. What others drained, and an unknown health, it leaves as it is. One call of scontrol per change.
# It exits with 1 where Slurm does not answer; slurmd's log then has the line on stderr, and the next run tries again.
PATH=/opt/muster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
node=${SLURMD_NODENAME:-$(hostname -s)}

reason=$(muster check --gate --format nhc 2>/dev/null)
fit=$?
[ "$fit" -le 1 ] || exit 0

# The state with its flags, and the reason: "DRAINED muster: GPU_LOST ...". slurmd ends this program after 60 s, and
# without munged or slurmctld sinfo and scontrol may wait for longer.
now=$(timeout 20 sinfo -h -N -n "$node" -O 'StateComplete:100,Reason:500' 2>/dev/null | head -n 1)
state=$(printf '%s\n' "$now" | cut -c 1-100 | tr 'A-Z' 'a-z')
said=$(printf '%s\n' "$now" | cut -c 101- | sed 's/ *$//')
case $state in
  *down* | *reboot* | *power*) exit 0 ;; # also drained: it is somebody's turn, and UNDRAIN would undo a pending reboot
  *drain*) drained=yes ;;
  '')
    echo "muster: sinfo does not know node $node: look at slurmctld and munge, and at SLURMD_NODENAME" >&2
    exit 1
    ;;
  *) drained=no ;;
esac

case $fit-$drained-$said in
  1-no-*) timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="$reason" ;;
  1-yes-"$reason") ;;
  1-yes-muster:*) timeout 20 scontrol update NodeName="$node" Reason="$reason" ;; # another fault than before
  0-yes-muster:*) timeout 20 scontrol update NodeName="$node" State=UNDRAIN ;;
esac
