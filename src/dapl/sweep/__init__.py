"""Many runs that differ in some fields of one config: the paper's ablations, any other grid, or a search (Optuna)."""
