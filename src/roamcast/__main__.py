"""`python -m roamcast` is the command line."""

from roamcast.cli import main

main()
