#!/usr/bin/env bash
# Set up EdgeServe on a Jetson (JetPack 5, 6, 7) or a workstation: packages, a virtual environment, a system user with
# the device's groups, a configuration and a service. Run it again at any time: what is there already stays.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PROJECT="$(dirname "$HERE")"
# shellcheck source=lib/common.sh source-path=SCRIPTDIR
. "$HERE/lib/common.sh"

usage() {
    cat << 'TEXT'
usage: jetson/setup.sh [options]

  --dry-run             print every command and file, change nothing
  --root DIR            set up the board whose file system is mounted at DIR
  --prefix DIR          where the program goes (/opt/edgeserve; workstation: ~/.local/share/edgeserve)
  --config FILE         configuration (/etc/edgeserve/edge.toml; workstation: PREFIX/edge.toml); an existing one stays
  --python PATH         this Python instead of the system's
  --onnxruntime WHEEL   a GPU build of ONNX Runtime for this JetPack (file or URL), instead of the CPU build;
                        try (JetPack 7): the general build for CUDA 13, kept where a kernel runs with it on this GPU
  --index URL           take onnxruntime-gpu from this package index for Jetson (NVIDIA's Jetson AI Lab has one per
                        JetPack and CUDA version: docs/start/jetson.md)
  --language            also llama.cpp, built for this machine's GPU: once, which takes a while (half an hour and more on
                        an Orin Nano); the wheel stays in PREFIX/wheels
  --client USER         this user may talk to the server: becomes a member of the group edgeserve (may be repeated)
  --hold                keep apt from upgrading nvidia-l4t-* packages
  --no-apt              install no system packages
  --no-cuda             no CUDA binding for Python
  --no-service          no user, no groups, no systemd unit
  --start               start the service at the end

Nothing outside PREFIX is touched on a workstation. uninstall.sh takes back what this script did.
TEXT
}

PREFIX="" CONFIG="" PYTHON="" ORT_WHEEL="" ORT_INDEX="" HOLD=no APT=yes CUDA=yes SERVICE=yes START=no LANGUAGE=no
CLIENTS=()
WORDS=("$@")
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) DRY_RUN=yes ;;
        --root) need_value "$1" $#; ROOT="$2"; shift ;;
        --prefix) need_value "$1" $#; PREFIX="$2"; shift ;;
        --config) need_value "$1" $#; CONFIG="$2"; shift ;;
        --python) need_value "$1" $#; PYTHON="$2"; shift ;;
        --onnxruntime) need_value "$1" $#; ORT_WHEEL="$2"; shift ;;
        --index) need_value "$1" $#; ORT_INDEX="$2"; shift ;;
        --client) need_value "$1" $#; CLIENTS+=("$2"); shift ;;
        --language) LANGUAGE=yes ;;
        --hold) HOLD=yes ;;
        --no-apt) APT=no ;;
        --no-cuda) CUDA=no ;;
        --no-service) SERVICE=no ;;
        --start) START=yes ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown option $1" "see $0 --help" ;;
    esac
    shift
done
[ -z "$ORT_WHEEL" ] || [ -z "$ORT_INDEX" ] || die "--onnxruntime and --index exclude each other"
check_root

# --- what machine it is ------------------------------------------------------------------------------------------------

