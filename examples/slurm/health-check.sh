#!/bin/sh
# HealthCheckProgram of Slurm: drains a node that muster calls not fit, and returns it to service when it is fit again, if
# muster drained it. What others drained, and an unknown health, it leaves as it is. One call of scontrol per change.
PATH=/opt/muster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
node=${SLURMD_NODENAME:-$(hostname -s)}

reason=$(muster check --gate --format nhc 2>/dev/null)
fit=$?
[ "$fit" -le 1 ] || exit 0

# The state with its flags, and the reason: "DRAINED muster: GPU_LOST ...".
now=$(sinfo -h -N -n "$node" -O 'StateComplete:100,Reason:500' 2>/dev/null | head -n 1) || exit 0
state=$(printf '%s\n' "$now" | cut -c 1-100 | tr 'A-Z' 'a-z')
said=$(printf '%s\n' "$now" | cut -c 101-)
case $state in
  *drain*) drained=yes ;;
  *down* | *reboot* | *power* | *planned* | '') exit 0 ;;
  *) drained=no ;;
esac

case $fit-$drained-$said in
  1-no-*) scontrol update NodeName="$node" State=DRAIN Reason="$reason" ;;
  0-yes-muster:*) scontrol update NodeName="$node" State=UNDRAIN ;;
esac
exit 0
