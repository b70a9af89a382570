"""`python -m lpx` is the `lpx` command."""

from lpx.cli import main

main()
