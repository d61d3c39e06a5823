"""Raw files to data sets, and a look at data before an hour is spent on it."""
