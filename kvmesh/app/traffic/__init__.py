"""Rates, problems and history, for dashboards: kept whether anybody looks or not."""
