# Sourced by the scripts beside it: messages, and the checks that several of them make.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

need_root() { [ "$(id -u)" -eq 0 ] || die "needs root (it installs system software)"; }

need_debian() {
    local tool
    for tool in apt-get dpkg-deb dpkg-query; do
        command -v "$tool" >/dev/null || die "needs a Debian-like system: $tool is missing"
    done
}

# at_least MINIMUM VERSION
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# Compiled modules are kept: short-lived engine commands start several times faster with them.
unset PYTHONDONTWRITEBYTECODE
