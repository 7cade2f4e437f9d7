#!/usr/bin/env bash
# Take back what setup.sh did, and nothing else: it wrote down each thing that it made. The configuration, profiles and
# engine caches stay unless --purge.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=lib/common.sh source-path=SCRIPTDIR
. "$HERE/lib/common.sh"

usage() {
    cat << 'TEXT'
usage: jetson/uninstall.sh [--root DIR] [--dry-run] [--prefix DIR] [--purge] [--keep-packages]

  --prefix DIR       a workstation's: where setup.sh put the program (~/.local/share/edgeserve)
  --purge            the configuration too, even when it was edited, and what the service stored
                     (/var/lib/edgeserve with its profiles, /var/cache/edgeserve)
  --keep-packages    leave the system packages that setup.sh installed
TEXT
}

PREFIX="" PURGE=no KEEP_PACKAGES=no
WORDS=("$@")
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) DRY_RUN=yes ;;
        --root) need_value "$1" $#; ROOT="$2"; shift ;;
        --prefix) need_value "$1" $#; PREFIX="$2"; shift ;;
        --purge) PURGE=yes ;;
        --keep-packages) KEEP_PACKAGES=yes ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown option $1" "see $0 --help" ;;
    esac
    shift
done
check_root
detect
if [ "$FAMILY" = workstation ]; then
    MANIFEST="${PREFIX:-$HOME/.local/share/edgeserve}/.setup/manifest"
else
    MANIFEST=/var/lib/edgeserve-setup/manifest
    need_superuser "${WORDS[@]+"${WORDS[@]}"}"
fi
if [ ! -e "$ROOT$MANIFEST" ]; then
    say "nothing to remove: $MANIFEST is not there"
    exit 0
fi
LEFT=0
POWER_LEFT=""    # the command that undoes what needs a restart of the board

lines_of() { awk -v kind="$1" '$1 == kind { print $2, $3 }' "$ROOT$MANIFEST"; }

remove_path() {    # a file or a tree that setup.sh made
    [ -e "$ROOT$1" ] || return 0
    run rm -rf "$ROOT${1:?}"
}

remove_files() {
    local path digest
    while read -r path digest; do
        [ -f "$ROOT$path" ] || continue
        case "$path" in
            *.toml)
                if [ "$PURGE" = no ]; then
                    say "kept: $path (--purge removes it)"
                    LEFT=1
                    printf 'file %s %s\n' "$path" "$digest" >> "$KEPT"
                    continue
                fi ;;
            *)
                if [ "$PURGE" = no ] && [ "$(sha256sum < "$ROOT$path" | cut -d' ' -f1)" != "$digest" ]; then
                    say "kept: $path was changed since setup.sh wrote it (--purge removes it)"
                    LEFT=1
                    printf 'file %s %s\n' "$path" "$digest" >> "$KEPT"
                    continue
                fi ;;
        esac
        remove_path "$path"
    done < <(lines_of file)
}

remove_dirs() {    # that setup.sh made, deepest first, when they are empty
    local path
    for path in $DIRS; do
        if [ -d "$ROOT$path" ] && [ -z "$(ls -A "$ROOT$path")" ]; then run rmdir "$ROOT$path"; fi
    done
}

taken_with() {    # PACKAGE: what apt would remove with it, by apt's own simulation
    local lines
    lines="$(asks env LC_ALL=C apt-get --simulate remove "$1" 2> /dev/null)" || return 1
    printf '%s\n' "$lines" | awk '$1 == "Remv" { print $2 }'
}

remove_packages() {    # that setup.sh installed, but for the ones that other packages need by now
    local name other taken others candidates=" $* " before=""
    while [ "$candidates" != "$before" ]; do    # a package that stays keeps the ones that it needs
        before="$candidates"
        for name in $before; do
            if ! taken="$(taken_with "$name")"; then
                say "kept: packages$before (apt-get --simulate does not say what else would go)"
                return 0
            fi
            others=""
            for other in $taken; do
                case "$candidates" in *" $other "*) ;; *) others="$others $other" ;; esac
            done
            [ -n "$others" ] || continue
            say "kept: package $name, since apt would remove$others with it"
            candidates="${candidates/ $name / }"
        done
    done
    read -ra names <<< "$candidates"
    if [ ${#names[@]} -gt 0 ]; then in_root env DEBIAN_FRONTEND=noninteractive apt-get remove --yes "${names[@]}"; fi
}

DIRS="$(lines_of dir | cut -d' ' -f1 | sort -r)"
KEPT="$(mktemp)"
trap 'rm -f "$KEPT"' EXIT
for unit in edgeserve.service edgeserve-clocks.service; do    # not there: an uninstall that failed has removed it
    if [ -z "$ROOT" ] && [ -n "$(lines_of enabled)" ] && [ -e "/etc/systemd/system/$unit" ]; then
        run systemctl stop "$unit"
    fi
done
while read -r unit _; do
    if [ -e "$ROOT/etc/systemd/system/$unit" ]; then in_root systemctl disable "$unit"; fi
done < <(
    lines_of enabled
    if [ -L "$ROOT/etc/systemd/system/multi-user.target.wants/edgeserve-clocks.service" ]; then
        echo edgeserve-clocks.service
    fi
)
if [ -d "$ROOT/var/lib/edgeserve-setup/power" ] && [ "$FAMILY" != workstation ]; then
    words=("$HERE/power.sh")
    [ -z "$ROOT" ] || words+=(--root "$ROOT")
    [ "$DRY_RUN" = no ] || words+=(--dry-run)
    say "+ $(shown "${words[@]}" --undo)"
    "${words[@]}" --undo || POWER_LEFT="$(shown "${words[@]}" --undo --reboot)"
fi
while read -r path _; do remove_path "$path"; done < <(lines_of tree)
remove_files
remove_dirs
if [ -n "$(lines_of enabled)" ] && [ -z "$ROOT" ]; then run systemctl daemon-reload; fi
while read -r name _; do
    if in_group "$name" edgeserve; then in_root gpasswd --delete "$name" edgeserve; fi
done < <(lines_of member)
while read -r name _; do if has_user "$name"; then in_root userdel "$name"; fi; done < <(lines_of user)
while read -r name _; do in_root apt-mark unhold "$name"; done < <(lines_of hold)
packages="$(lines_of package | cut -d' ' -f1 | tr '\n' ' ')"
if [ -n "$packages" ] && [ "$KEEP_PACKAGES" = no ]; then
    read -ra names <<< "$packages"
    remove_packages "${names[@]}"
elif [ -n "$packages" ]; then
    say "kept: packages $packages"
fi
if [ "$PURGE" = yes ] && [ "$FAMILY" != workstation ]; then
    for path in /var/lib/edgeserve /var/cache/edgeserve; do remove_path "$path"; done
fi
if [ -n "$POWER_LEFT" ]; then say "left: the power mode of now; $POWER_LEFT sets back the one of before"; fi
if [ "$DRY_RUN" = yes ]; then
    say "dry run: nothing was changed"
elif [ "$LEFT" -eq 1 ]; then
    for path in $DIRS; do printf 'dir %s\n' "$path" >> "$KEPT"; done
    cp "$KEPT" "$ROOT$MANIFEST"    # so that a later --purge finds them
else
    rm -f "$ROOT$MANIFEST"
    rmdir "$(dirname "$ROOT$MANIFEST")" 2> /dev/null || true
    for path in $DIRS; do rmdir "$ROOT$path" 2> /dev/null || true; done    # the manifest lay in one of them
    say "done: nothing of setup.sh is left"
fi
