#!/bin/sh
# Serves the model of config/lpx.toml in the foreground, until Ctrl-C or SIGTERM. Logs go to standard error. More options
# of `lpx serve` may follow, and beat the profile: scripts/start.sh --port 8081
set -eu
cd -- "$(dirname -- "$0")/.."
. scripts/env.sh
echo $$ >logs/serve.pid  # for signals: kill "$(cat logs/serve.pid)" ends the server, kill -HUP has it reload
exec lpx serve --profile config/lpx.toml "$@"
