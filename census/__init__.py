"""census: traces in, tables out. It knows engines only as commands that speak JSON and as nsys exports."""
