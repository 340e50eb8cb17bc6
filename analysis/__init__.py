"""analysis: what to do next. Reads what census made; the `census` command starts in analysis.cli."""
