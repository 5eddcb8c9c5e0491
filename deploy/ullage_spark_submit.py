"""The command line `ullage` as a file that spark-submit takes for a Python program: its name ends in .py."""  # noqa: INP001

from ullage_agent.cli import main

main()