look() {
    detect
    if [ "$FAMILY" = workstation ]; then
        SERVICE=no APT=no HOLD=no
        say "board: no Jetson ($ARCH)"
        PREFIX="${PREFIX:-$HOME/.local/share/edgeserve}"
        CONFIG="${CONFIG:-$PREFIX/edge.toml}"
        MANIFEST="$PREFIX/.setup/manifest"
        look_for_gpu
        [ ${#CLIENTS[@]} -eq 0 ] || die "--client is for the service of a board; a workstation's server is its user's own"
    else
        say "board: ${BOARD:-unknown} (${SOC:-unknown SoC})"
        say "L4T: ${L4T:-unknown}, JetPack ${JETPACK:-unknown}"
        PREFIX="${PREFIX:-/opt/edgeserve}"
        CONFIG="${CONFIG:-/etc/edgeserve/edge.toml}"
        MANIFEST=/var/lib/edgeserve-setup/manifest
        need_superuser "${WORDS[@]+"${WORDS[@]}"}"
    fi
    need_path --prefix "$PREFIX"
    need_path --config "$CONFIG"
    case "$FAMILY" in
        4) die "JetPack 4 has Python 3.6, EdgeServe needs 3.8" "flash JetPack 5 (Xavier) or later (Orin)" ;;
        unknown) die "L4T ${L4T:-of this board} is not known: neither JetPack 5, 6 nor 7" \
            "is /etc/nv_tegra_release there, and the package nvidia-l4t-core?" ;;
    esac
    if [ "$FAMILY" != workstation ] && [ -z "$JETPACK" ]; then
        warn "L4T $L4T is newer than this script knows; going on as with JetPack $FAMILY"
    fi
    if [ "$FAMILY" = 6 ] && [ "$L4T" = 36.4.7 ]; then
        warn "L4T 36.4.7: large GPU allocations fail earlier than before (NvMapMemAllocInternalTagged, error 12);" \
            "give [device.*] memory some room"
    fi
    if [ "$ORT_WHEEL" = try ]; then
        [ "$FAMILY" = 7 ] || die "--onnxruntime try is for JetPack 7, this is JetPack $FAMILY" \
            "give the wheel for it (docs/start/jetson.md)"
        ORT_WHEEL=onnxruntime-gpu
    fi
    find_python
}

DRIVER=""    # a workstation's NVIDIA driver: its major version, "wsl" for Windows' own, nothing without one

