#!/bin/sh
# Makes a version of the package muster-agent the one that runs, and removes versions. dpkg and rpm run it as
# /opt/muster/package/maintain, and so does musterd.service before each start (sweep).
#
#   maintain installed [ID]   the files of ID (default: the package's) are unpacked: use them, and restart the daemon
#   maintain check            exit 1 unless the package's version is the one in use; `rpm -V` runs it, too
#   maintain removing         the package is about to be removed
#   maintain sweep            remove the versions that no process uses
#
# The package owns /opt/muster/package/ID. What runs is /opt/muster/ID, made of hard links to it: the package manager
# may replace and remove its own files, and a supervisor of an earlier version still has all of its programs.
set -eu
home=/opt/muster
hiding=/etc/systemd/system/musterd.service
change_over="To change over: \`muster service uninstall --force\` of its environment (jobs run on), \
then \`systemctl enable --now musterd\`"

say() { echo "muster-agent: $*" >&2; }

has() { command -v "$1" >/dev/null 2>&1; }

booted() { [ -d /run/systemd/system ]; }

# The daemon is that of `muster service install`, whose unit goes before the package's.
hidden() { [ -e "$hiding" ]; }

# Debian's helpers work for dpkg alone.
for_dpkg() { [ -n "${DPKG_MAINTSCRIPT_PACKAGE-}" ] && has deb-systemd-helper; }

# The command that finishes an installation that failed.
again() {
  case $(dpkg-query -W -f '${db:Status-Status}' muster-agent 2>/dev/null) in
    half-configured | unpacked) echo "dpkg --configure -a" ;;
    *) echo "$home/package/maintain installed" ;;
  esac
}

# On Debian the node's policy (policy-rc.d) may forbid it.
invoke() {
  if for_dpkg; then deb-systemd-invoke "$@"; else systemctl "$@"; fi
}

state() { systemctl show -p ActiveState --value musterd.service; }

# Jobs with a scope, by name. A colon is no letter of a job's name: the nursery has it.
jobs() {
  systemctl list-units --plain --no-legend --state=active 'muster-*.scope' | while read -r unit _; do
    case $unit in muster-nursery[:-]*) ;; *) unit=${unit#muster-}; echo "${unit%.scope}" ;; esac
  done
}

