"""What to ask before a cluster is bought or split again: the P:D split, and the KV links."""
