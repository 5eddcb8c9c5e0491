"""The command line: `ullage`, for people and scripts. Commands talk; what they talk about is done by the engine."""

from ullage_agent.cli.app import main as main
