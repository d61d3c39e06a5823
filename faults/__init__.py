"""A campaign against `dapl`: bad inputs, kills, full disks, two at once, a server under attack, hostile folders.

`python -m faults` (`make faults`) runs it, prints a table, and fails on any traceback, hang, wrong exit code,
half-written file or lost result. The same seed gives the same cases.
"""
