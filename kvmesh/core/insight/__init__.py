"""What routing did: decisions on record, predictions against answers, traffic, hot prefixes."""
