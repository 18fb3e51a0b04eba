"""What flowed lately: rates of ended requests, and since when things are wrong."""