# Whether a process (of these folders of /proc; default: any) runs a program of version $1 or has one of its libraries.
in_use() {
  version=$1 && shift
  [ $# -gt 0 ] || set -- /proc/[0-9]*
  for process; do shift && set -- "$@" "$process/cmdline" "$process/maps"; done
  found=$(printf '%s\n' "$home/$version/" | grep -lsaF -f - "$@") || true
  [ -n "$found" ]
}

# A link that is replaced as a whole.
point() {
  ln -sfn "$2" "$home/.$1.new"
  mv -T "$home/.$1.new" "$home/$1"
}

# The version that the package manager has installed. While rpm upgrades there are two.
packaged() {
  for folder in "$home"/package/*; do
    if [ -e "$folder/package-id" ]; then basename "$folder"; fi
  done
}

# The versions here, one a line; an environment that somebody made here has no such file.
versions() {
  for folder in "$home"/*; do
    if [ ! -L "$folder" ] && [ -e "$folder/package-id" ]; then basename "$folder"; fi
  done
}

sweep() {
  for id in $(versions); do
    [ "$id" = "$(readlink "$home/current" || true)" ] || [ "$id" = "$(readlink "$home/previous" || true)" ] ||
      in_use "$id" || { mv -T "$home/$id" "$home/.old-$id" && rm -rf "$home/.old-$id"; } || true
  done
}

# The folder that runs, made of the package's. That of this version may exist: each file is replaced as a whole.
put() {
  from=$home/package/$1 new=$home/.new-$1
  if [ -e "$home/$1" ]; then
    cp -alf "$from/." "$home/$1/"
    return
  fi
  rm -rf "$new"
  cp -al "$from" "$new" 2>/dev/null || { rm -rf "$new" && cp -a "$from" "$new"; }
  # A module that this Python cannot compile is one that it does not import.
  "$new/bin/python" -I -m compileall -q -s "$new" -p "$home/$1" "$new/lib" >/dev/null 2>&1 || true
  mv -T "$new" "$home/$1"
}

# Groups, folders and a configuration file to begin with; what exists stays.
prepare() {
  if has systemd-sysusers; then systemd-sysusers muster.conf; else
    for group in muster muster-readers; do getent group "$group" >/dev/null || groupadd -r "$group"; done
  fi
  if has systemd-tmpfiles; then systemd-tmpfiles --create muster.conf || true; fi
  [ -d /etc/muster ] || install -d -m 755 /etc/muster
  if [ ! -e /etc/muster/musterd.toml ]; then
    # A webhook's token may come to be in it; who may stop every job may read it.
    install -m 640 -g muster /dev/null /etc/muster/.musterd.toml.new
    "$home/$1/bin/musterd" --default-config >/etc/muster/.musterd.toml.new
    mv -T /etc/muster/.musterd.toml.new /etc/muster/musterd.toml
  fi
}

# At each boot; on Debian unless an administrator has disabled it, elsewhere as the node's presets say.
enable() {
  if for_dpkg; then
    if deb-systemd-helper --quiet was-enabled musterd.service; then
      deb-systemd-helper enable musterd.service >/dev/null
    else
      deb-systemd-helper update-state musterd.service >/dev/null
    fi
  elif [ -z "$1" ] && has systemctl; then
    systemctl preset musterd.service || true
  fi
}

# An old nursery leaves a few seconds after its last job.
sweep_soon() {
  i=0
  while [ "$i" -lt 20 ] && [ -n "$1" ] && in_use "$1" && [ -z "$(jobs)" ]; do
    sleep 0.5
    i=$((i + 1))
  done
  sweep
}

installed() {
  id=${1:-$(packaged)}
  before=$(readlink "$home/current" || true)
  [ -e "$home/$before/package-id" ] || before=
  rm -rf "$home"/.new-* "$home"/.old-* # of one that was killed
  put "$id"
  prepare "$id"
  if ! "$home/$id/bin/musterd" --check-config >/dev/null; then
    say "the daemon of this version would not start with this configuration, so ${before:-nothing} stays in use:" \
      "mend /etc/muster/musterd.toml, then run \`$(again)\`"
    exit 1
  fi
  # Kept until the new daemon has started.
  [ -z "$before" ] || point previous "$before"
  point current "$id"
  enable "$before"
  if booted; then
    systemctl daemon-reload
    start "$id" "$before"
    rm -f "$home/previous"
    sweep_soon "$before"
  else
    rm -f "$home/previous"
  fi
}

start() {
  if hidden; then
    say "$hiding, of \`muster service install\`, goes before this package's unit, and its daemon runs on. $change_over"
  elif [ -z "$2" ]; then
    if systemctl is-enabled -q musterd.service; then
      invoke start musterd.service || { say "musterd did not start: see journalctl -u musterd"; exit 1; }
    else
      say "start it with \`systemctl enable --now musterd\`"
    fi
  else
    case $(state) in active | activating | reloading)
      if ! invoke restart musterd.service; then
        point current "$2"
        rm -f "$home/previous"
        systemctl restart musterd.service || true
        say "musterd of $1 did not start (journalctl -u musterd), so $2 runs again; jobs were not touched." \
          "To try once more: \`$(again)\`"
        exit 1
      fi ;;
    esac
  fi
}

# rpm takes an installation whose script failed for a success: this tells.
check() {
  id=$(packaged)
  current=$(readlink "$home/current" || true)
  if [ "$id" != "$current" ]; then
    say "$id is installed, but ${current:-nothing} is in use, because the installation failed." \
      "To see why and to finish it: \`$(again)\`"
    exit 1
  fi
  booted || return 0
  pid=$(systemctl show -p MainPID --value musterd.service)
  if [ "$pid" != 0 ] && ! in_use "$id" "/proc/$pid"; then
    say "$id is installed, but musterd (process $pid) runs another version." \
      "$(if hidden; then echo "$change_over"; else echo "Run \`systemctl restart musterd\`: jobs run on"; fi)"
    exit 1
  fi
}

removing() {
  if booted && ! hidden; then
    # Jobs and their supervisors have scopes of their own: they run on.
    invoke stop musterd.service || systemctl stop musterd.service
    for_dpkg || systemctl disable -q musterd.service || true
    running=$(jobs)
    if [ -z "$running" ]; then
      systemctl stop 'muster-nursery:*.scope' || true
      # Only without any process: to stop a slice stops all that is in it.
      if grep -q '^populated 0' /sys/fs/cgroup/muster.slice/cgroup.events; then systemctl stop muster.slice; fi || true
      rm -rf /run/muster
    else
      say "jobs continue without a daemon: $(echo $running). To reach them, install the package again"
    fi
  fi
  rm -f "$home/current" "$home/previous"
  sweep
  for id in $(versions); do
    say "$home/$id stays for processes that use it: remove it when they have ended"
  done
}

case ${1-} in
  installed) installed "${2-}" ;;
  check) check ;;
  removing) removing ;;
  sweep) sweep ;;
  *) say "usage: $0 installed [ID] | check | removing | sweep"; exit 2 ;;
esac
