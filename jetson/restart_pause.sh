#!/bin/sh
# The pause before edgeserve.service starts again: 0 s after a clean end, then 5, 10, 20 ... up to 300 s while one start
# after the other fails; a server that ran for ten minutes begins anew. systemd has that from 254 on (RestartSteps), JetPack
# has 245 to 255.
#   restart_pause.sh ended    ExecStopPost: how the server ended is in SERVICE_RESULT
#   restart_pause.sh wait     ExecStartPre
set -eu
RECORD="${RUNTIME_DIRECTORY:?set by systemd}/failed_starts"    # "COUNT UPTIME": so many in a row, the last start then
FIRST=5 LONGEST=300 GOOD_RUN=600

now() { cut -d. -f1 "${UPTIME:-/proc/uptime}"; }

count=0 started=0
if [ -r "$RECORD" ]; then read -r count started < "$RECORD" || true; fi
case "${1:-}" in
    ended)
        if [ "${SERVICE_RESULT:-success}" = success ]; then
            rm -f "$RECORD"
        elif [ "$(($(now) - started))" -ge "$GOOD_RUN" ]; then
            echo "1 0" > "$RECORD"
        else
            echo "$((count + 1)) $started" > "$RECORD"
        fi
        ;;
    wait)
        pause=0
        if [ "$count" -gt 0 ]; then
            pause=$FIRST
            while [ "$count" -gt 1 ] && [ "$pause" -lt "$LONGEST" ]; do
                pause=$((pause * 2)) count=$((count - 1))
            done
            if [ "$pause" -gt "$LONGEST" ]; then pause=$LONGEST; fi
            echo "the server failed before; the next start is in $pause s" >&2
            "${SLEEP:-sleep}" "$pause"
            read -r count _ < "$RECORD"
        fi
        echo "$count $(now)" > "$RECORD"
        ;;
    *) echo "usage: $0 ended|wait" >&2; exit 2 ;;
esac
