"""`shadowprefill doctor`: what a node has, what it lacks, and what to do about it.

`look` asks the machine, `judge` (pure) decides, `command` prints."""
