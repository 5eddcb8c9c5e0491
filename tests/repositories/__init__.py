"""The suites that every content, FlowFile and provenance repository has to pass: ours, and those of entry points."""
