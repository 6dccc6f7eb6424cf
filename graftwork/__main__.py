"""Runs the command line: `graftwork` or `python -m graftwork`."""

from graftwork.cli.app import main

if __name__ == "__main__":
    main()
