# shellcheck shell=sh
# Makes this folder the one that `lpx` works in. Load it from the folder, once in each shell:
#
#     . scripts/env.sh
#
# To keep models on another disk, replace models/ by a link to a folder there.
if [ ! -f config/lpx.toml ] || [ ! -f scripts/env.sh ]; then
    echo "scripts/env.sh: change into the working folder first, the one with config/lpx.toml" >&2
    return 1
fi
mkdir -p models inputs outputs logs || return 1

export LPX_MODELS_DIR="$PWD/models"             # where models are pulled to and looked for
export LPX_LEDGER="$PWD/outputs/ledger.sqlite"  # where measurements are kept
export LPX_PROFILE="$PWD/config/lpx.toml"       # the options of all commands

# .venv is the installation in use, or a link to it.
case ":$PATH:" in
*":$PWD/.venv/bin:"*) ;;
*) [ ! -x .venv/bin/lpx ] || export PATH="$PWD/.venv/bin:$PATH" ;;
esac
if ! command -v lpx >/dev/null; then
    echo "scripts/env.sh: there is no lpx: install it with" >&2
    echo "    python3 -m venv .venv && .venv/bin/pip install /path/to/the/source/of/lpx" >&2
    return 1
fi
