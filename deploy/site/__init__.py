"""The documentation as a site: what mkdocs needs besides the pages of docs/."""
