"""What both sides of HTTP share: headers, errors, deadlines, sockets."""
