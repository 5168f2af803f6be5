"""`python -m colocated --config F --instance NAME`: becomes one vLLM server with our
scheduler."""

from __future__ import annotations

import sys

from engine.launch import run_node
from policy.vocabulary import Role

if __name__ == "__main__":
    run_node(Role.COLOCATED, sys.argv[1:])
