"""Studies: many runs, one question. Each module is imported by the function that needs it."""
