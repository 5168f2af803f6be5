"""What a benchmark sends: traces read from files, traffic drawn from published statistics, and
agent sessions with a router. Used by the simulator and by runs against a cluster alike."""
