#!/bin/sh
# Keep a program running: start it in a session of its own, again whenever it ends, until told to stop.
#   keep.sh start NAME PROGRAM [ARGUMENT...]    replaces what runs under NAME; output goes to logs/NAME.log
#   keep.sh stop NAME                           SIGTERM to the session, SIGKILL after 40 s
# State lies in $SHARDYARD_HOME (~/.shardyard). Ends by process id only: other Rays of the machine are left alone.
set -eu
action=$1
name=$2
shift 2
home=${SHARDYARD_HOME:-$HOME/.shardyard}
pid_file=$home/$name.pid
log=$home/logs/$name.log

alive() {  # the session leader is still the loop that we started, not a stranger with a recycled id
    [ -s "$pid_file" ] && tr '\0' ' ' <"/proc/$(cat "$pid_file")/cmdline" 2>/dev/null | grep -q "keep.sh loop $name "
}

case $action in
start)
    "$0" stop "$name"
    mkdir -p "$home/logs"
    chmod 700 "$home"
    setsid "$0" loop "$name" "$@" >>"$log" 2>&1 </dev/null &
    for _ in $(seq 100); do
        alive && exit 0
        sleep 0.1
    done
    echo "keep.sh: $name did not start; see $log" >&2
    exit 1
    ;;
loop)  # we are the leader of a new session: our process group holds all that we start
    echo $$ >"$pid_file"
    trap 'stopping=1; kill -TERM "$child" 2>/dev/null' TERM
    stopping=
    while [ -z "$stopping" ]; do
        "$@" &
        child=$!
        wait "$child" || true
        [ -n "$stopping" ] || sleep 2
    done
    wait "$child" || true
    rm -f "$pid_file"
    kill -KILL 0 # whatever it left in our process group, and this loop
    ;;
stop)
    alive || exit 0
    leader=$(cat "$pid_file")
    kill -TERM "$leader"
    for _ in $(seq 400); do
        alive || exit 0
        sleep 0.1
    done
    kill -KILL -- "-$leader"
    rm -f "$pid_file"
    ;;
*)
    echo "keep.sh: start or stop, not $action" >&2
    exit 2
    ;;
esac
