#!/bin/sh
# Serves the model of config/lpx.toml in the foreground, until Ctrl-C or SIGTERM. Logs go to standard error. More options
# of `lpx serve` may follow, and beat the profile: scripts/start.sh --port 8081
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."
. scripts/env.sh
pid=$(cat logs/serve.pid 2>/dev/null || true)
if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd" 2>/dev/null || true)" = "$(pwd -P)" ] &&
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q ' serve --profile config/lpx.toml'; then
    echo "start.sh: the server of this folder runs already, as process $pid" >&2
    exit 1
fi
echo $$ >logs/serve.pid  # for signals: kill "$(cat logs/serve.pid)" ends the server, kill -HUP has it reload
exec lpx serve --profile config/lpx.toml "$@"
