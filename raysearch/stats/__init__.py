"""Statistics of plain numbers: standard errors, differences, tests and rank correlations."""
