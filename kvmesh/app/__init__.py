"""The processes: what every command of a mesh runs, wired from the rooms below."""
