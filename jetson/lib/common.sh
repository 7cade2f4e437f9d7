# shellcheck shell=bash
# Shared by setup.sh, power.sh and uninstall.sh: what machine this is, and how a change is made, shown and remembered.
#
# Every change goes through `run`, `in_root`, `put_file` or `make_dir`. With --dry-run they print and do nothing. With
# --root DIR facts are read below DIR, files are written below it, and commands run in it (chroot): for the file system
# of a board that is mounted here.

ROOT=""
DRY_RUN=no
CHANGES=0
MANIFEST=""
PLANNED="|"    # directories of a dry run

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2
    exit 1
}

need_value() {    # an option, and the number of words that are left with it
    [ "$2" -ge 2 ] || die "$1 needs a value" "see $(basename "$0") --help"
}

check_root() {
    [ -z "$ROOT" ] && return 0
    [ -d "$ROOT" ] || die "--root $ROOT: no such directory"
    ROOT="$(cd "$ROOT" && pwd)"
    if [ "$ROOT" = / ]; then ROOT=""; fi
}

need_path() {    # OPTION PATH, as the manifest, the units and sed take it
    case "$2" in
        *[[:space:]%\$\&\|\\\"\']*) ;;
        /*) return 0 ;;
    esac
    die "$1 $2: expected a path from / on, without spaces and without any of % \$ & | \\ \" '" "give another with $1"
}

need_superuser() {
    if [ "$DRY_RUN" = no ] && [ "$(id -u)" -ne 0 ]; then
        die "this changes the system, so it needs root" "sudo $0 $*   (or --dry-run to see what it would do)"
    fi
}

# --- changes -----------------------------------------------------------------------------------------------------------

shown() {    # the words of a command, quoted where a shell needs it
    local word line=""
    for word in "$@"; do
        case "$word" in
            "" | *[!A-Za-z0-9_@%+=:,./-]*) line="$line '${word//\'/\'\\\'\'}'" ;;
            *) line="$line $word" ;;
        esac
    done
    printf '%s' "${line# }"
}

run() {    # a command of this machine
    CHANGES=$((CHANGES + 1))
    printf '+ %s\n' "$(shown "$@")"
    [ "$DRY_RUN" = yes ] || "$@" || die "this command failed: $(shown "$@")"
}

in_root() {    # a command of the machine that is set up
    if [ -n "$ROOT" ]; then run chroot "$ROOT" "$@"; else run "$@"; fi
}

asks() {    # a question to the machine that is set up: changes nothing, so it is asked in a dry run too
    if [ -n "$ROOT" ]; then chroot "$ROOT" "$@"; else "$@"; fi
}

put_file() {    # PATH MODE: the file gets the standard input, unless it has that content
    local path="$ROOT$1" content
    content="$(cat && printf x)"    # the x keeps the last newline
    content="${content%x}"
    remember file "$1" "$(printf '%s' "$content" | sha256sum | cut -d' ' -f1)"
    if [ -f "$path" ] && [ "$(cat "$path" && printf x)" = "${content}x" ]; then return 0; fi
    CHANGES=$((CHANGES + 1))
    printf 'file %s (mode %s)\n' "$1" "$2"
    [ "$DRY_RUN" = yes ] && return 0
    mkdir -p "$(dirname "$path")"
    printf '%s' "$content" > "$path.part"
    chmod "$2" "$path.part"
    mv "$path.part" "$path"
}

make_dir() {    # PATH MODE, and the directories above it
    if [ -d "$ROOT$1" ] || [ "${PLANNED#*"|$1|"}" != "$PLANNED" ]; then return 0; fi
    if [ "$(dirname "$1")" != / ]; then make_dir "$(dirname "$1")" 755; fi
    PLANNED="$PLANNED$1|"
    CHANGES=$((CHANGES + 1))
    printf 'directory %s (mode %s)\n' "$1" "$2"
    if [ "$DRY_RUN" = no ]; then
        mkdir "$ROOT$1"
        chmod "$2" "$ROOT$1"
    fi
    remember dir "$1"
}

remember() {    # KIND NAME [SHA256]: a line of the manifest; a later line about the same thing takes the place of it
    local path="$ROOT$MANIFEST"
    { [ "$DRY_RUN" = yes ] || [ -z "$MANIFEST" ]; } && return 0
    mkdir -p "$(dirname "$path")"
    touch "$path"
    local line="$1 $2${3:+ $3}"
    grep -qxF -- "$line" "$path" && return 0
    local rest
    rest="$(awk -v kind="$1" -v name="$2" '!($1 == kind && $2 == name)' "$path")"
    { [ -z "$rest" ] || printf '%s\n' "$rest"; printf '%s\n' "$line"; } > "$path.part"
    mv "$path.part" "$path"
}

# --- facts -------------------------------------------------------------------------------------------------------------

fact() {    # the text of a file below the root, without the zeros of a device tree; nothing where there is none
    if [ -r "$ROOT$1" ]; then tr '\0' '\n' < "$ROOT$1"; fi
}

jetpack_of() {    # JetPack of an L4T release; a release that is not known counts as its major release's
    # The same as edgeserve/device/boards.py: tests/jetson/test_setup.py compares them.
    case "$1" in
        32.6.1) echo 4.6 ;;
        32.7.[1-6]) echo "4.6.${1##*.}" ;;
        35.1.0) echo 5.0.2 ;;
        35.2.1) echo 5.1 ;;
        35.3.1) echo 5.1.1 ;;
        35.4.1) echo 5.1.2 ;;
        35.5.0) echo 5.1.3 ;;
        35.6.0) echo 5.1.4 ;;
        35.6.[123]) echo 5.1.5 ;;
        35.6.4) echo 5.1.6 ;;
        36.[23].0) echo 6.0 ;;
        36.4.0) echo 6.1 ;;
        36.4.3) echo 6.2 ;;
        36.4.[47]) echo 6.2.1 ;;
        36.5.0) echo 6.2.2 ;;
        38.2.[01]) echo 7.0 ;;
        38.4.0) echo 7.1 ;;
        39.[02].0) echo 7.2 ;;
        *) family_of "${1%%.*}" ;;
    esac
}

family_of() {    # JetPack of a major release of L4T
    case "$1" in
        32) echo 4 ;;
        34 | 35) echo 5 ;;
        36) echo 6 ;;
        38 | 39) echo 7 ;;
    esac
}

# shellcheck disable=SC2034  # the scripts that source this file read them
detect() {    # BOARD SOC ARCH L4T JETPACK FAMILY (4 5 6 7 workstation)
    local compatible
    BOARD="$(fact /proc/device-tree/model | head -n 1)"
    compatible="$(fact /proc/device-tree/compatible | tr '\n' ' ')"
    SOC="$(printf '%s' "$compatible" | grep -oE 'tegra(210|186|194|234|264)' | head -n 1 || true)"
    L4T="$(fact /etc/nv_tegra_release | sed -nE 's/.*R([0-9]+) \(release\), REVISION: ([0-9.]+).*/\1.\2/p' | head -n 1)"
    if [ -z "$L4T" ]; then    # the file is missing in containers, and on some images
        L4T="$(dpkg-query --admindir="$ROOT/var/lib/dpkg" -W -f '${Version}' nvidia-l4t-core 2> /dev/null \
            | sed -nE 's/^([0-9]+\.[0-9.]+)-.*/\1/p' || true)"
    fi
    case "$L4T" in *.*.* | "") ;; *) L4T="$L4T.0" ;; esac
    JETPACK="$(jetpack_of "$L4T")"
    ARCH="$(uname -m)"
    if [ -n "$SOC$L4T" ]; then ARCH=aarch64; fi
    FAMILY="$(family_of "${L4T%%.*}")"
    if [ -n "$FAMILY" ]; then return 0; fi
    if [ -z "$SOC$L4T" ]; then
        FAMILY=workstation
    elif [ "${L4T%%.*}" -gt 39 ] 2> /dev/null; then
        FAMILY=7
    else
        FAMILY=unknown
    fi
}

python_of() {    # the system's Python of a family: the only one that can import JetPack's TensorRT
    case "$1" in
        4) echo 3.6 ;;
        5) echo 3.8 ;;
        6) echo 3.10 ;;
        7) echo 3.12 ;;
    esac
}

is_installed() {    # a Debian package
    dpkg-query --admindir="$ROOT/var/lib/dpkg" -W -f '${Status}' "$1" 2> /dev/null | grep -q '^install ok installed'
}

has_group() { grep -q "^$1:" "$ROOT/etc/group" 2> /dev/null; }
has_user() { grep -q "^$1:" "$ROOT/etc/passwd" 2> /dev/null; }
in_group() { grep -qE "^$2:[^:]*:[^:]*:(.*,)?$1(,|\$)" "$ROOT/etc/group" 2> /dev/null; }
