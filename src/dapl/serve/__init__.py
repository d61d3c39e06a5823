"""The page: a run in the browser, with a JSON API. What is served is read from the run and computed, never a file."""
