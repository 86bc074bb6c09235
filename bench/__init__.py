"""The comparison benchmark: plain llama.cpp, llama.cpp's own DFlash2 and pydflash2, side by side.

One command, from the repository root::

    python -m bench

Subcommands measure parts of that: ``draft``, what drafting alone costs, against llama.cpp's own
DFlash2; and, without any drafting, ``cost-curve``, the cost of decoding n tokens on models of many
types, against llama.cpp's own kernels, and ``kernels``, single products against what the machine
can do.

It never decides whether a change is good: it writes JSON files and tables for people to read. See
``docs/performance.md`` for how to read them.

Its surface is the command line, and ``bench.__main__.parse``, which reads one without running it.
What it shares with the tests, model files and the processes that decode them, is in
``tests/tools``; nothing there knows the benchmark.
"""
