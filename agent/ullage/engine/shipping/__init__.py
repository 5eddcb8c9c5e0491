"""A repository's share in a bucket: its objects, and who may write them (docs/shipping.md)."""
