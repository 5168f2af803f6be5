"""Ends a local cluster's processes when the process that started them is gone, however it ended.

`python -m coordinator.warden MARK` reads what it has to guard from its standard input, one line
each (`group 4711`, `forget 4711`, `segment 99 name`). The other end of the pipe is held by the
local cluster alone, so end-of-file means that it ended; after a clean stop nothing is left to do.
Rejected: PR_SET_PDEATHSIG, which reaches children but not the EngineCore below them, and fires
when the *thread* that started a child ends."""

from __future__ import annotations

import signal
import sys

from coordinator import processes

GRACE_S = 5.0


def main() -> None:
    # It has to outlive the process that it guards, whatever ends that one.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    segments: dict[str, int] = {}
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "group":
            groups.add(int(rest))
        elif word == "forget":
            groups.discard(int(rest))
        else:
            inode, _, name = rest.partition(" ")
            segments[name] = int(inode)
    mark = sys.argv[1]
    segments |= processes.segments_of(processes.members(groups, mark))
    if not processes.ask_to_end(groups, mark, GRACE_S):
        segments |= processes.segments_of(processes.members(groups, mark))
        processes.kill(groups, mark)
    processes.remove_segments(segments)


if __name__ == "__main__":
    main()
