"""Rates and problems, for dashboards: kept whether anybody looks or not."""
