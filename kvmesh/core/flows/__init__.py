"""What flowed lately: rates of ended requests, hours of them, and since when things are wrong."""