look_for_gpu() {
    local vendor
    DRIVER="$(fact /proc/driver/nvidia/version | sed -nE 's/^NVRM version:.*[^0-9.]([0-9]{3})\.[0-9.]+ .*/\1/p' | head -n 1)"
    if [ -z "$DRIVER" ] && [ -e "$ROOT/dev/dxg" ]; then
        for vendor in "$ROOT"/usr/lib/wsl/lib/libcuda.so*; do if [ -e "$vendor" ]; then DRIVER=wsl; fi; done
    fi
    if [ -n "$DRIVER" ]; then say "GPU: NVIDIA, driver $DRIVER"; return 0; fi
    for vendor in "$ROOT"/sys/bus/pci/devices/*/vendor; do
        if [ "$(cat "$vendor" 2> /dev/null)" = 0x10de ]; then
            warn "an NVIDIA device without its driver: models run on the CPU. To mend it:" \
                "sudo ubuntu-drivers install (Debian: sudo apt install nvidia-driver), restart, and run this again"
            return 0
        fi
    done
}

find_python() {
    local wanted
    wanted="$(python_of "$FAMILY")"
    if [ -z "$PYTHON" ]; then
        if [ "$FAMILY" = workstation ]; then
            PYTHON="$(command -v python3 || true)"
            [ -n "$PYTHON" ] || die "no python3 in PATH" "install Python 3.8 to 3.13, or give --python PATH"
        else
            PYTHON="/usr/bin/python$wanted"
            [ -x "$ROOT$PYTHON" ] || die "$PYTHON is missing, the system's Python of JetPack $FAMILY" \
                "apt-get install python$wanted"
        fi
    fi
    if [ "$FAMILY" = workstation ]; then
        "$PYTHON" -c 'import sys; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 13))' ||
            die "$PYTHON is $("$PYTHON" --version 2>&1), EdgeServe needs 3.8 to 3.13" "give --python PATH"
        PYTHON_VERSION="$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    else
        PYTHON_VERSION="$(basename "$PYTHON" | sed -nE 's/^python(3\.[0-9]+)$/\1/p')"
        if [ "$PYTHON_VERSION" != "$wanted" ]; then
            warn "$PYTHON is not the system's Python $wanted: it cannot import JetPack's TensorRT"
        fi
    fi
    say "Python: $PYTHON (${PYTHON_VERSION:-unknown version})"
}

# --- the steps ---------------------------------------------------------------------------------------------------------

apt_packages() {    # what pip cannot bring: venv, CUDA's libraries, TensorRT's Python module, which needs its libraries.
    # The package tensorrt would bring headers, samples and documents too.
    case "$FAMILY" in
        5) echo python3.8-venv python3-pip nvidia-cuda python3-libnvinfer ;;
        6) echo python3.10-venv python3-pip nvidia-cuda python3-libnvinfer ;;
        7) echo python3.12-venv python3-pip nvidia-cuda python3-libnvinfer ;;
    esac
    if [ "$LANGUAGE" = yes ]; then echo build-essential nvidia-cuda-dev; fi
}

system_packages() {
    [ "$APT" = yes ] || return 0
    local name missing=() held
    for name in $(apt_packages); do is_installed "$name" || missing+=("$name"); done
    if [ ${#missing[@]} -gt 0 ]; then
        in_root apt-get update
        in_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
        for name in "${missing[@]}"; do remember package "$name"; done
    fi
    if [ "$HOLD" = yes ]; then
        held="$(asks apt-mark showhold 2> /dev/null || true)"
        for name in $(dpkg-query --admindir="$ROOT/var/lib/dpkg" -W -f '${Package}\n' 'nvidia-l4t-*' 2> /dev/null); do
            case " $(printf '%s' "$held" | tr '\n' ' ') " in *" $name "*) continue ;; esac
            in_root apt-mark hold "$name"
            remember hold "$name"
        done
    fi
}

GROUPS_OF_DEVICES="video render gpio i2c"
# video: /dev/nvhost-*, /dev/nvmap, /dev/nvgpu/*; render: /dev/dri (JetPack 6 and later); gpio, i2c: what a robot's own
# host functions reach for. Power, clocks and temperatures below /sys are readable without a group.

user_and_groups() {
    [ "$SERVICE" = yes ] || return 0
    local group client
    if ! has_user edgeserve; then
        in_root useradd --system --user-group --home-dir /var/lib/edgeserve --no-create-home \
            --shell /usr/sbin/nologin edgeserve
        remember user edgeserve
    fi
    for group in $GROUPS_OF_DEVICES; do
        if has_group "$group" && ! in_group edgeserve "$group"; then in_root usermod --append --groups "$group" edgeserve; fi
    done
    for client in "${CLIENTS[@]+"${CLIENTS[@]}"}"; do
        has_user "$client" || die "--client $client: no such user"
        if ! in_group "$client" edgeserve; then
            in_root usermod --append --groups edgeserve "$client"
            remember member "$client"
        fi
    done
}

constraints() {    # the newest versions that this JetPack's Python and libraries work with
    if [ "$FAMILY" = workstation ]; then
        cat "$HERE/constraints/workstation.txt"
    else
        cat "$HERE/constraints/jetpack$FAMILY.txt"
    fi
}

requirements() {    # what pip installs beside the program
    local extra=onnx
    if [ -n "$ORT_WHEEL$ORT_INDEX" ]; then extra=""; fi    # the CPU build would shadow the GPU build
    if [ "$CUDA" = yes ] && [ -n "$DRIVER" ]; then
        extra="${extra:+$extra,}gpu"
        if [ "$DRIVER" != wsl ] && [ "$DRIVER" -lt 580 ]; then echo 'cuda-bindings<13'; fi    # 580: the first of CUDA 13
    fi
    if [ "$LANGUAGE" = yes ]; then extra="${extra:+$extra,}lm-llama"; fi
    echo "$PREFIX/source${extra:+[$extra]}"
    if [ -n "$ORT_WHEEL" ]; then echo "$ORT_WHEEL"; fi
    if [ -n "$ORT_INDEX" ]; then echo onnxruntime-gpu; fi
    if [ "$CUDA" = yes ]; then
        case "$FAMILY" in
            5) echo cuda-python ;;    # cuda-bindings has no wheels for Python 3.8
            6 | 7) echo cuda-bindings ;;
        esac
    fi
    if [ "$FAMILY" = 7 ]; then echo nvidia-ml-py; fi    # Thor tells its GPU load by NVML alone
}

program() {    # the sources, copied: pip in a chroot sees them, and a checkout that moves breaks nothing
    local stamp digest is_new=no pip=("$PREFIX/venv/bin/python" -m pip --disable-pip-version-check)
    make_dir "$PREFIX" 755
    remember tree "$PREFIX/venv"
    if ! [ -x "$ROOT$PREFIX/venv/bin/pip" ]; then    # the last that venv makes
        is_new=yes
        in_root "$PYTHON" -m venv --system-site-packages "$PREFIX/venv"
    fi
    put_file "$PREFIX/constraints.txt" 644 < <(constraints)
    digest="$({ cat "$PROJECT/pyproject.toml" "$PROJECT/setup.py"
        find "$PROJECT/edgeserve" -name '*.py' -print0 | LC_ALL=C sort -z | xargs -0 cat
        requirements; constraints; } | sha256sum | cut -d' ' -f1)"
    stamp="$PREFIX/installed"
    if [ "$(fact "$stamp")" = "$digest" ]; then return 0; fi
    remember tree "$PREFIX/source"
    run rm -rf "$ROOT$PREFIX/source"
    run mkdir -p "$ROOT$PREFIX/source"
    run cp -r "$PROJECT/edgeserve" "$PROJECT/pyproject.toml" "$PROJECT/setup.py" "$PROJECT/README.md" \
        "$PROJECT/LICENSE" "$ROOT$PREFIX/source/"
    if [ -n "$ORT_WHEEL$ORT_INDEX" ] && [ "$is_new" = no ]; then
        in_root "${pip[@]}" uninstall --quiet --yes onnxruntime    # both in one environment: the CPU build wins
    fi
    llama_cpp "${pip[@]}"
    pip_install "${pip[@]}"
    if [ "$ORT_WHEEL" = onnxruntime-gpu ]; then keep_if_it_runs "${pip[@]}"; fi
    put_file "$stamp" 644 <<< "$digest"
}

CUDA_COMPILER=/usr/local/cuda/bin/nvcc    # where JetPack and NVIDIA's packages put it; it is in no PATH

llama_settings() {    # how llama.cpp is built for this machine
    local architecture
    case "$SOC" in
        tegra194) architecture=72-real ;;
        tegra234) architecture=87-real ;;
        tegra264) architecture=110-real ;;
        *) architecture=native ;;
    esac
    if [ "$FAMILY" = workstation ] && [ -z "$DRIVER" ]; then return 0; fi
    printf '%s' "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=$architecture"
    # Else ggml reserves 32 GB of addresses, which an integrated GPU refuses, and ends the process.
    if [ "$FAMILY" != workstation ]; then printf '%s' " -DGGML_CUDA_NO_VMM=ON"; fi
}

llama_cpp() {    # the wheel of llama.cpp, where there is none yet
    [ "$LANGUAGE" = yes ] || return 0
    local settings wheel
    settings="$(llama_settings)"
    if [ -n "$settings" ] && [ "$FAMILY" = workstation ] && ! [ -x "$ROOT$CUDA_COMPILER" ]; then
        die "--language needs CUDA's compiler, and there is no $CUDA_COMPILER" "install NVIDIA's package cuda-toolkit"
    fi
    make_dir "$PREFIX/wheels" 755
    remember tree "$PREFIX/wheels"
    for wheel in "$ROOT$PREFIX"/wheels/llama_cpp_python-*.whl; do if [ -e "$wheel" ]; then return 0; fi; done
    in_root env ${settings:+"CUDACXX=$CUDA_COMPILER"} "CMAKE_ARGS=$settings" \
        "$@" wheel --quiet --no-deps --wheel-dir "$PREFIX/wheels" 'llama-cpp-python>=0.3.30'
}

pip_install() {
    local words=() line
    if [ "$LANGUAGE" = yes ]; then words+=(--find-links "$PREFIX/wheels" --only-binary llama-cpp-python); fi
    while IFS= read -r line; do words+=("$line"); done < <(requirements)
    if [ -n "$ORT_INDEX" ]; then    # from that index alone: of two pip takes the higher version, built for other GPUs
        in_root "$@" install --quiet --constraint "$PREFIX/constraints.txt" --no-deps --index-url "$ORT_INDEX" onnxruntime-gpu
    fi
    in_root "$@" install --quiet --constraint "$PREFIX/constraints.txt" "${words[@]}"
}

keep_if_it_runs() {    # the general GPU build names no board among its kernels: one that runs is the proof
    if [ "$DRY_RUN" = yes ] || asks "$PREFIX/venv/bin/python" -m edgeserve.commands.doctor.probes; then return 0; fi
    warn "no kernel of the general build of ONNX Runtime runs on this GPU: back to the CPU build"
    in_root "$@" uninstall --quiet --yes onnxruntime-gpu
    in_root "$@" install --quiet --constraint "$PREFIX/constraints.txt" onnxruntime
}

configuration() {
    if [ "$SERVICE" = yes ] && ! [ -f "$ROOT/etc/edgeserve/environment" ]; then
        make_dir /etc/edgeserve 755
        put_file /etc/edgeserve/environment 644 < "$HERE/environment"
    fi
    if [ -f "$ROOT$CONFIG" ]; then
        say "configuration: $CONFIG stays as it is"
        return 0
    fi
    make_dir "$(dirname "$CONFIG")" 755
    if [ "$FAMILY" = workstation ]; then
        put_file "$CONFIG" 644 < <(sed '/^\(endpoint\|profiles\) = /d' "$HERE/edge.toml")
    else
        put_file "$CONFIG" 644 < "$HERE/edge.toml"
    fi
}

service() {
    [ "$SERVICE" = yes ] || return 0
    local before=$CHANGES name
    for name in edgeserve.service edgeserve-clocks.service; do
        put_file "/etc/systemd/system/$name" 644 < <(filled "$HERE/$name")
    done
    make_dir "$PREFIX/jetson/lib" 755
    put_file "$PREFIX/jetson/lib/common.sh" 644 < "$HERE/lib/common.sh"
    for name in power.sh restart_pause.sh; do put_file "$PREFIX/jetson/$name" 755 < "$HERE/$name"; done
    put_file "$PREFIX/as-service" 755 < <(filled "$HERE/as-service")
    make_dir "$PREFIX/scripts/lib" 755
    for name in profile_device.py lib/__init__.py lib/plots.py; do
        put_file "$PREFIX/scripts/$name" 644 < "$PROJECT/scripts/$name"
    done
    remember tree "$PREFIX/scripts"
    if [ -z "$ROOT" ] && [ "$CHANGES" -gt "$before" ]; then run systemctl daemon-reload; fi
    if ! [ -L "$ROOT/etc/systemd/system/multi-user.target.wants/edgeserve.service" ]; then
        in_root systemctl enable edgeserve.service
        remember enabled edgeserve.service
    fi
    if [ "$START" = yes ]; then run systemctl restart edgeserve.service; fi
}

filled() {    # a template with this machine's paths
    sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@CONFIG@|$CONFIG|g" "$1"
}

conflicts() {    # what else on a board turns the same screws
    local folder
    for folder in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
        if [ -e "$ROOT$folder/jtop.service" ]; then
            warn "jtop (jetson-stats) is installed: its service may set clocks, fan and power mode at boot, as power.sh" \
                "does. Use one of them: 'jtop' shows what it set; 'systemctl disable --now jtop.service' leaves it to power.sh"
            return 0
        fi
    done
}

look
system_packages
user_and_groups
program
configuration
service
conflicts
if [ "$CHANGES" -eq 0 ]; then
    say "nothing to do: everything is set up"
elif [ "$DRY_RUN" = yes ]; then
    say "dry run: nothing was changed"
else
    say "done: uninstall.sh${ROOT:+ --root $ROOT}$([ "$FAMILY" != workstation ] || printf ' --prefix %s' "$PREFIX") takes it back"
fi
if [ "$SERVICE" = yes ]; then
    say "next: sudo $PREFIX/as-service edgeserve doctor $CONFIG"
    say "      systemctl start edgeserve; systemctl status edgeserve"
else
    if [ -n "$DRIVER" ] && [ -z "$ORT_WHEEL$ORT_INDEX" ]; then
        say "on the GPU, engine = \"tensorrt\": $PREFIX/venv/bin/pip install tensorrt"
        say "            engine = \"onnx\": $PREFIX/venv/bin/pip uninstall -y onnxruntime &&" \
            "$PREFIX/venv/bin/pip install 'onnxruntime-gpu[cuda,cudnn]'"
    fi
    say "next: $PREFIX/venv/bin/edgeserve doctor $CONFIG"
    say "      $PREFIX/venv/bin/edgeserve serve $CONFIG"
fi
