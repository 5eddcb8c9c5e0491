"""The repository of this machine's disks, behind the interface: it turns the engine's records into documents."""
