"""The report of a run: a page to look at every prototype, from disk and without a network."""
