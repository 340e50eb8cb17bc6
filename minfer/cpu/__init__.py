"""The numpy reference backend: every op, f32, runs everywhere."""
