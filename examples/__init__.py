"""Programs that show the library at work; each runs in a test."""
