"""`python -m ullage_agent` is `ullage`."""

from ullage_agent.cli import main

main()
