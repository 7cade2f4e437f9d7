#!/usr/bin/env bash
# The power mode of a Jetson by its name, pinned clocks and the fan's profile; what was there before is kept for --undo.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=lib/common.sh source-path=SCRIPTDIR
. "$HERE/lib/common.sh"

usage() {
    cat << 'TEXT'
usage: jetson/power.sh [--root DIR] [--dry-run] ACTION...

  --show           mode, clocks and fan now
  --list           the modes of this board
  --mode NAME      set this power mode (numbers mean different modes on different boards, so they are not taken);
                   max: the one with the most power, under any name
  --reboot         with --mode or --undo: let the mode restart the board where it must
  --clocks         pin all clocks to the highest of the mode
  --fan PROFILE    quiet, cool, or another profile of /etc/nvfancontrol.conf
  --undo           everything as it was before the first --mode, --clocks or --fan
  --undo-clocks    only the clocks

The mode and the fan's profile survive a restart, pinned clocks do not: systemctl enable edgeserve-clocks.
TEXT
}

ACTION="" MODE="" CLOCKS=no FAN="" REBOOT=no
WORDS=("$@")
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) DRY_RUN=yes ;;
        --root) need_value "$1" $#; ROOT="$2"; shift ;;
        --show | --list | --undo | --undo-clocks) ACTION="${1#--}" ;;
        --mode) need_value "$1" $#; MODE="$2"; shift ;;
        --clocks) CLOCKS=yes ;;
        --fan) need_value "$1" $#; FAN="$2"; shift ;;
        --reboot) REBOOT=yes ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown option $1" "see $0 --help" ;;
    esac
    shift
done
check_root
CONF=/etc/nvpmodel.conf
FAN_CONF=/etc/nvfancontrol.conf
STATE=/var/lib/edgeserve-setup/power
[ -r "$ROOT$CONF" ] || die "$CONF is missing: this is no Jetson, or nvpmodel is not installed"

modes() {    # "ID NAME" lines
    sed -nE 's/^[[:space:]]*<[[:space:]]*POWER_MODEL[[:space:]]+ID=([0-9]+)[[:space:]]+NAME=([^ >]+).*/\1 \2/p' "$ROOT$CONF"
}

id_of() { modes | awk -v name="$1" 'tolower($2) == tolower(name) { print $1; exit }'; }

mode_max() {    # the name of the mode with the most power: without a cap where there is one, else by watts, then by cores
    modes | awk '{
        rank = 0
        if (match($2, /[0-9]+W/)) rank = substr($2, RSTART, RLENGTH - 1) + 0
        if ($2 ~ /_ALL$/) rank += .99
        else if (match($2, /[0-9]+CORE/)) rank += substr($2, RSTART, RLENGTH - 4) / 100
        if ($2 ~ /^MAXN/) rank = 1000 + ($2 ~ /SUPER/)
        if (NR == 1 || rank > best) { best = rank; name = $2 }
    } END { print name }'
}

mode_now() {    # its name, from nvpmodel's own record
    local id
    id="$(fact /var/lib/nvpmodel/status | sed -nE 's/.*pmode:0*([0-9]+).*/\1/p' | head -n 1)"
    if [ -z "$id" ]; then id="$(sed -nE 's/.*PM_CONFIG[[:space:]]+DEFAULT=([0-9]+).*/\1/p' "$ROOT$CONF" | head -n 1)"; fi
    modes | awk -v id="$id" '$1 == id { print $2; exit }'
}

fan_now() { fact "$FAN_CONF" | awk '$1 == "FAN_DEFAULT_PROFILE" { print $2; exit }'; }

keep() {    # NAME VALUE: what was there before, unless nothing tells or it is kept already
    if [ -z "$2" ] || [ -e "$ROOT$STATE/$1" ]; then return 0; fi
    printf 'file %s (was %s)\n' "$STATE/$1" "$2"
    [ "$DRY_RUN" = yes ] && return 0
    mkdir -p "$ROOT$STATE"
    printf '%s\n' "$2" > "$ROOT$STATE/$1"
}

forget() { [ "$DRY_RUN" = yes ] || rm -f "$ROOT$STATE/$1"; }

