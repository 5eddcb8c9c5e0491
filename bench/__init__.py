"""The bench: the engine beside the disk or a bare loop, in one run, as ratios."""
