"""Several systems under one protocol: the table, the picture and the frontier."""
