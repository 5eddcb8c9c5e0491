"""What leaves the machine: places in a bucket that the engine's protocols ask for."""
