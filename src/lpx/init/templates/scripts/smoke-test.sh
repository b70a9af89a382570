#!/bin/sh
# Asks the running server for one short answer in English and one in Chinese. Exit code 0: both came; 1: not, and one line
# says why; 2: wrong arguments.
#
#     scripts/smoke-test.sh                              the server of config/lpx.toml
#     scripts/smoke-test.sh --wait 600                   a large model needs longer to load: seconds, 120 by default
#     LPX_URL=http://127.0.0.1:8081 scripts/smoke-test.sh
#
# The key is LPX_API_KEY, else the first one of config/keys.txt, which only a server on this machine gets to see. Needs
# python3, and no LPX: the server may be in a container.
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."
python=python3
[ ! -x .venv/bin/python3 ] || python=.venv/bin/python3

if [ -z "${LPX_URL:-}" ]; then
    port=${LPX_PORT:-$(sed -n 's/^port *= *\([0-9]*\).*/\1/p' config/lpx.toml)}
    if grep -q '^ssl-certfile *=' config/lpx.toml; then scheme=https; else scheme=http; fi
    LPX_URL=$scheme://127.0.0.1:${port:-8080}
    if [ -z "${LPX_API_KEY:-}" ] && [ -r config/keys.txt ]; then
        LPX_API_KEY=$(sed -n '/^[[:space:]]*[#*]/d; /^[[:space:]]*$/d; s/^[[:space:]]*//; s/[[:space:]].*//
            s/^[A-Za-z0-9._-]*://; p; q' config/keys.txt)
    fi
fi
export LPX_URL LPX_API_KEY="${LPX_API_KEY:-}"
exec "$python" scripts/smoke_test.py "$@"
