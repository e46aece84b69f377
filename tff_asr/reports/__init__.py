"""Reports: tables, plots, one HTML page of runs, the demo page, model cards."""
