"""The process that serves a repository: its transports, its node's Kubernetes objects, and the command line."""
