"""What people type."""

PROGRAM = "kubectl ullage"
