"""What a run measured: statistics, tables, plots, HTML, CSV."""