set_mode() {    # NAME [--undo]: --undo is what asked for it, for the message
    local id answer=no
    id="$(id_of "$1")"
    [ -n "$id" ] || die "no power mode $1 on this board" "it has $(modes | cut -d' ' -f2 | tr '\n' ' ')"
    if [ "$(mode_now)" = "$(modes | awk -v id="$id" '$1 == id { print $2 }')" ]; then
        say "power mode: $(mode_now) already"
        return 0
    fi
    if [ "$REBOOT" = yes ]; then answer=YES; fi
    # Some modes ask whether to restart the board; without --reboot the answer is no.
    CHANGES=$((CHANGES + 1))
    printf '+ nvpmodel -m %s   (%s)\n' "$id" "$1"
    [ "$DRY_RUN" = yes ] && return 0
    if [ -n "$ROOT" ]; then
        printf '%s\n' "$answer" | chroot "$ROOT" nvpmodel -m "$id" || true
    else
        printf '%s\n' "$answer" | nvpmodel -m "$id" || true
    fi
    if [ "$(mode_now)" != "$(modes | awk -v id="$id" '$1 == id { print $2 }')" ]; then
        die "the mode is still $(mode_now): $1 needs a restart of the board" "$0 ${2:---mode $1} --reboot"
    fi
}

set_fan() {    # PROFILE
    if [ ! -r "$ROOT$FAN_CONF" ]; then
        die "$FAN_CONF is missing: this board has no nvfancontrol" "set the fan with its own tool"
    fi
    grep -qE "^[[:space:]]*FAN_PROFILE[[:space:]]+$1[[:space:]]*\{" "$ROOT$FAN_CONF" ||
        die "no fan profile $1 in $FAN_CONF" \
            "it has $(awk '$1 == "FAN_PROFILE" { print $2 }' "$ROOT$FAN_CONF" | sort -u | tr '\n' ' ')"
    if [ "$(fan_now)" = "$1" ]; then
        say "fan: $1 already"
        return 0
    fi
    run sed -i -E "s/^([[:space:]]*FAN_DEFAULT_PROFILE[[:space:]]+).*/\\1$1/" "$ROOT$FAN_CONF"
    in_root systemctl stop nvfancontrol    # after what may fail: without it nothing turns the fan
    run rm -f "$ROOT/var/lib/nvfancontrol/status"    # it remembers the last profile, and would win
    in_root systemctl start nvfancontrol
}

pin_clocks() {
    if [ ! -e "$ROOT$STATE/clocks" ]; then
        [ "$DRY_RUN" = yes ] || mkdir -p "$ROOT$STATE"
        in_root jetson_clocks --store "$STATE/clocks"
    fi
    in_root jetson_clocks
}

release_clocks() {
    if [ -e "$ROOT$STATE/clocks" ]; then
        in_root jetson_clocks --restore "$STATE/clocks"
        forget clocks
    fi
}

undo() {
    local what
    if [ ! -d "$ROOT$STATE" ]; then
        say "nothing to undo: nothing was changed by this script"
        return 0
    fi
    release_clocks    # before the mode: they belong to the mode of now
    what="$(fact "$STATE/fan")"
    if [ -n "$what" ]; then
        set_fan "$what"
        forget fan
    fi
    what="$(fact "$STATE/mode")"    # last: it may need a restart of the board
    if [ -n "$what" ]; then
        set_mode "$what" --undo
        forget mode
    fi
    [ "$DRY_RUN" = yes ] || rmdir "$ROOT$STATE" 2> /dev/null || true
}

show() {
    say "power mode: $(mode_now) (of $(modes | cut -d' ' -f2 | tr '\n' ' '))"
    say "fan: $(fan_now || true)"
    if [ -e "$ROOT$STATE/clocks" ]; then say "clocks: pinned by this script"; else say "clocks: not pinned by this script"; fi
}

case "$ACTION" in
    show) show; exit 0 ;;
    list) modes; exit 0 ;;
esac
[ -n "$ACTION$MODE$FAN" ] || [ "$CLOCKS" = yes ] || { usage; exit 2; }
need_superuser "${WORDS[@]+"${WORDS[@]}"}"
case "$ACTION" in
    undo) undo; exit 0 ;;
    undo-clocks) release_clocks; exit 0 ;;
esac
if [ "$MODE" = max ]; then MODE="$(mode_max)"; fi
if [ -n "$MODE" ]; then
    [ -n "$(id_of "$MODE")" ] || die "no power mode $MODE on this board" "it has $(modes | cut -d' ' -f2 | tr '\n' ' ')"
    keep mode "$(mode_now)"
    if [ -e "$ROOT$STATE/clocks" ]; then    # pinned to the old mode's highest: let them follow the new one
        in_root jetson_clocks --restore "$STATE/clocks"
        CLOCKS=yes
        trap 'in_root jetson_clocks' EXIT    # where the mode is refused, too
    fi
    set_mode "$MODE"
    trap - EXIT
fi
if [ "$CLOCKS" = yes ]; then pin_clocks; fi
if [ -n "$FAN" ]; then
    keep fan "$(fan_now)"
    set_fan "$FAN"
fi
