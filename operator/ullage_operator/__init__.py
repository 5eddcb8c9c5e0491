"""The operator: reconciles ContentRepository objects, opens windows by tickets, and steps around Spark."""
