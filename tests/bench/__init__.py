"""The comparison benchmark: plain llama.cpp, llama.cpp's own DFlash2 and pydflash2, side by side.

One command, from the repository root::

    python -m tests.bench

It never decides whether a change is good: it writes a JSON file and a table for people to read. See
``docs/performance.md`` for how to read them.
"""
