"""The interleaved window: A/B that can be believed.

stats.py is arithmetic; plan.py what will run, written down before it runs; guards.py the state of the machine, blind to
timings; log.py the append-only log; runner.py runs a plan to its end, from wherever it stopped; window.py reads a
finished one, of this tool or another; verdict.py judges it; surface.py says what a switch changes; show.py prints.
"""
