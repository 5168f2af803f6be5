"""What an agent of the benchmark reads and is asked: seeded words, so that no run depends on files.

Common words, because each is about one token of the model's: lengths are chosen in words and come
back exactly in the engines' own counts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

SYSTEM_PROMPT = (
    "You are a careful agent. After each result of a tool, say in one sentence what it tells you "
    "and what you want to see next."
)
TASK = "Task: find out which part of the system is slow, and why. What is known so far:\n"
WORDS_PER_LINE = 14
_VOCABULARY = """
time file line list name value test call path read write open close start stop first last next
state node tree word text page part point number table column row index order group class type
field method function object model memory cache block size length count limit rate load queue
request answer error reason result change check find set get put add move copy send wait run
work task step plan goal data source target server client user system network port host key map
view form log record report event signal clock second minute hour day small large short long
fast slow old new free busy left right high low same other true false before after inside
outside above below between during without again often never always
"""
WORDS = tuple(_VOCABULARY.split())


def some_words(count: int, chance: random.Random) -> str:
    words = chance.choices(WORDS, k=count)
    lines = [words[at : at + WORDS_PER_LINE] for at in range(0, count, WORDS_PER_LINE)]
    return "\n".join(" ".join(line) for line in lines)


def task_text(count: int, chance: random.Random) -> str:
    return TASK + some_words(count, chance)


def result_text(number: int, count: int, chance: random.Random) -> str:
    return f"Result of tool call {number}:\n{some_words(count, chance)}"
